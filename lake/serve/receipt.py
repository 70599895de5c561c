"""Receipt for posted events, from which the answer is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake.contracts.contract import Contract
from lake.serve.bodies import PostedRecord
from lake.serve.commits import GroupPlace
from lake.serve.decide.command_validation import Decision
from lake.serve.source import place


@dataclass(frozen=True)
class StreamReceipt:
    """Records of a request in one stream. `token` identifies them for `lake wait`."""

    stream: str
    source: str
    place: GroupPlace
    records: int

    @property
    def token(self) -> str:
        """Return STREAM@SOURCE:GROUP:ORDINAL of the first record."""
        return f"{self.stream}@{self.source}:{place(self.place.number, self.place.first)}"


@dataclass(frozen=True)
class Receipt:
    """Receipts for each stream of a request, and the outcome if its events were validated."""

    each: Sequence[StreamReceipt]
    decided: Decision | None = None


def new_receipts(by_stream: Mapping[str, Sequence[PostedRecord]], source: str, put: GroupPlace) -> list[StreamReceipt]:
    """Return the receipts of records committed now: one stream after the other."""
    receipts, first = list[StreamReceipt](), put.first
    for stream, records in by_stream.items():
        receipts.append(StreamReceipt(stream, source, GroupPlace(put.number, first), len(records)))
        first += len(records)
    return receipts


def earlier_receipts(by_stream: Mapping[str, Sequence[PostedRecord]], decided: Decision) -> list[StreamReceipt]:
    """Return the receipts of the first request, for the streams with a rule."""
    receipts, number = list[StreamReceipt](), 0
    for stream in dict.fromkeys(stream for stream, *_ in decided.versions):
        source, group, ordinal = decided.places[number].rsplit(":", 2)
        receipts.append(StreamReceipt(stream, source, GroupPlace(int(group), int(ordinal)), len(by_stream[stream])))
        number += len(by_stream[stream])
    return receipts


def decision_json(decided: Decision, contracts: Mapping[str, Contract]) -> dict[str, Any]:
    """Return the outcome for the answer: {again, version} for one key, {again, versions} for several."""
    if len(decided.versions) == 1:
        return {"again": decided.again, "version": decided.versions[0][2]}
    versions = [
        {"stream": stream, "key": dict(zip(contracts[stream].key, map(_plain, key), strict=True)), "version": at}
        for stream, key, at in decided.versions
    ]
    return {"again": decided.again, "versions": versions}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)
