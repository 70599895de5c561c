"""Copies of Delta tables, file by file, taken while others write: a copy is the table at one version."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import Final

from lake.errors import Unavailable
from lake.store import archive_tier, delta, delta_writer, duckdb_tables, quarantine
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.upkeep import archive_parts
from lake.store.warehouse import Location

OF_LOG: Final = re.compile(r"_delta_log/(\d{20})\.(?:json|checkpoint(?:\..+)?\.parquet)")
"""Commits and checkpoints of a table; other files of a log are not needed to read the table."""


def copy_table(location: Location, target: Address) -> int | None:
    """Copy the newest version, with the versions before, to the folder `target`; return the version.

    None if there is no table. The caller is registered as active, so that files of the version are not vacuumed
    meanwhile. Raises Unavailable if the table's past is ended nevertheless, as `lake forget` does.
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


def copy_archived(location: Location, target: Address) -> int | None:
    """Copy the archived parts of the log, of which `target` is a copy, into the warehouse of `target`.

    Returns the version of the copy that names them there; None if nothing was archived.
    """
    parts = archive_tier.parts_of(target)
    if not parts:
        return None
    inside = []
    for part in parts:
        at = part.path(location.path)
        place = f"{archive_tier.FOLDER}/{location.name}/{at.name}"
        copy_table(replace(location, path=at), target.parent.parent / place)
        inside.append(replace(part, place=place))
    archive_parts.commit(replace(location, path=target), inside)
    return delta.version(target)


def copy_blanked(location: Location, target: Address, detail: str) -> int | None:
    """Copy a quarantine as `copy_table` does, with each detail replaced by `detail` and without texts."""
    if not delta.exists(location.path):
        return None
    import pyarrow as pa

    version = delta.version(location.path)
    blank = {"raw": "", "detail": detail}
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
