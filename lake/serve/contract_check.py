"""Contract check of posted records: a request with a bad record is rejected while its producer still listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake.records.single_reader import RecordRejected, SingleReader
from lake.serve.bodies import SHOWN, PostedRecord
from lake.serve.problems import Problem


def check_contracts(by_stream: Mapping[str, Sequence[PostedRecord]], readers: Mapping[str, SingleReader]) -> None:
    """Raise Problem if any record violates the contract of its stream. Streams without a reader are not checked."""
    bad = [
        bad_record(stream, index + 1, error)
        for stream in by_stream.keys() & readers.keys()
        for index, error in readers[stream].refused([(each.utf8, each.facts) for each in by_stream[stream]])
    ]
    if bad:
        raise breach(bad)


def bad_record(stream: str, number: int, error: RecordRejected) -> dict[str, Any]:
    """Return the JSON entry for a bad record: {record, stream, reason, detail}. `number` counts within its stream."""
    return {"record": number, "stream": stream, "reason": str(error.reason), "detail": error.detail}


def breach(bad: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the Problem for a request with these bad records."""
    first = bad[0]
    more = f", and {len(bad) - 1} more are bad" if bad[1:] else ""
    detail = f"record {first['record']}: {first['reason']}: {first['detail']}{more}"
    return Problem("not-by-contract", detail, reason=first["reason"], stream=first["stream"], errors=bad[:SHOWN])
