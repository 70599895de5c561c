"""Status of sinks: the edition that each target reports, and its lag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from lake.config import Settings
from lake.errors import LakeError
from lake.publish.after_publish import sinks_of_connectors
from lake.sinks.declared import sound_sinks
from lake.sinks.kind import DeclaredSink
from lake.sinks.sink import RejectedRow
from lake.store.ledger import consumers, editions, episodes, sent
from lake.store.ledger.episodes import Episode


@dataclass(frozen=True)
class SinkStatus:
    """A sink whose target has `edition`; the target cannot take the `rejected` rows."""

    name: str
    kind: str = ""
    edition: int | None = None
    editions: int = 0
    seconds: float | None = None
    rejected: tuple[RejectedRow, ...] = ()
    undelivered: int = 0
    error: str = ""


def sinks(settings: Settings, now: datetime) -> Iterator[SinkStatus]:
    """Yield the status of every sink that is or was declared. Queries each target, which may be slow."""
    sound, faults = sound_sinks(settings)
    more_sound, more_faults = sinks_of_connectors(settings)
    sound |= more_sound
    faults |= more_faults
    yield from (_status(settings, sink, now) for sink in sound.values())
    yield from (SinkStatus(name, error=" ".join(str(fault).split())) for name, fault in faults.items())
    for consumer in consumers.consumers(settings):
        if consumer.is_sink and consumer.name not in {*sound, *faults}:
            why = f"is declared no more: lake deliver {consumer.name} --forget"
            yield SinkStatus(consumer.name, edition=consumer.edition, error=why)


def _status(settings: Settings, sink: DeclaredSink, now: datetime) -> SinkStatus:
    try:
        with closing(sink.open()) as target:
            position = target.position()
    except LakeError as error:
        return SinkStatus(sink.name, sink.kind, error=" ".join(str(error).split()))
    if position is None:
        return SinkStatus(sink.name, sink.kind)
    current = editions.current_edition(settings)
    is_behind = current is not None and current.number != position.edition
    later = editions.edition_after(settings, position.edition) if is_behind else None
    return SinkStatus(
        sink.name,
        sink.kind,
        position.edition,
        abs(current.number - position.edition) if current else 0,
        max((now - later.published_at).total_seconds(), 0.0) if later else None,
        position.rejected,
        sent.counts(settings).get(sink.name, 0),
    )


def open_episodes(settings: Settings) -> Iterator[Episode]:
    """Yield the episodes of state alerts that have begun and not ended."""
    yield from (episode for episode in episodes.newest(settings).values() if episode.ended is None)
