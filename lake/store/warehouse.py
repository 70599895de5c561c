"""Layout of a warehouse: the folders of its Delta tables, and the names of their leases and app ids.

logs/STREAM  quarantine/STREAM  redeliveries/STREAM  silver/TABLE  gold/TABLE  meta/BOOK  manifests/EDITION.json
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal

from lake.config import Settings
from lake.store.storage import Address, address_of
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
"""Prefix of leases and app ids: the writer of a log also writes the tables beside it."""


@dataclass(frozen=True)
class Location:
    kind: Kind
    path: Address

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @cached_property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def lease(self) -> str:
        name = "editions" if (self.kind, self.name) == ("book", "numbers") else self.name
        return f"{WRITTEN_AS[self.kind]}.{name}"

    @cached_property
    def app(self) -> str:
        return f"{WRITTEN_AS[self.kind]}:{self.name}"


class Located(ABC):
    """A log or a derived table."""

    @property
    @abstractmethod
    def location(self) -> Location: ...

    @property
    def path(self) -> Address:
        return self.location.path

    @property
    def app(self) -> str:
        return self.location.app

    @property
    def lease(self) -> str:
        return self.location.lease


@dataclass(frozen=True)
class Warehouse:
    settings: Settings

    @cached_property
    def root(self) -> Address:
        return address_of(self.settings, self.settings.warehouse)

    @property
    def cold(self) -> Address | None:
        """Place of archived batches, see lake.store.archive_tier; None without the setting."""
        return None if self.settings.cold is None else self.root.at(self.settings.place(self.settings.cold))

    def log(self, stream: str) -> Location:
        return _located(self.settings, "log", "logs", stream)

    def quarantine(self, stream: str) -> Location:
        return _located(self.settings, "quarantine", "quarantine", stream)

    def redeliveries(self, stream: str) -> Location:
        return _located(self.settings, "redeliveries", "redeliveries", stream)

    def beside(self, stream: str) -> tuple[Location, Location]:
        return self.quarantine(stream), self.redeliveries(stream)

    def table(self, layer: str, home: str) -> Location:
        return _located(self.settings, "table", layer, home)

    def book(self, name: str) -> Location:
        return _located(self.settings, "book", "meta", name)

    def manifest(self, number: int) -> Address:
        return self.root / "manifests" / f"{number}.json"

    def leased(self, lease: str) -> list[Location]:
        """Return the tables written under a lease; a derived table's in each layer: the lease does not name it."""
        writer, _, name = lease.partition(".")
        names = [name, "numbers"] if lease == "meta.editions" else [name]
        kinds = [kind for kind in KINDS if WRITTEN_AS[kind] == writer]
        homes = [(kind, folder) for kind in kinds for folder in FOLDERS[kind]]
        return [_located(self.settings, kind, folder, each) for kind, folder in homes for each in names]

    def folders(self, *kinds: Kind) -> Iterator[Location]:
        folders = [(kind, self.root / name) for kind in kinds for name in FOLDERS[kind]]
        for (kind, folder), names in zip(folders, names_in([folder for _, folder in folders]), strict=True):
            yield from (Location(kind, folder / name) for name in sorted(names) if not name.startswith("."))


@lru_cache(maxsize=1024)
def _located(settings: Settings, kind: Kind, folder: str, name: str) -> Location:
    return Location(kind, Warehouse(settings).root / f"{folder}/{name}")
