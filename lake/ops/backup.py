"""`lake backup`: a copy of the warehouse, taken while others write, in which persons forgotten later are unreadable.

Every Delta table is copied at one version, before all that it refers to: editions before the tables that they name, a
table before its inputs, cuts after the tables at them, logs last. The copy may lack only what a crash would lose.

Personal data is in it only encrypted: the key store and tables with persons in clear are not copied, and quarantined
records of their streams are copied without their text.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.contracts import declared_files
from lake.errors import DeclarationError, Unavailable, full
from lake.ingest.field_encryption import BLANKED
from lake.lazy import pa
from lake.progress import OnProgress
from lake.project.project import Project
from lake.session import file_modes
from lake.store import archive_tier, delta, delta_writer, duckdb_tables, quarantine
from lake.store.damage import damages
from lake.store.keys import copied_store, has_store, restore_store
from lake.store.ledger import editions, sent
from lake.store.ledger.runs import WAREHOUSE, failing, recording
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.upkeep import archive_parts
from lake.store.warehouse import Location, Warehouse

BEFORE_TABLES: Final = ("editions", "numbers", "checks", "runs")
AFTER_TABLES: Final = ("cuts", "voids", "erasures", "landed")
AFTER_LOGS: Final = ("contracts",)
NOT_COPIED: Final = ("consumers",)
"""The editions of consumers do not apply to a restored warehouse: consumers begin with a snapshot."""

OF_LOG: Final = re.compile(r"_delta_log/(\d{20})\.(?:json|checkpoint(?:\..+)?\.parquet)")
"""Commits and checkpoints of a table; other files of a log are not needed to read the table."""
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


def backup(project: Project, folder: Path, *, keys: Path | None, on_progress: OnProgress) -> Backup:
    """Copy the warehouse into `folder`, which must be empty or absent, and the key store into the file `keys`.

    Raises DeclarationError if `folder` or `keys` is within the warehouse, `keys` exists or is within `folder`, or there
    is no key store; StorageError if a table is damaged; Unavailable if a disk is full or the past of a table is ended
    meanwhile. Then the copies of the warehouse and of the keys are removed.
    """
    with failing(project.settings, "backup", WAREHOUSE, but=DeclarationError):
        _check_targets(project, folder, keys)
    with recording(project.settings, "backup", WAREHOUSE) as counts:
        done = _backup(project, folder, keys, on_progress)
        counts["tables"] = len(done.tables)
    return done


def _backup(project: Project, folder: Path, keys: Path | None, on_progress: OnProgress) -> Backup:
    began = datetime.now(UTC)
    if damaged := next(damages(project.settings, quickly=True), None):
        raise damaged.fault
    root = Address(str(folder / "warehouse"))
    tables: dict[str, int] = {}
    left_out: list[str] = []
    try:
        for location in _in_order(project, left_out):
            name = location.path.relative_to(Warehouse(project.settings).root)
            if location.kind == "quarantine" and _has_people(project, location):
                version = _copy_blanked(location, root / name)
            else:
                version = _copy_table(location, root / name)
            if location.kind == "log" and version is not None:
                version = _copy_archived(location, root / name) or version
            if version is not None:
                tables[name] = version
                on_progress(f"copied  {name} at version {version}")
        if not tables:
            raise DeclarationError(
                "there is nothing to back up yet",
                where=project.settings.place(project.settings.warehouse),
                fix="lake run",
            )
        tables |= {name: delta.version(root / name) for name in _continue_elsewhere(project, folder / "warehouse")}
        done = Backup(str(folder), began, tables, left_out, keys is not None)
        with copied_store(project.settings, keys) if keys is not None else nullcontext():
            (folder / NOTE).write_text(json.dumps(asdict(done), default=str, indent=2) + "\n", "utf-8")
    except BaseException as error:
        shutil.rmtree(folder / "warehouse", ignore_errors=True)
        (folder / NOTE).unlink(missing_ok=True)
        raise (full(error, where=str(folder)) if isinstance(error, Exception) else None) or error from None
    return done


def _continue_elsewhere(project: Project, folder: Path) -> list[str]:
    """Let the copy give its editions and deliveries numbers of their own; return the tables that it changed."""
    copy = replace(project.settings, warehouse=str(folder.resolve()))
    editions.continue_elsewhere(copy)
    sent.continue_elsewhere(copy, declared_files.sinks(project.settings).names)
    paths = [Warehouse(copy).book(name).path for name in ("numbers", "sent")]
    return [path.relative_to(Warehouse(copy).root) for path in paths if delta.exists(path)]


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
    file_modes.check_new_or_empty(folder)
    file_modes.check_outside_of_warehouse(project.settings, folder)
    if keys is None:
        return
    file_modes.check_outside_of_warehouse(project.settings, keys)
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
    kept = editions.kept_editions(project.settings)
    for declaration in reversed(list(project.tables.values())):
        live = project.table(declaration).home
        if project.is_personal(declaration):
            left_out.append(declaration.name)
            continue
        paths = {edition.tables[declaration.name].path for edition in kept if declaration.name in edition.tables}
        for path in sorted(paths | {f"{declaration.layer}/{live}"}):
            layer, _, home = path.rpartition("/")
            yield warehouse.table(layer, home)


def _has_people(project: Project, location: Location) -> bool:
    contract = project.contracts.get(location.name)
    return contract is None or bool(contract.sealed)  # records of an undeclared stream may name people


def _copy_table(location: Location, target: Address) -> int | None:
    """Copy the newest version, with those before, to `target`; return the version, None if there is no table.

    The caller is registered as active, so that its files are not vacuumed meanwhile. Raises Unavailable if the table's
    past is ended nevertheless, as `lake forget` does.
    """
    source = location.path
    if not delta.exists(source):
        return None
    version = delta.version(source)
    names = [entry.name for entry in source.list(deep=True)]
    for name in names:
        commit = OF_LOG.fullmatch(name)
        if int(commit[1]) <= version if commit else "_delta_log/" not in name:
            _copy_file(source / name, target / name)
    copied = delta.open_table(target)
    if copied is None or copied.version() != version or target.missing(delta.files(copied)):
        raise Unavailable(f"{location} was purged while it was copied", where=str(source), fix="try again")
    return version


def _copy_archived(location: Location, target: Address) -> int | None:
    """Copy the archived parts of the log, of which `target` is a copy, into the warehouse of `target`.

    Return the version of the copy that names them there; None if nothing was archived.
    """
    parts = archive_tier.parts_of(target)
    if not parts:
        return None
    inside = []
    for part in parts:
        at = part.path(location.path)
        place = f"{archive_tier.FOLDER}/{location.name}/{at.name}"
        _copy_table(replace(location, path=at), target.parent.parent / place)
        inside.append(replace(part, place=place))
    archive_parts.commit(replace(location, path=target), inside)
    return delta.version(target)


def _copy_blanked(location: Location, target: Address) -> int | None:
    """Copy a quarantine as `_copy_table` does, without texts and with each detail blanked."""
    if not delta.exists(location.path):
        return None
    version = delta.version(location.path)
    blank = {"raw": "", "detail": BLANKED}
    rows = Scan(location.path, version).arrow([name for name in quarantine.COLUMNS if name not in blank])
    columns = {name: pa.array([text] * rows.num_rows, pa.string()) for name, text in blank.items()}
    columns |= {name: rows.column(name) for name in rows.column_names}
    duckdb_tables.append(target, quarantine.SCHEMA, [])
    delta_writer.add(target, pa.table({name: columns[name] for name in quarantine.COLUMNS}))
    return version


def _copy_file(source: Address, target: Address) -> None:
    """The check of the copy finds a file that was deleted since it was listed."""
    target.local.parent.mkdir(parents=True, exist_ok=True)
    try:
        with source.open() as file, target.local.open("xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    except FileNotFoundError:
        target.local.unlink(missing_ok=True)
