"""Status of external systems: sources, sinks and consumers. Sources and sinks are asked themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest.declared_position import declared_position
from lake.publish.after_publish import sinks_of_connectors
from lake.sinks.kind import DeclaredSink, sound_sinks
from lake.sinks.sink import RejectedRow
from lake.sources.declared import DeclaredSource, sound_sources
from lake.sources.source import Progress
from lake.store.ledger import consumers, editions, sent


@dataclass(frozen=True)
class SourceStatus:
    """A source: its newest delivery and position, and the streams `lacking` that delivery.

    `events` wait there, or more with `at_least`, the oldest for `seconds`; `retained` bytes are kept for us. None if
    unknown.
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
    at_least: bool = False

    @property
    def waiting(self) -> str:
        return "" if self.events is None else f"{'at least ' if self.at_least else ''}{self.events} events"

    @property
    def waits(self) -> str:
        if self.lacking:
            return f"delivery {self.delivery} of {self.name} is not in the log of {', '.join(self.lacking)}"
        return f"{self.waiting} of {self.name} wait to be ingested" if self.events else ""


@dataclass(frozen=True)
class SinkStatus:
    name: str
    kind: str = ""
    edition: int | None = None
    editions: int = 0
    seconds: float | None = None
    rejected: tuple[RejectedRow, ...] = ()
    undelivered: int = 0
    error: str = ""


@dataclass(frozen=True)
class ConsumerStatus:
    """`edition` is None before the first acknowledgement, and kept until `kept_until`.

    `seconds` count from the publication of the first edition it lacks.
    """

    consumer: str
    table: str
    edition: int | None
    editions: int
    seconds: float | None
    kept_until: datetime | None
    must_start_over: bool


def source_statuses(settings: Settings, contracts: Mapping[str, Contract]) -> Iterator[SourceStatus]:
    sound, faults = sound_sources(settings, contracts)
    yield from (_source_status(settings, source) for source in sound.values())
    yield from (SourceStatus(name, error=_in_a_line(fault)) for name, fault in faults.items())


def _source_status(settings: Settings, source: DeclaredSource) -> SourceStatus:
    data: dict[str, Any] = {"kind": source.kind, "streams": source.streams}
    try:
        at = declared_position(settings, source)
        data |= {"delivery": at.number, "progress": at.progress, "lacking": at.lacking}
        with closing(source.open()) as reader:
            lag = reader.lag(at.progress)
    except LakeError as error:
        return SourceStatus(source.name, **data, error=_in_a_line(error))
    return SourceStatus(source.name, **data, **asdict(lag))


def sink_statuses(settings: Settings, now: datetime) -> Iterator[SinkStatus]:
    sound, faults = sound_sinks(settings)
    more_sound, more_faults = sinks_of_connectors(settings)
    sound |= more_sound
    faults |= more_faults
    known = {consumer.name: consumer.edition for consumer in consumers.consumers(settings) if consumer.is_sink}
    yield from (_sink_status(settings, sink, now, known.get(sink.name)) for sink in sound.values())
    for name, fault in faults.items():
        yield SinkStatus(name, "", *_behind(settings, known.get(name), now), error=_in_a_line(fault))
    for name, edition in known.items():
        if name not in {*sound, *faults}:
            why = f"is declared no more: lake deliver {name} --forget"
            yield SinkStatus(name, edition=edition, error=why)


def _sink_status(settings: Settings, sink: DeclaredSink, now: datetime, known: int | None) -> SinkStatus:
    """`known` is the edition that the warehouse remembers, for a target that cannot be asked."""
    try:
        with closing(sink.open()) as target:
            position = sink.position(target)
    except LakeError as error:
        return SinkStatus(sink.name, sink.kind, *_behind(settings, known, now), error=_in_a_line(error))
    if position is None:
        return SinkStatus(sink.name, sink.kind)
    undelivered = sent.counts(settings).get(sink.name, 0)
    return SinkStatus(sink.name, sink.kind, *_behind(settings, position.edition, now), position.rejected, undelivered)


def _behind(settings: Settings, edition: int | None, now: datetime) -> tuple[int | None, int, float | None]:
    """Return the edition of a sink, how many editions it is behind, and for how many seconds."""
    current = editions.current_edition(settings)
    if edition is None or current is None:
        return edition, 0, None
    later = editions.edition_after(settings, edition) if current.number != edition else None
    seconds = max((now - later.published_at).total_seconds(), 0.0) if later else None
    return edition, abs(current.number - edition), seconds


def consumer_statuses(settings: Settings, now: datetime) -> Iterator[ConsumerStatus]:
    current = editions.current_edition(settings)
    for consumer in consumers.consumers(settings):
        if consumer.is_sink:
            continue
        has = consumer.edition
        differs = current is not None and has is not None and has != current.number
        since = consumers.behind_since(settings, consumer) if differs else None
        yield ConsumerStatus(
            consumer=consumer.name,
            table=consumer.table,
            edition=has,
            editions=abs(current.number - has) if differs and current and has else 0,
            seconds=max((now - since).total_seconds(), 0.0) if since else None,
            kept_until=consumers.held_until(settings, consumer),
            must_start_over=consumers.must_start_over(settings, consumer),
        )


def _in_a_line(error: LakeError) -> str:
    return " ".join(str(error).split())
