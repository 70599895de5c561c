"""What a request gave, and how its answer says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake.contracts.contract import Contract
from lake.decide.decider import Decided
from lake.http.bodies import Record
from lake.http.commits import Place
from lake.sources.http import place


@dataclass(frozen=True)
class Took:
    """What a request gave to one stream: `token` is what `lake wait` takes."""

    stream: str
    source: str
    place: Place
    records: int

    @property
    def token(self) -> str:
        """STREAM@SOURCE:GROUP:ORDINAL, of its first record."""
        return f"{self.stream}@{self.source}:{place(self.place.number, self.place.first)}"


@dataclass(frozen=True)
class Taken:
    """What a request gave to each of its streams, and what was decided where it was to be."""

    each: Sequence[Took]
    decided: Decided | None = None


def now(by_stream: Mapping[str, Sequence[Record]], source: str, put: Place) -> list[Took]:
    """What was put just now: one stream after the other."""
    took, first = list[Took](), put.first
    for stream, records in by_stream.items():
        took.append(Took(stream, source, Place(put.number, first), len(records)))
        first += len(records)
    return took


def before(by_stream: Mapping[str, Sequence[Record]], decided: Decided) -> list[Took]:
    """What was put when a request came first, of the streams that are decided."""
    took, number = list[Took](), 0
    for stream in dict.fromkeys(stream for stream, *_ in decided.versions):
        source, group, ordinal = decided.places[number].rsplit(":", 2)
        took.append(Took(stream, source, Place(int(group), int(ordinal)), len(by_stream[stream])))
        number += len(by_stream[stream])
    return took


def versions_of(decided: Decided, contracts: Mapping[str, Contract]) -> dict[str, Any]:
    """What an answer says of a decision: `version` of the one key, or `versions` of each."""
    if len(decided.versions) == 1:
        return {"again": decided.again, "version": decided.versions[0][2]}
    versions = [
        {"stream": stream, "key": dict(zip(contracts[stream].key, map(_plain, key), strict=True)), "version": at}
        for stream, key, at in decided.versions
    ]
    return {"again": decided.again, "versions": versions}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)
