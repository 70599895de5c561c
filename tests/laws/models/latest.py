"""Latest and First in plain Python, of the events of one key and the truncates of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from tests.laws.models.events import Event

Row = tuple[Any, ...]


def live(events: Iterable[Event]) -> list[Event]:
    """Return the puts after the newest delete, oldest first."""
    found: list[Event] = []
    for event in sorted(events, key=lambda each: each.order):
        found = [*found, event] if event.op == "put" else []
    return found


def latest(events: list[Event]) -> Row:
    last = live(events)[-1]
    return last.at, last.a, last.b, last.g, last.c


def first(events: list[Event]) -> Row:
    oldest = live(events)[0]
    return oldest.at, oldest.a, oldest.b, oldest.g, oldest.c


def combined(events: list[Event]) -> Row:
    """Return `a` with its previous value for null; `g` and `c` are those of the event with the greatest `g`."""
    rows = live(events)
    values = [event.a for event in rows if event.a is not None]
    spoken = [(event.g, event.batch, event.place, event.c) for event in rows if event.g is not None]
    g, *_, c = max(spoken, default=(None, None))
    return rows[-1].at, values[-1] if values else None, rows[-1].b, g, c


def partial(events: list[Event]) -> Row:
    """Return every column with its previous value for null."""
    rows = live(events)
    told = [[value for event in rows if (value := getattr(event, column)) is not None] for column in "abgc"]
    return rows[-1].at, *(values[-1] if values else None for values in told)


def table(events: Iterable[Event], of: Callable[[list[Event]], Row]) -> set[Row]:
    """Return one row for each existing key: the key, and the result of `of` for its events."""
    events = list(events)
    truncates = [event for event in events if event.key is None]
    keyed = sorted((event for event in events if event.key is not None), key=lambda each: each.key or 0)
    groups = ((key, [*truncates, *group]) for key, group in groupby(keyed, key=lambda each: each.key))
    return {(key, *of(group)) for key, group in groups if live(group)}
