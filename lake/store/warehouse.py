"""Where everything of a project's warehouse is: the folders of its Delta tables, and the names they are written under.

logs/STREAM  quarantine/STREAM  redeliveries/STREAM  silver/TABLE  gold/TABLE  meta/BOOK  manifests/EDITION.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from lake.config import Settings
from lake.store.storage import Address
from lake.store.view import names_in

LAYERS: Final = ("silver", "gold")
Kind = Literal["log", "quarantine", "redeliveries", "table", "book"]
FOLDERS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "log": ("logs",),
    "quarantine": ("quarantine",),
    "redeliveries": ("redeliveries",),
    "table": LAYERS,
    "book": ("meta",),
}
KINDS: Final = tuple(FOLDERS)
WRITTEN_AS: Final[Mapping[Kind, str]] = {
    "log": "log",
    "quarantine": "log",
    "redeliveries": "log",
    "table": "table",
    "book": "meta",
}
"""What leases and app ids begin with: who writes a log writes what stands beside it too."""


@dataclass(frozen=True)
class Location:
    """Where one Delta table of a warehouse is; it may not exist yet."""

    kind: Kind
    path: Address

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def lease(self) -> str:
        """Return the name of the lease that its only writer holds."""
        name = "editions" if (self.kind, self.name) == ("book", "numbers") else self.name
        return f"{WRITTEN_AS[self.kind]}.{name}"

    @property
    def app(self) -> str:
        """The app id under which its commits are numbered."""
        return f"{WRITTEN_AS[self.kind]}:{self.name}"

    @property
    def has_positions(self) -> bool:
        """Whether its commits carry positions."""
        return self.kind in {"log", "table"}


@dataclass(frozen=True)
class Warehouse:
    """The warehouse that `settings` name."""

    settings: Settings

    @property
    def root(self) -> Address:
        if self.settings.store:
            from lake.store.storage import object_store

            return object_store.root(self.settings)
        return Address(str(self.settings.warehouse_path))

    @property
    def cold(self) -> Address | None:
        """Where the batches of logs are archived, see lake.store.archive_tier; None where no setting says so."""
        return self.root.at(self.settings.cold_name) if self.settings.cold_name else None

    def log(self, stream: str) -> Location:
        """The log of a stream."""
        return self._location("log", "logs", stream)

    def quarantine(self, stream: str) -> Location:
        """The quarantine of a stream."""
        return self._location("quarantine", "quarantine", stream)

    def redeliveries(self, stream: str) -> Location:
        """The re-deliveries of a stream."""
        return self._location("redeliveries", "redeliveries", stream)

    def beside(self, stream: str) -> tuple[Location, Location]:
        """What stands beside the log of a stream: its quarantine, its re-deliveries."""
        return self.quarantine(stream), self.redeliveries(stream)

    def table(self, layer: str, home: str) -> Location:
        """The derived table in the folder `home` of a layer."""
        return self._location("table", layer, home)

    def book(self, name: str) -> Location:
        """A book of the ledger."""
        return self._location("book", "meta", name)

    def manifest(self, number: int) -> Address:
        """What the edition of this number consists of, of a warehouse in a store."""
        return self.root / "manifests" / f"{number}.json"

    def leased(self, lease: str) -> list[Location]:
        """The tables that are written under a lease; those of a derived table in each layer, which its name lacks."""
        name = lease.partition(".")[2]
        tables = (self.table(layer, name) for layer in LAYERS)
        locations = [self.log(name), *self.beside(name), *tables, self.book(name), self.book("numbers")]
        return [location for location in locations if location.lease == lease]

    def folders(self, *kinds: Kind) -> Iterator[Location]:
        """The folders that are there for tables of such `kinds`, every home of a derived one."""
        folders = [(kind, self.root / name) for kind in kinds for name in FOLDERS[kind]]
        for (kind, folder), names in zip(folders, names_in([folder for _, folder in folders]), strict=True):
            yield from (Location(kind, folder / name) for name in sorted(names) if not name.startswith("."))

    def _location(self, kind: Kind, folder: str, name: str) -> Location:
        return Location(kind, self.root / folder / name)
