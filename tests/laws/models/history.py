"""History in plain Python, of the events of one key and the truncates of all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, groupby
from typing import Any

from tests.laws.models.events import Event


def history(events: Iterable[Event], *, dated: bool = False) -> list[tuple[Any, ...]]:
    """Return (a, b, valid_from, valid_to) of each version: `a` is tracked, `b` is that of the version's newest event.
    `dated`: the time of an event is the greatest `c` so far.
    """
    ordered = sorted((event for event in events if event.at is not None), key=lambda each: each.order)
    times = accumulate((event.c or 0 for event in ordered), max) if dated else (event.at for event in ordered)
    instants = {time: event for time, event in zip(times, ordered, strict=True) if time or not dated}
    versions: list[list[Any]] = []
    for at, event in instants.items():
        going = versions[-1] if versions and versions[-1][3] is None else None
        if going and event.op == "put" and going[0] == event.a:
            going[1] = event.b
            continue
        if going:
            going[3] = at
        if event.op == "put":
            versions.append([event.a, event.b, at, None])
    return [tuple(version) for version in versions]


def table(events: Iterable[Event], *, dated: bool = False) -> set[tuple[Any, ...]]:
    """Return the versions of all keys, each after its key."""
    events = list(events)
    truncates = [event for event in events if event.key is None]
    keyed = sorted((event for event in events if event.key is not None), key=lambda each: each.key or 0)
    groups = groupby(keyed, key=lambda each: each.key)
    return {(key, *version) for key, group in groups for version in history([*truncates, *group], dated=dated)}


def of_dumps(batches: Iterable[Iterable[Event]]) -> set[tuple[Any, ...]]:
    """Return the versions of full dumps; `at` is the dump of an event. A dump older than an earlier one is ignored."""
    dumps: dict[int, dict[int, int | None]] = {}
    newest = -1
    for batch in batches:
        for event in sorted(batch, key=lambda each: each.place):
            if event.at is not None and event.key is not None and (event.at in dumps or event.at > newest):
                dumps.setdefault(event.at, {})[event.key] = event.a
                newest = max(event.at, newest)
        newest = max(dumps, default=-1)
    versions: set[Any] = set()
    going: dict[Any, Any] = {}
    for number in sorted(dumps):
        for key, (value, since) in list(going.items()):
            if dumps[number].get(key, ...) != value:
                versions.add((key, value, since, number))
                del going[key]
        going = {key: (value, number) for key, value in dumps[number].items()} | going
    return versions | {(key, value, since, None) for key, (value, since) in going.items()}
