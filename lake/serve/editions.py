"""Wait for publication: which posted groups of a source the current edition contains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from lake.config import Settings
from lake.read.visible_batches import visible_batches
from lake.store import delta
from lake.store.ledger import editions
from lake.store.log import Log
from lake.store.log_head import by_source

POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class VisibleGroups:
    """Newest group of a source, `upto`, that readers of `edition` see; both 0 before the first edition."""

    edition: int = 0
    upto: int = 0


@dataclass
class Editions:
    """Cache of the visible groups, refreshed at most five times a second while a request waits."""

    settings: Settings
    source: str
    visible: dict[str, VisibleGroups] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def wait(
        self, stream: str, number: int, *, seconds: float, ending: asyncio.Event, is_gone: Callable[[], Awaitable[bool]]
    ) -> int | None:
        """Return the edition in which readers see group `number` of a stream.

        Return None after `seconds`, if the server is `ending`, or if the client `is_gone`.
        """
        deadline = time.monotonic() + seconds
        while True:
            visible = await self._look(stream)
            if visible.upto >= number:
                return visible.edition
            left = deadline - time.monotonic()
            if left <= 0 or ending.is_set() or await is_gone():
                return None
            try:
                await asyncio.wait_for(ending.wait(), min(POLL_SECONDS, left))
            except TimeoutError:
                continue

    async def _look(self, stream: str) -> VisibleGroups:
        async with self._lock:
            if time.monotonic() - self._looked.get(stream, 0.0) >= POLL_SECONDS:
                was = self.visible.get(stream, VisibleGroups())
                self.visible[stream] = await asyncio.to_thread(visible_groups, self.settings, self.source, stream, was)
                self._looked[stream] = time.monotonic()
            return self.visible[stream]


def visible_groups(settings: Settings, source: str, stream: str, was: VisibleGroups = VisibleGroups()) -> VisibleGroups:
    """Return the groups visible in the current edition; `was` if the edition is the same."""
    edition = editions.current_edition(settings)
    if edition is None or edition.number == was.edition:
        return was
    batch, log = visible_batches(settings, edition).get(stream, 0), Log(settings, stream)
    for position in delta.positions(log.path, log.app) if batch else ():
        if position.data["batch"] <= batch:
            newest = by_source(position.data).get(source)
            return VisibleGroups(edition.number, int(newest.progress["upto"]) if newest else 0)
    return VisibleGroups(edition.number)
