"""Retention: what of a warehouse is still needed by kept editions, derived tables and running processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from lake.config import Settings
from lake.project import LAYERS, Project
from lake.store import activity, delta, editions, vacuum
from lake.store.activity import Running
from lake.store.editions import Edition
from lake.store.log import Log
from lake.store.ranges import told
from lake.store.tables import Table

UNPUBLISHED: Final = timedelta(days=1)
"""So long a home that was built and not published waits to be taken up."""


@dataclass(frozen=True)
class Place:
    """A Delta table of a warehouse: the lease that its writers hold, and the app whose heads it carries."""

    kind: Literal["log", "quarantine", "redeliveries", "table", "book"]
    name: str
    path: Path
    lease: str
    app: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def places(settings: Settings) -> Iterator[Place]:
    """Every Delta table of the warehouse; of a derived one every home that it has or had."""
    root = settings.warehouse_path
    for path in _tables(root / "logs"):
        yield Place("log", path.name, path, Log(settings, path.name).lease, Log(settings, path.name).app)
    for layer in LAYERS:
        for path in _tables(root / layer):
            yield Place("table", path.name, path, f"table.{path.name}", f"table:{path.name}")
    for path in _tables(root / "quarantine"):
        yield Place("quarantine", path.name, path, Log(settings, path.name).lease)
    for path in _tables(root / "redeliveries"):
        yield Place("redeliveries", path.name, path, Log(settings, path.name).lease)
    for path in _tables(root / "meta"):
        yield Place("book", path.name, path, f"meta.{path.name}")


def _tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*") if delta.exists(path))


@dataclass(frozen=True)
class Needed:
    """What is needed at one moment: by `editions`, by the live homes of declared tables, by processes `running`.

    `homes` are the live ones: {folder: table}. The processes are the longest at work first.
    """

    project: Project
    running: tuple[Running, ...]
    editions: tuple[Edition, ...]
    homes: Mapping[Path, Table]

    @classmethod
    def now(cls, project: Project, *, also: Iterable[Edition] = (), but: Collection[int] = ()) -> Needed:
        """What is needed now: the kept editions, `also` these, `but` not those.

        Who begins after this has been asked will find what is newest, and the editions that are kept.
        """
        settings = project.settings
        running = tuple(activity.others(settings))
        kept = [edition for edition in editions.kept_editions(settings) if edition.number not in but]
        home = editions.homes(settings)
        tables = [Table(settings, t.layer, t.name, home.get(t.name, t.name)) for t in project.tables.values()]
        return cls(project, running, (*kept, *also), {table.path: table for table in tables})

    def by_editions(self, path: Path) -> dict[int, int]:
        """Which version of the table at `path` each edition has: {edition: version}."""
        root = self.project.settings.warehouse_path
        return {
            edition.number: table.version
            for edition in self.editions
            for table in edition.tables.values()
            if root / table.path == path
        }

    def since(self, place: Place) -> int:
        """The version from which on everything at `place` is needed.

        Of a live table, that is what its children have read last and what was published last: a table that is behind
        goes on from there. Of anything, what the longest running process found when it began.
        """
        versions = [delta.version(place.path)]
        if self.running:
            versions.append(vacuum.seen_at(place.path, self.running[0].since))
        if place.path in self.homes:
            published = self.by_editions(place.path)
            versions += [published[max(published)] if published else 0, *self._read_from(place)]
        return min(versions)

    def is_abandoned(self, place: Place, *, drop_retired: bool) -> bool:
        """Whether it is a home that is not live, that no edition has, and that nobody at work could be building.

        Only `drop_retired` takes for abandoned what a deploy left unpublished of late, which the next one takes up
        again, and the homes of tables that are no longer declared.
        """
        if place.kind != "table" or place.path in self.homes or self.by_editions(place.path):
            return False
        if not drop_retired and place.name.partition("@")[0] not in self.project.tables:
            return False
        changed = datetime.fromtimestamp(next(delta.commits(place.path))["timestamp"] / 1000, UTC)
        late = [process.since for process in self.running] + ([] if drop_retired else [datetime.now(UTC) - UNPUBLISHED])
        return all(changed < moment for moment in late)

    def _read_from(self, place: Place) -> Iterator[int]:
        """The versions with the rows that children have read last, as compacted as they are by now."""
        table = self.homes[place.path]
        name = table.name
        for child in self.homes.values():
            sources = {source.name for source in self.project.tables[child.name].inputs if not source.is_log}
            head = child.head() if name in sources else None
            read = head.inputs.get(name) if head else None
            if head and read is not None and head.physical.get(name, name) == place.name:
                yield table.stored(read)


@dataclass(frozen=True)
class Retired:
    """The home of a table that is not live, no longer declared or superseded, and the kept `editions` that have it.

    `drops`: it may be dropped, for readers see none of them.
    """

    place: Place
    editions: tuple[int, ...]
    drops: bool

    @property
    def fate(self) -> str:
        """What dropping retired tables would do to it."""
        if not self.drops:
            return f"cannot be dropped: edition {self.editions[-1]} has it; publish an edition without it first"
        if self.editions:
            return f"would be dropped, together with the editions that have it: {told(self.editions)}"
        return "would be dropped; no edition has it"


def retired(project: Project) -> list[Retired]:
    """The tables that are there and not live."""
    settings, needed = project.settings, Needed.now(project)
    seen = {shown.number for shown in (editions.current_edition(settings), editions.latest_edition(settings)) if shown}
    homes = [place for place in places(settings) if place.kind == "table" and place.path not in needed.homes]
    having = [tuple(sorted(needed.by_editions(place.path))) for place in homes]
    return [Retired(place, numbers, not seen & {*numbers}) for place, numbers in zip(homes, having, strict=True)]
