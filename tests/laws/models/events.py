"""Random histories: events of each key in any order of time, repeated or removed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.laws import HISTORIES

PARTS = 4
SCHEMA = (
    "key int, at int, op string, a int, b int, g int, c int, "
    "_batch bigint, _arrival bigint, _bucket int, _offset bigint, _sign int"
)
Signed = tuple["Event", int]


@dataclass(frozen=True)
class Event:
    """Event as a function returns it: `op` is put, delete or truncate; `place` is its place in its batch."""

    key: int | None
    at: int | None
    op: str
    a: int | None
    b: int | None
    g: int | None
    c: int | None
    batch: int
    place: int

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """Return the order by time, a missing one first, then by log order."""
        return self.at is not None, self.at or 0, self.batch, self.place

    def row(self, sign: int) -> tuple[object, ...]:
        return self.key, self.at, self.op, self.a, self.b, self.g, self.c, *self.log_order, sign

    @property
    def log_order(self) -> tuple[int, int, int, int]:
        """Return batch, arrival, bucket and offset. A table may have another key than its log, so buckets have no
        meaning.
        """
        return self.batch, self.place, -1 if self.key is None else 2 - self.place % 3, self.place


def histories(seed: int, *, total: bool = False, nulls: bool = True, voids: bool = True) -> list[list[Signed]]:
    """Return the signed events of each part; events of a key have distinct times if the sequence is `total`."""
    chance = random.Random(seed)
    parts: list[list[Signed]] = [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        times = chance.sample(range(30), 12) if total else chance.choices([None] * nulls + list(range(7)), k=12)
        if chance.random() < 0.4:
            times.sort(key=lambda time: (time is not None, time))
        there: list[Event] = []
        batch = 1
        for place in range(chance.randrange(1, 12)):
            batch = min(PARTS, batch + chance.choice([0, 0, 1]))
            before = [event for event in there if event.batch < batch]
            if voids and before and chance.random() < 0.1:
                gone = before[chance.randrange(len(before))]
                there.remove(gone)
                parts[batch - 1].append((gone, -1))
            again = chance.choice(there) if there and not total and chance.random() < 0.1 else None
            new = _event(chance, key, times[place])
            event = replace(again or new, batch=batch, place=place)
            there.append(event)
            parts[batch - 1].append((event, 1))
    return parts


def truncated(parts: list[list[Signed]], at: int, *, part: int, c: int | None = None) -> list[list[Signed]]:
    """Return `parts` with a truncate at the time `at`, first in its part."""
    event = Event(None, at, "truncate", None, None, None, c, part + 1, -1)
    return [[*([(event, 1)] if number == part else []), *events] for number, events in enumerate(parts)]


def shuffled(parts: Iterable[list[Signed]], seed: int) -> list[list[Signed]]:
    """Return the same events in another order of arrival."""
    chance = random.Random(seed)
    events = [event for part in parts for event, _ in part]
    chance.shuffle(events)
    found: list[list[Signed]] = [[] for _ in range(PARTS)]
    for place, event in enumerate(events):
        part = min(place * PARTS // len(events), PARTS - 1)
        found[part].append((replace(event, batch=part + 1, place=place), 1))
    return found


def untimed(parts: Iterable[list[Signed]]) -> list[list[Signed]]:
    """Return the same events without a time, in log order."""
    return [[(replace(event, at=None), sign) for event, sign in part] for part in parts]


def remaining_events(parts: Iterable[list[Signed]]) -> list[Event]:
    """Return the events that were not removed."""
    gone = {event for part in parts for event, sign in part if sign < 0}
    return [event for part in parts for event, sign in part if sign > 0 and event not in gone]


def _event(chance: random.Random, key: int, at: int | None) -> Event:
    op = "delete" if chance.random() < 0.2 else "put"
    a, b, c = (chance.choice([None, 1, 2]), chance.choice([None, 1, 2, 3]), chance.choice([None, 1, 2, 3]))
    return Event(key, at, op, a, b, chance.choice([None, 1, 2, 3]), c, batch=0, place=0)


def dumps(seed: int, keys: int = 300) -> list[list[Signed]]:
    """Return a stream of full dumps, two a batch; some are late, and some end in the next batch."""
    chance = random.Random(seed)
    parts: list[list[Signed]] = [[] for _ in range(PARTS)]
    for number in range(PARTS):
        for at in (chance.randrange(2 * number + 3), 2 * number + 2):
            for key in chance.sample(range(keys), keys * 3 // 4):
                part = min(number + (chance.random() < 0.1), PARTS - 1)
                event = Event(key, at, "put", chance.choice([None, 1, 2]), None, None, None, part + 1, len(parts[part]))
                parts[part].append((event, 1))
    return parts
