"""Retention: the versions and files that kept editions, derived tables and running processes need.

In a bucket, processes of other machines are assumed to have begun at most `keep_days` ago, by this machine's clock and
the times in the commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from lake.config import Settings
from lake.project.project import Project
from lake.store import delta
from lake.store.ledger import editions
from lake.store.ledger.consumers import FOR_EVER
from lake.store.ledger.editions import Edition, in_ranges
from lake.store.locks import activity
from lake.store.storage import Address
from lake.store.tables import Table, heads
from lake.store.upkeep import vacuum
from lake.store.warehouse import Location, Warehouse

UNPUBLISHED: Final = timedelta(days=1)
"""Time for which an unpublished home waits for the next deploy."""


def tables(settings: Settings) -> Iterator[Location]:
    """Yield every Delta table of the warehouse, with every home of a derived one."""
    folders = Warehouse(settings).folders("log", "table", "quarantine", "redeliveries", "book")
    return (location for location in folders if delta.exists(location.path))


@dataclass(frozen=True)
class RetentionNeeds:
    """Versions and files needed at one moment, by `editions`, by live tables and by processes.

    `homes` are those of live tables: {folder: table}. Processes of this machine `began` at these moments; in a bucket,
    those of others at most `days` ago.
    """

    project: Project
    days: float
    began: tuple[datetime, ...]
    editions: tuple[Edition, ...]
    homes: Mapping[Address, Table]

    @classmethod
    def now(
        cls, project: Project, *, days: float = 0, also: Iterable[Edition] = (), excluded: Collection[int] = ()
    ) -> RetentionNeeds:
        """Return the current needs, with the editions `also` and without the kept ones numbered in `excluded`.

        A process that begins later reads the newest state and kept editions.
        """
        settings = project.settings
        began = tuple(process.since for process in activity.others(settings))
        kept = [edition for edition in editions.kept_editions(settings) if edition.number not in excluded]
        newest = editions.latest_edition(settings)
        home = {name: table.home for name, table in newest.tables.items()} if newest else {}
        tables = [project.table_in(t, home.get(t.name, t.name)) for t in project.tables.values()]
        return cls(project, min(days, FOR_EVER), began, (*kept, *also), {table.path: table for table in tables})

    def by_editions(self, path: Address) -> dict[int, int]:
        root = Warehouse(self.project.settings).root
        return {
            edition.number: table.version
            for edition in self.editions
            for table in edition.tables.values()
            if root / table.path == path
        }

    def since(self, location: Location) -> int:
        """Return the version from which on everything at `location` is needed.

        A live table is needed from the versions that its children have read and that were published last, as a late
        child continues there. Any table is needed from the version that the oldest running process found.
        """
        versions = [delta.version(location.path)]
        began = list(self.began)
        if activity.has_unlisted(self.project.settings):
            began.append(datetime.now(UTC) - timedelta(days=self.days))
        if began:
            versions.append(vacuum.seen_at(location.path, min(began)))
        if location.path in self.homes:
            published = self.by_editions(location.path)
            versions += [published[max(published)] if published else 0, *self._read_from(location)]
        return min(versions)

    def is_abandoned(self, location: Location, *, drop_retired: bool) -> bool:
        """Return whether it is a home that is not live, that no edition has, and that no process may be building.

        A recent unpublished home of a deploy is reused by the next one, unless the live table has its rows. The home
        of an undeclared table waits `days`. With `drop_retired` both are deleted at once.
        """
        if location.kind != "table" or location.path in self.homes or self.by_editions(location.path):
            return False
        is_declared = location.name.partition("@")[0] in self.project.tables
        changed = datetime.fromtimestamp(next(delta.commits(location.path))["timestamp"] / 1000, UTC)
        grace = UNPUBLISHED if is_declared else max(UNPUBLISHED, timedelta(days=self.days))
        if not drop_retired and not self._is_copied(location) and changed >= datetime.now(UTC) - grace:
            return False
        return all(changed < began for began in self.began)

    def _is_copied(self, location: Location) -> bool:
        """Return whether the live table has this home's definition, so that a deploy has copied it."""
        live = next((t.head() for t in self.homes.values() if t.name == location.name.partition("@")[0]), None)
        built = next(heads(location), None)
        if live is None or built is None:
            return False
        return bool(built.fingerprint) and live.fingerprint == built.fingerprint

    def _read_from(self, location: Location) -> Iterator[int]:
        """Yield the newest versions with the rows that children have read last."""
        table = self.homes[location.path]
        name = table.name
        for child in self.homes.values():
            sources = {source.name for source in self.project.tables[child.name].inputs if not source.is_log}
            head = child.head() if name in sources else None
            read = head.inputs.get(name) if head else None
            if head and read is not None and head.physical.get(name, name) == location.name:
                yield table.last_repeat(read)


@dataclass(frozen=True)
class RetiredHome:
    """Home of a table that is not live, and the kept `editions` that have it; droppable if readers see none of them."""

    location: Location
    editions: tuple[int, ...]
    is_droppable: bool

    @property
    def fate(self) -> str:
        if not self.is_droppable:
            return f"cannot be dropped: edition {self.editions[-1]} has it; publish an edition without it first"
        if self.editions:
            return f"would be dropped, together with the editions that have it: {in_ranges(self.editions)}"
        return "would be dropped; no edition has it"


def retired(project: Project) -> list[RetiredHome]:
    settings, needed = project.settings, RetentionNeeds.now(project)
    visible = {e.number for e in (editions.current_edition(settings), editions.latest_edition(settings)) if e}
    homes = [home for home in tables(settings) if home.kind == "table" and home.path not in needed.homes]
    editions_of = {home: tuple(sorted(needed.by_editions(home.path))) for home in homes}
    return [RetiredHome(home, numbers, not visible & {*numbers}) for home, numbers in editions_of.items()]
