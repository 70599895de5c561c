"""Requests whose records break their contracts: refused, as long as their producer still listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake.contracts.breaches import Breaches
from lake.contracts.strict import NotTaken
from lake.http.bodies import SHOWN, Record
from lake.http.problems import Problem


def must_fit(by_stream: Mapping[str, Sequence[Record]], breaches: Mapping[str, Breaches], *, record_bytes: int) -> None:
    """Raises Problem where any record would be refused by the log of its stream, if that is one of `breaches`."""
    bad = list[dict[str, Any]]()
    for stream in by_stream.keys() & breaches.keys():
        must_be_none = breaches[stream].must_be_none
        for number, record in enumerate(by_stream[stream], 1):
            if record.right:
                continue
            try:
                must_be_none(record.text, record.facts, record_bytes=record_bytes)
            except NotTaken as error:
                bad.append(bad_record(stream, number, error))
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
