"""Enrich in a few lines of plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    id: int
    key: int
    on: int | None
    at: int | None
    place: int


@dataclass(frozen=True)
class Version:
    """Version of a row; `until` is set for a history, while a version of a log holds until the next."""

    key: int
    on: int | None
    begins: int | None
    until: int | None
    value: int
    place: int


def enrich(events: list[Event], versions: list[Version], *, tolerance: int | None) -> dict[int, tuple[Any, ...]]:
    return {event.id: (event.key, event.on, event.at, _value(event, versions, tolerance)) for event in events}


def _value(event: Event, versions: list[Version], tolerance: int | None) -> int | None:
    if event.at is None or event.on is None:
        return None
    begun = [
        v for v in versions if (v.key, v.on) == (event.key, event.on) and v.begins is not None and v.begins <= event.at
    ]
    if not begun:
        return None
    began, last = max(((v.begins, v) for v in begun if v.begins is not None), key=lambda pair: (pair[0], pair[1].place))
    old = tolerance is not None and event.at - began > tolerance
    return None if old or (last.until is not None and event.at >= last.until) else last.value
