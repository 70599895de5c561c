"""Requests whose records break their contracts: refused, as long as their producer still listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake.http.bodies import SHOWN, Record
from lake.http.problems import Problem
from lake.records.single import NotTaken, SingleReader


def must_fit(by_stream: Mapping[str, Sequence[Record]], readers: Mapping[str, SingleReader]) -> None:
    """Raise Problem if the log of a stream that has a reader would refuse any of its records."""
    bad = [
        bad_record(stream, index + 1, error)
        for stream in by_stream.keys() & readers.keys()
        for index, error in readers[stream].refused([(each.utf8, each.facts) for each in by_stream[stream]])
    ]
    if bad:
        raise breach(bad)


def bad_record(stream: str, number: int, error: NotTaken) -> dict[str, Any]:
    """What an answer says of the record that is `number` of those of its stream in a request."""
    return {"record": number, "stream": stream, "reason": str(error.reason), "detail": error.detail}


def breach(bad: Sequence[Mapping[str, Any]]) -> Problem:
    """The answer to a request with these bad records."""
    first = bad[0]
    more = f", and {len(bad) - 1} more are bad" if bad[1:] else ""
    detail = f"record {first['record']}: {first['reason']}: {first['detail']}{more}"
    return Problem("not-by-contract", detail, reason=first["reason"], stream=first["stream"], errors=bad[:SHOWN])
