"""Where a source is, and why it cannot go on from there: what it has to read next is gone, or is not what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lake.sources.postgres.messages import read_lsn
from lake.sources.postgres.options import Options
from lake.sources.postgres.publication import Table
from lake.sources.postgres.server import Place, Slot
from lake.sources.source import Progress


@dataclass(frozen=True)
class Known:
    """A position, read. `begin` is its `from`, `at` the server's clock at `to`, microseconds since 1970."""

    system: str
    timeline: int
    era: int
    slot: str
    begin: str
    to: str
    at: int
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, progress: Progress) -> Known:
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

    def moved(self, to: str, at: int) -> Known:
        """The position after a delivery that ended at `to`."""
        return replace(self, begin=self.to, to=to, at=at)

    def with_copies(self, entries: Mapping[str, Mapping[str, Any]]) -> Known:
        """The position with the entries of tables that were copied."""
        return replace(self, tables={**self.tables, **entries})


@dataclass(frozen=True)
class Missed:
    """Something that may have been missed: of the table of one `stream`, or of all of them."""

    what: str
    stream: str | None = None

    @property
    def of_table(self) -> bool:
        return self.stream is not None

    def streams(self, known: Known) -> list[str]:
        """The streams whose tables have to be copied anew."""
        return list(known.tables) if self.stream is None else [self.stream]


def gaps(known: Known, place: Place, slot: Slot | None, tables: Mapping[str, Table], options: Options) -> list[Missed]:
    """Why the source cannot go on from `known`; nothing where it can."""
    return [*_of_server(known, place), *of_slot(known, slot, options.slot), *_of_tables(known, tables, options)]


def _of_server(known: Known, place: Place) -> Iterator[Missed]:
    if place.system != known.system:
        yield Missed(f"this is a different server: its system identifier is {place.system}, it was {known.system}")
    elif place.timeline != known.timeline:
        yield Missed(
            f"the server's timeline is {place.timeline}, it was {known.timeline}: a standby was promoted, or a backup "
            "restored, and the latest commits may be missing there"
        )
    elif place.flushed < read_lsn(known.to):
        yield Missed(f"the server's log ends before {known.to}, which has been read: an older state was restored")


def of_slot(known: Known, slot: Slot | None, name: str) -> Iterator[Missed]:
    """Why the slot `name` has not what follows `known`."""
    if slot is None:
        yield Missed(f"the server has no slot {name!r}, so it has not kept what follows {known.to}")
    elif slot.lost:
        yield Missed(f"the slot {name!r} is lost: it needed more than max_slot_wal_keep_size, what it kept is gone")
    elif slot.confirmed is not None and slot.confirmed > read_lsn(known.to):
        yield Missed(f"somebody else has read the slot {name!r} beyond {known.to}")


def _of_tables(known: Known, tables: Mapping[str, Table], options: Options) -> Iterator[Missed]:
    copied = {
        stream: (entry, tables[name])
        for stream, name in options.tables.items()
        if (entry := known.tables.get(stream)) and entry["since"]
    }
    published = {
        stream: (_parts(entry["published"]), _parts(table.published)) for stream, (entry, table) in copied.items()
    }
    if any(was.publication != now.publication for was, now in published.values()):
        yield Missed(f"the publication {options.publication!r} was dropped and recreated")
        return
    if any(was.change != now.change for was, now in published.values()):
        yield Missed(f"the publication {options.publication!r} was altered: what it left out meanwhile is missing")
        return
    for stream, (entry, table) in copied.items():
        name, (was, now) = options.tables[stream], published[stream]
        if table.id != entry["id"]:
            yield Missed(f"{name} is a different table: the one that was read was dropped", stream)
        elif was.entry != now.entry:
            yield Missed(f"{name} was out of the publication for a while", stream)


class _Published(NamedTuple):
    """The number of a publication, its newest change, and what of it names a table."""

    publication: str
    change: str
    entry: str


def _parts(published: str) -> _Published:
    publication, _, entry = published.partition("/")
    number, _, change = publication.partition(".")
    return _Published(number, change, entry)
