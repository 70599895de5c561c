"""The logs' position in a source, from their commits."""

from __future__ import annotations

from dataclasses import dataclass

from lake.config import Settings
from lake.sources.source import Progress
from lake.store import delta
from lake.store.log import Log


@dataclass(frozen=True)
class SourcePosition:
    """Position after delivery `number` (0: none), which `streams` have and `lacking` lack.

    A log is not `lacking` if it was deleted, and the source is no longer declared for its stream.
    """

    number: int = 0
    progress: Progress | None = None
    streams: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


def source_position(settings: Settings, name: str, streams: tuple[str, ...]) -> SourcePosition:
    positions = {stream: Log(settings, stream).head().sources.get(name) for stream in streams}
    newest = max(filter(None, positions.values()), key=lambda position: position.number, default=None)
    if newest is None:
        return SourcePosition()
    logs = {stream: Log(settings, stream) for stream in newest.streams}
    positions |= {stream: log.head().sources.get(name) for stream, log in logs.items() if stream not in positions}
    complete = {stream for stream, position in positions.items() if position and position.number == newest.number}
    gone = {stream for stream, log in logs.items() if stream not in streams and not delta.exists(log.path)}
    lacking = tuple(stream for stream in newest.streams if stream not in complete | gone)
    return SourcePosition(newest.number, newest.progress, newest.streams, lacking)
