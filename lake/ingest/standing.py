"""Where the logs of a project stand in a source, by what their own commits say."""

from __future__ import annotations

from dataclasses import dataclass

from lake.config import Settings
from lake.sources.source import Progress
from lake.store.log import Log


@dataclass(frozen=True)
class Standing:
    """Where the logs stand in a source: after delivery `number`, 0 before the first, behind which it is at `progress`.

    `streams` are those that have records of it, `lacking` those of them whose logs do not have it yet.
    """

    number: int = 0
    progress: Progress | None = None
    streams: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


def standing(settings: Settings, name: str, streams: tuple[str, ...]) -> Standing:
    """Where the logs of `streams` stand in the source `name`, as their own commits say."""
    each = {stream: Log(settings, stream).head().sources.get(name) for stream in streams}
    newest = max((one for one in each.values() if one), key=lambda one: one.number, default=None)
    if newest is None:
        return Standing()
    has = {stream for stream, one in each.items() if one and one.number == newest.number}
    lacking = tuple(stream for stream in newest.streams if stream not in has)
    return Standing(newest.number, newest.progress, newest.streams, lacking)
