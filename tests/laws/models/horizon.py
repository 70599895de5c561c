"""Horizons of producers, recomputed from the complete log; and hourly windows that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Told:
    """Record: an event of a `room`, or with None the promise that nothing before `at` follows."""

    producer: str | None
    at: datetime
    number: int
    room: str | None = None


@dataclass
class Batch:
    """Batch: its time, its new records, and the producers it closed."""

    now: datetime
    told: list[Told] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)


@dataclass
class Model:
    """Log and its windows. Every answer is computed from the first batch on; nothing is stored."""

    idle: timedelta
    lateness: timedelta
    batches: list[Batch] = field(default_factory=list)
    voided: set[int] = field(default_factory=set)

    def take(self, now: datetime, told: list[Told]) -> None:
        """Add a batch of records, without duplicate events."""
        numbers = {one.number for batch in self.batches for one in batch.told}
        fresh: list[Told] = []
        for one in told:
            if one.room is None or one.number not in numbers:
                numbers.add(one.number)
                fresh.append(one)
        self.batches.append(Batch(now, fresh))

    def quiet(self, now: datetime) -> bool:
        """Close producers that were silent for too long; return whether that makes a batch."""
        closed = {
            name
            for name in self.open(len(self.batches))
            if now - max(batch.now for batch in self.batches for one in batch.told if one.producer == name) >= self.idle
        }
        if closed:
            self.batches.append(Batch(now, closed=closed))
        return bool(closed)

    def open(self, upto: int) -> dict[str, datetime]:
        """Return the open producers after `upto` batches, with the greatest time since each was opened."""
        return next(islice(self._opened(), upto, None))

    def _opened(self) -> Iterator[dict[str, datetime]]:
        """Yield the open producers before the first batch and after each."""
        found: dict[str, datetime] = {}
        yield found
        for batch in self.batches:
            found = {name: at for name, at in found.items() if name not in batch.closed}
            for one in batch.told:
                if one.producer is not None:
                    found[one.producer] = max(one.at, found.get(one.producer, one.at))
            yield found

    def horizons(self) -> list[datetime | None]:
        """Return the horizon before the first batch and after each."""
        opened = self._opened()
        next(opened)
        reached: list[datetime] = []
        greatest: list[datetime | None] = [None]
        for number, (batch, waiting) in enumerate(zip(self.batches, opened, strict=True), 1):
            if waiting:
                reached.append(min(waiting.values()))
            elif batch.closed:
                reached.append(max(one.at for batch in self.batches[:number] for one in batch.told))
            greatest.append(max(reached, default=None))
        return greatest

    def is_ended(self) -> bool:
        """Return whether producers were closed and none is open."""
        return any(batch.closed for batch in self.batches) and not self.open(len(self.batches))

    def windows(self) -> dict[tuple[str, datetime], tuple[int, bool]]:
        """Return the number of counted events by room and hour, and whether the hour is final."""
        found: dict[tuple[str, datetime], int] = {}
        *before, now = self.horizons()
        for horizon, batch in zip(before, self.batches, strict=True):
            for one in batch.told:
                late = horizon is not None and one.at < horizon - self.lateness
                if one.room is not None and one.number not in self.voided and not late:
                    hour = one.room, one.at.replace(minute=0, second=0, microsecond=0)
                    found[hour] = found.get(hour, 0) + 1
        return {
            (room, hour): (count, self.is_ended() or (now is not None and hour + HOUR <= now - self.lateness))
            for (room, hour), count in found.items()
        }
