"""`lake backup`: a copy of the warehouse, taken while others write, in which persons forgotten later are unreadable.

Every Delta table is copied at one version, before all that it refers to: editions before the tables that they name, a
table before its inputs, cuts after the tables at them, logs last. The copy may lack only what a crash would lose.

Personal data is in it only encrypted: the key store and tables with persons in clear are not copied, and quarantined
records of their streams are copied without their text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError, full
from lake.ingest.field_encryption import BLANKED
from lake.project.project import Project
from lake.store.damage import damages
from lake.store.keys import copy_store, has_store, restore_store
from lake.store.ledger.editions import kept_editions
from lake.store.ledger.runs import WAREHOUSE, recording
from lake.store.storage import Address
from lake.store.upkeep.copy import copy_archived, copy_blanked, copy_table
from lake.store.warehouse import Location, Warehouse

BEFORE_TABLES: Final = ("editions", "numbers", "checks", "runs")
AFTER_TABLES: Final = ("cuts", "voids", "erasures", "landed")
AFTER_LOGS: Final = ("contracts",)
NOT_COPIED: Final = ("consumers",)
"""The editions of consumers do not apply to a restored warehouse: consumers begin with a snapshot."""

NOTE: Final = "backup.json"
"""List of the copied tables; written last, so a copy without it is incomplete."""


@dataclass(frozen=True)
class Backup:
    """`tables` are folders in the warehouse, with Delta versions. The first run after a restore builds `left_out`."""

    folder: str
    begun_at: datetime
    tables: dict[str, int]
    left_out: list[str]
    keys: bool


def backup(project: Project, folder: Path, *, keys: Path | None, on_progress: Callable[[str], None]) -> Backup:
    """Copy the warehouse into `folder`, which must be empty or absent, and the key store into the file `keys`.

    Raises DeclarationError if one of them exists or is inside the other, StorageError if a table is damaged,
    Unavailable if a disk is full or the past of a table is ended meanwhile. Then the copy is removed.
    """
    with recording(project.settings, "backup", WAREHOUSE) as counts:
        done = _backup(project, folder, keys, on_progress)
        counts["tables"] = len(done.tables)
    return done


def _backup(project: Project, folder: Path, keys: Path | None, on_progress: Callable[[str], None]) -> Backup:
    began = datetime.now(UTC)
    _check_targets(project, folder, keys)
    if damaged := next(damages(project.settings, quickly=True), None):
        raise damaged.fault
    root = Address(str(folder / "warehouse"))
    tables: dict[str, int] = {}
    left_out: list[str] = []
    try:
        for location in _in_order(project, left_out):
            name = location.path.relative_to(Warehouse(project.settings).root)
            if location.kind == "quarantine" and _has_people(project, location):
                version = copy_blanked(location, root / name, BLANKED)
            else:
                version = copy_table(location, root / name)
            if location.kind == "log" and version is not None:
                version = copy_archived(location, root / name) or version
            if version is not None:
                tables[name] = version
                on_progress(f"copied  {name} at version {version}")
        if not tables:
            raise DeclarationError(
                "there is nothing to back up yet", where=project.settings.warehouse_name, fix="lake run"
            )
        if keys is not None:
            copy_store(project.settings, keys)
        done = Backup(str(folder), began, tables, left_out, keys is not None)
        (folder / NOTE).write_text(json.dumps(asdict(done), default=str, indent=2) + "\n", "utf-8")
    except BaseException as error:
        shutil.rmtree(folder / "warehouse", ignore_errors=True)
        raise (full(error, where=str(folder)) if isinstance(error, Exception) else None) or error from None
    return done


@dataclass(frozen=True)
class RestoredKeys:
    """`people` have or had a key, by stream."""

    id: str
    where: str
    people: dict[str, int]


def restore_keys(settings: Settings, file: Path) -> RestoredKeys:
    """Create the project's key store, as the setting `keys` says, from the copy in `file`.

    Raises DeclarationError if there is one, or `file` is missing or damaged, Unavailable if a disk is full or the
    database does not respond. Then there is no store.
    """
    store = restore_store(settings, file)
    return RestoredKeys(store.id, store.home.where, store.people())


def _check_targets(project: Project, folder: Path, keys: Path | None) -> None:
    warehouse = project.settings.warehouse_path
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "the folder is not empty" if folder.is_dir() else "this is not a folder"
        raise DeclarationError(what, where=str(folder), fix="name a new or empty folder for each backup")
    if folder.resolve().is_relative_to(warehouse):
        raise DeclarationError("a backup cannot be within the warehouse", where=str(folder), fix="name another folder")
    if keys is None:
        return
    if not has_store(project.settings):
        raise DeclarationError("there is no key store", where=project.settings.keys_name, fix="leave out --keys")
    if keys.exists():
        raise DeclarationError(
            "the file exists already", where=str(keys), fix="name a new file, and delete the old copy then"
        )
    if keys.resolve().is_relative_to(folder.resolve()):
        raise DeclarationError(
            "whoever has the backup and the keys can read everything",
            where=str(keys),
            fix="name a file elsewhere, best on another machine",
        )


def _in_order(project: Project, left_out: list[str]) -> Iterator[Location]:
    warehouse = Warehouse(project.settings)
    last = {*AFTER_TABLES, *AFTER_LOGS, *NOT_COPIED}
    others = (book.name for book in warehouse.folders("book") if book.name not in {*BEFORE_TABLES, *last})
    yield from map(warehouse.book, (*BEFORE_TABLES, *others))
    yield from _tables(project, left_out)
    yield from map(warehouse.book, AFTER_TABLES)
    yield from warehouse.folders("log", "quarantine", "redeliveries")
    yield from map(warehouse.book, AFTER_LOGS)


def _tables(project: Project, left_out: list[str]) -> Iterator[Location]:
    """Yield the homes of derived tables that editions have or that are live, each before its inputs."""
    warehouse = Warehouse(project.settings)
    editions = kept_editions(project.settings)
    for declaration in reversed(list(project.tables.values())):
        live = project.table(declaration).home
        if project.is_personal(declaration):
            left_out.append(declaration.name)
            continue
        paths = {edition.tables[declaration.name].path for edition in editions if declaration.name in edition.tables}
        for path in sorted(paths | {f"{declaration.layer}/{live}"}):
            layer, _, home = path.rpartition("/")
            yield warehouse.table(layer, home)


def _has_people(project: Project, location: Location) -> bool:
    contract = project.contracts.get(location.name)
    return contract is None or bool(contract.sealed)  # records of an undeclared stream may name people
