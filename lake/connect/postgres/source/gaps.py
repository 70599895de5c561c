"""Position of a PostgreSQL source, and detection of changes missed since then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lake.connect.postgres.source.messages import read_lsn
from lake.connect.postgres.source.options import PostgresOptions
from lake.connect.postgres.source.publication import PublishedTable
from lake.connect.postgres.source.server import ReplicationSlot, ServerPosition
from lake.sources.source import Progress


@dataclass(frozen=True)
class PostgresPosition:
    """`begin` is `from` of the progress; `at` is the server's clock at `to`, in microseconds since 1970."""

    system: str
    timeline: int
    era: int
    slot: str
    begin: str
    to: str
    at: int
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, progress: Progress) -> PostgresPosition:
        at = int(datetime.fromisoformat(progress["at"]).timestamp() * 1_000_000)
        facts = {name: progress[name] for name in ("system", "timeline", "era", "slot", "to", "tables")}
        return cls(**facts, begin=progress["from"], at=at)

    @property
    def progress(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "era": self.era,
            "slot": self.slot,
            "from": self.begin,
            "to": self.to,
            "at": datetime.fromtimestamp(self.at / 1_000_000, UTC).isoformat(timespec="microseconds"),
            "tables": {stream: dict(entry) for stream, entry in self.tables.items()},
        }

    def moved(self, to: str, at: int) -> PostgresPosition:
        return replace(self, begin=self.to, to=to, at=at)

    def with_copies(self, entries: Mapping[str, Mapping[str, Any]]) -> PostgresPosition:
        return replace(self, tables={**self.tables, **entries})


@dataclass(frozen=True)
class MissedChange:
    what: str
    stream: str | None = None

    @property
    def of_table(self) -> bool:
        return self.stream is not None

    def streams(self, known: PostgresPosition) -> list[str]:
        return list(known.tables) if self.stream is None else [self.stream]


def gaps(
    known: PostgresPosition,
    place: ServerPosition,
    slot: ReplicationSlot | None,
    tables: Mapping[str, PublishedTable],
    options: PostgresOptions,
) -> list[MissedChange]:
    return [*_of_server(known, place), *of_slot(known, slot, options.slot), *_of_tables(known, tables, options)]


def _of_server(known: PostgresPosition, place: ServerPosition) -> Iterator[MissedChange]:
    if place.system != known.system:
        yield MissedChange(
            f"this is a different server: its system identifier is {place.system}, it was {known.system}"
        )
    elif place.timeline != known.timeline:
        yield MissedChange(
            f"the server's timeline is {place.timeline}, it was {known.timeline}: a standby was promoted, or a backup "
            "restored, and the latest commits may be missing there"
        )
    elif place.flushed < read_lsn(known.to):
        yield MissedChange(f"the server's log ends before {known.to}, which has been read: an older state was restored")


def of_slot(known: PostgresPosition, slot: ReplicationSlot | None, name: str) -> Iterator[MissedChange]:
    if slot is None:
        yield MissedChange(f"the server has no slot {name!r}, so it has not kept what follows {known.to}")
    elif slot.lost:
        yield MissedChange(
            f"the slot {name!r} is lost: it needed more than max_slot_wal_keep_size, what it kept is gone"
        )
    elif slot.confirmed is not None and slot.confirmed > read_lsn(known.to):
        yield MissedChange(f"somebody else has read the slot {name!r} beyond {known.to}")


def _of_tables(
    known: PostgresPosition, tables: Mapping[str, PublishedTable], options: PostgresOptions
) -> Iterator[MissedChange]:
    copied = {
        stream: (entry, tables[name])
        for stream, name in options.tables.items()
        if (entry := known.tables.get(stream)) and entry["since"]
    }
    published = {
        stream: (_parts(entry["published"]), _parts(table.published)) for stream, (entry, table) in copied.items()
    }
    if any(was.publication != now.publication for was, now in published.values()):
        yield MissedChange(f"the publication {options.publication!r} was dropped and recreated")
        return
    if any(was.change != now.change for was, now in published.values()):
        yield MissedChange(
            f"the publication {options.publication!r} was altered: what it left out meanwhile is missing"
        )
        return
    for stream, (entry, table) in copied.items():
        name, (was, now) = options.tables[stream], published[stream]
        if table.id != entry["id"]:
            yield MissedChange(f"{name} is a different table: the one that was read was dropped", stream)
        elif was.entry != now.entry:
            yield MissedChange(f"{name} was out of the publication for a while", stream)


class _Published(NamedTuple):
    publication: str
    change: str
    entry: str


def _parts(published: str) -> _Published:
    publication, _, entry = published.partition("/")
    number, _, change = publication.partition(".")
    return _Published(number, change, entry)
