"""Status of sources: their lag, as the external system reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest.source_position import source_position
from lake.sources.declared import DeclaredSource, sound_sources
from lake.sources.source import Progress


@dataclass(frozen=True)
class SourceStatus:
    """A source: its newest delivery and position, and the streams `lacking` that delivery.

    `events` wait there, the oldest for `seconds`, and `retained` bytes are kept for us; None if unknown.
    """

    name: str
    kind: str = ""
    streams: tuple[str, ...] = ()
    delivery: int = 0
    progress: Progress | None = None
    lacking: tuple[str, ...] = ()
    events: int | None = None
    seconds: float | None = None
    retained: int | None = None
    error: str = ""

    @property
    def waits(self) -> str:
        if self.lacking:
            return f"delivery {self.delivery} of {self.name} is not in the log of {', '.join(self.lacking)}"
        return f"{self.events} events of {self.name} wait to be ingested" if self.events else ""


def sources(settings: Settings, contracts: Mapping[str, Contract]) -> Iterator[SourceStatus]:
    """Yield the status of every declared source. Queries each, which may be slow."""
    sound, faults = sound_sources(settings, contracts)
    yield from (_status(settings, source) for source in sound.values())
    yield from (SourceStatus(name, error=_in_a_line(fault)) for name, fault in faults.items())


def _status(settings: Settings, source: DeclaredSource) -> SourceStatus:
    data: dict[str, Any] = {"kind": source.kind, "streams": source.streams}
    try:
        at = source_position(settings, source.name, source.streams)
        data |= {"delivery": at.number, "progress": at.progress, "lacking": at.lacking}
        with closing(source.open()) as reader:
            lag = reader.lag(at.progress)
    except LakeError as error:
        return SourceStatus(source.name, **data, error=_in_a_line(error))
    return SourceStatus(source.name, **data, events=lag.events, seconds=lag.seconds, retained=lag.retained)


def _in_a_line(error: LakeError) -> str:
    return " ".join(str(error).split())
