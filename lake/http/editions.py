"""What readers see of a source: the groups whose events are in their edition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from lake.config import Settings
from lake.read.visible_batches import visible_batches
from lake.store import delta
from lake.store.delivered import by_source
from lake.store.ledger import editions
from lake.store.log import Log

POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Seen:
    """That readers of `edition` see the groups of a source up to `upto`; both 0 before the first."""

    edition: int = 0
    upto: int = 0


@dataclass
class Editions:
    """What readers see, looked at when somebody waits; at most five times a second, however many wait."""

    settings: Settings
    source: str
    seen: dict[str, Seen] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def wait(
        self, stream: str, number: int, *, seconds: float, ending: asyncio.Event, is_gone: Callable[[], Awaitable[bool]]
    ) -> int | None:
        """Return the edition in which readers see group `number` of a stream.

        Return None if none has it within `seconds`, when the server is `ending`, and if the client `is_gone`.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen = await self._look(stream)
            if seen.upto >= number:
                return seen.edition
            left = deadline - time.monotonic()
            if left <= 0 or ending.is_set() or await is_gone():
                return None
            try:
                await asyncio.wait_for(ending.wait(), min(POLL_SECONDS, left))
            except TimeoutError:
                continue

    async def _look(self, stream: str) -> Seen:
        async with self._lock:
            if time.monotonic() - self._looked.get(stream, 0.0) >= POLL_SECONDS:
                was = self.seen.get(stream, Seen())
                self.seen[stream] = await asyncio.to_thread(seen, self.settings, self.source, stream, was)
                self._looked[stream] = time.monotonic()
            return self.seen[stream]


def seen(settings: Settings, source: str, stream: str, was: Seen = Seen()) -> Seen:
    """What readers see of a source in a stream's log now; `was` is an earlier answer."""
    edition = editions.current_edition(settings)
    if edition is None or edition.number == was.edition:
        return was
    batch, log = visible_batches(settings, edition).get(stream, 0), Log(settings, stream)
    for position in delta.positions(log.path, log.app) if batch else ():
        if position.data["batch"] <= batch:
            newest = by_source(position.data).get(source)
            return Seen(edition.number, int(newest.progress["upto"]) if newest else 0)
    return Seen(edition.number)
