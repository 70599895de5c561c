"""Receipt for posted events, from which the answer is made, and the wait until readers see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.read.wait import POLL_SECONDS, visible_batches
from lake.serve.bodies import PostedRecord
from lake.serve.commits import GroupPlace
from lake.serve.decide.command_validation import Decision
from lake.serve.describe import is_idempotent
from lake.serve.source import place
from lake.store.ledger import editions
from lake.store.log import Log


@dataclass(frozen=True)
class StreamReceipt:
    stream: str
    source: str
    place: GroupPlace
    records: int

    @property
    def token(self) -> str:
        """Return STREAM@SOURCE:GROUP:ORDINAL of the first record, for `lake wait`."""
        return f"{self.stream}@{self.source}:{place(self.place.number, self.place.first)}"


@dataclass(frozen=True)
class Receipt:
    streams: Sequence[StreamReceipt]
    decided: Decision | None = None

    @classmethod
    def new(
        cls, by_stream: Mapping[str, Sequence[PostedRecord]], source: str, put: GroupPlace, decided: Decision | None
    ) -> Receipt:
        receipts, first = list[StreamReceipt](), put.first
        for stream, records in by_stream.items():
            receipts.append(StreamReceipt(stream, source, GroupPlace(put.number, first), len(records)))
            first += len(records)
        return cls(receipts, decided)

    @classmethod
    def earlier(cls, by_stream: Mapping[str, Sequence[PostedRecord]], decided: Decision) -> Receipt:
        """Derive the places of other records: they and the decided ones are in the request's order."""
        ruled = {stream for stream, *_ in decided.versions}
        every = [stream for stream, records in by_stream.items() for _ in records]
        numbers = [number for number, stream in enumerate(every) if stream in ruled]
        parts = [at.rsplit(":", 2) for at in decided.places]
        places = {n: GroupPlace(int(group), int(at)) for n, (_, group, at) in zip(numbers, parts, strict=True)}
        number, decided_place = next(iter(places.items()))
        receipts = list[StreamReceipt]()
        for stream, records in by_stream.items():
            first = every.index(stream)
            at = places.get(first, GroupPlace(decided_place.number, decided_place.first + first - number))
            receipts.append(StreamReceipt(stream, parts[0][0], at, len(records)))
        return cls(receipts, decided)

    def answer(self, contracts: Mapping[str, Contract], *, several: bool) -> dict[str, Any]:
        tokens = {receipt.stream: receipt.token for receipt in self.streams}
        answer: dict[str, Any] = {"tokens": tokens} if several else {"token": self.streams[0].token}
        answer["records"] = sum(receipt.records for receipt in self.streams)
        answer["idempotent"] = all(is_idempotent(contracts[receipt.stream]) for receipt in self.streams)
        return answer | (_decision_json(self.decided, contracts) if self.decided else {})


def _decision_json(decided: Decision, contracts: Mapping[str, Contract]) -> dict[str, Any]:
    if len(decided.versions) == 1:
        return {"again": decided.again, "version": decided.versions[0][2]}
    versions = [
        {"stream": stream, "key": dict(zip(contracts[stream].key, map(_json_value, key), strict=True)), "version": at}
        for stream, key, at in decided.versions
    ]
    return {"again": decided.again, "versions": versions}


def _json_value(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)


@dataclass(frozen=True)
class VisibleGroups:
    """Newest group `upto` that readers of `edition` see; both 0 old the first edition."""

    edition: int = 0
    upto: int = 0


@dataclass
class Editions:
    """Cache of the visible groups, refreshed at most five times a second while a request waits."""

    settings: Settings
    source: str
    visible: dict[str, VisibleGroups] = field(default_factory=dict)
    _read_at: dict[str, float] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def wait(
        self,
        stream: str,
        number: int,
        *,
        deadline: float,
        ending: asyncio.Event,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> int | None:
        """Return the edition in which readers see group `number` of a stream.

        Return None at the `deadline` of the monotonic clock, if the server is `ending`, or if the client `is_gone`.
        """
        while True:
            visible = await self._visible(stream)
            if visible.upto >= number:
                return visible.edition
            left = deadline - time.monotonic()
            if left <= 0 or ending.is_set() or await is_gone():
                return None
            try:
                await asyncio.wait_for(ending.wait(), min(POLL_SECONDS, left))
            except TimeoutError:
                continue

    async def _visible(self, stream: str) -> VisibleGroups:
        async with self._lock:
            if time.monotonic() - self._read_at.get(stream, 0.0) >= POLL_SECONDS:
                old = self.visible.get(stream, VisibleGroups())
                self.visible[stream] = await asyncio.to_thread(visible_groups, self.settings, self.source, stream, old)
                self._read_at[stream] = time.monotonic()
            return self.visible[stream]


def visible_groups(settings: Settings, source: str, stream: str, old: VisibleGroups = VisibleGroups()) -> VisibleGroups:
    edition = editions.current_edition(settings)
    if edition is None or edition.number == old.edition:
        return old
    batch = visible_batches(settings, edition).get(stream, 0)
    newest = Log(settings, stream).head_at(batch).sources.get(source) if batch else None
    return VisibleGroups(edition.number, int(newest.progress["upto"]) if newest else 0)
