"""Events of two logs: few keys and times, so that events meet, tie and come late, and nulls in every place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2011, 12, 28, tzinfo=UTC)
BATCHES, EVENTS = 3, 90
NUMBER = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
NUMBERS = {"type": "array", "items": "int"}
EVENT = {
    "id": "int", "time": INSTANT, "k": "string", "l": "int", "at": INSTANT, "seq": "int", "a": "int", "b": "string",
    "c": NUMBER, "x": "double", "g": "int", "h": "int", "tags": NUMBERS, "op": "string", "was": "string",
}  # fmt: skip
OTHER = {"oid": "int", "time": INSTANT, "k": "string", "l": "int", "rat": INSTANT, "rb": "string", "rs": "int"}


def batches() -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Yield the records of each batch, by stream. The second batch has a broadcast event."""
    chance = random.Random(3)

    def some(*values: Any) -> Any:
        return chance.choice([None, *values])

    def instant() -> Any:
        return some(*((EPOCH + timedelta(hours=7 * n)).isoformat() for n in range(16)))

    def time() -> str:
        return (EPOCH + timedelta(hours=chance.randrange(100))).isoformat()

    for number in range(BATCHES):
        events = [
            {
                "id": chance.randrange(40), "time": time(), "k": some("p", "q", "r", "t"), "l": some(1, 2),
                "at": instant(), "seq": some(1, 2, 3, 4), "a": some(-1, 0, 1, 2), "b": some("u", "v", "w"),
                "c": some("1.125", "-0.001", "999999999.999"), "x": some(-1.5, 0.0, 2.5), "g": some(1, 2, 3),
                "h": some(1, 2, 3), "tags": some([], [1], [1, None], [None]), "was": some("p", "q", "r"),
                "op": chance.choice([None, "put", "put", "delete"]),
            }
            for _ in range(EVENTS)
        ]  # fmt: skip
        if number == 1:
            events[5] |= {"id": None, "op": "truncate", "seq": 1, "at": EPOCH.isoformat()}
        others = [
            {
                "oid": chance.randrange(20), "time": time(), "k": some("p", "q", "r", "z"), "l": some(1, 2),
                "rat": instant(), "rb": some("y", "z"), "rs": some(1, 2, 3),
            }
            for _ in range(EVENTS // 3)
        ]  # fmt: skip
        yield {"events": events, "others": others}
