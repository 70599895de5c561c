"""This process at work on a project: others see that it is there, and what it fails with is told as a fault."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import duckdb

from lake import duck, file_modes, s3
from lake.config import Settings, load_settings
from lake.errors import DELETED, EXPIRED, LakeError, Unavailable, forbidden, full, unreached
from lake.session import first_line, lost
from lake.store.locks import activity

SWITCH: Final = 0.0005
"""Seconds after which a thread that computes lets another have its turn: answers of a store are waited for beside it,
and one that finds Python's lock taken waits that long, at each request.
"""


def begin(project: Path | None, command: str) -> Settings:
    """The settings of `project` (else of the nearest one above the current folder), for a `command` that now begins.

    Until it ends, `lake maintain` keeps what it may read; what it writes is for those whom the settings allow.
    Raises DeclarationError where the settings are wrong.
    """
    settings = load_settings(project)
    sys.setswitchinterval(SWITCH)
    file_modes.begin(settings)
    duck.bound(settings.client_memory, settings.path(".lake"))
    activity.begin(settings, command)
    return settings


def end() -> None:
    """Ends what `begin` began. Without it, the process's exit does."""
    activity.end()


def fault_of(error: BaseException, settings: Settings | None) -> LakeError | None:
    """What `error`, of whatever library, is: a session that is gone, a full disk, a storage that does not answer.

    Damage is looked for in the warehouse of `settings`, where these are known. None if unexpected.
    """
    if isinstance(error, LakeError):
        return error
    where = settings.warehouse_name if settings else ""
    disk = full(error, where=where) or forbidden(error, where=where)
    known = lost(error) or s3.fault(error) or disk or _of_system(error) or _beyond(error, settings)
    return known or _damage(error, settings) or _deleted(error) or unreached(error, where=where)


def _of_system(error: BaseException) -> LakeError | None:
    """A fault of the operating system that names a file."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return Unavailable(
        f"{error.strerror or 'a file cannot be read or written'}",
        where=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | Path) else str(error.filename),
        fix="check that it exists, that this user may read and write it and that the disk has room; then try again",
    )


def _beyond(error: BaseException, settings: Settings | None) -> LakeError | None:
    """A fault of DuckDB that what it cannot put on the disk is more than it may hold."""
    if not isinstance(error, duckdb.OutOfMemoryException) or settings is None:
        return None
    return LakeError(
        f"client_memory, {settings.client_memory:,} bytes, is not enough here: {first_line(error)}",
        where=str(settings.project / "pyproject.toml"),
        fix="allow more by that setting, or by LAKE_CLIENT_MEMORY; committed work is kept",
    )


def _deleted(error: BaseException) -> LakeError | None:
    """A fault of delta-rs or Spark that a file is gone which the newest state of no table needs."""
    if not DELETED.search(str(error)):
        return None
    return Unavailable(f"a file that was being read was deleted: {first_line(error)}", fix=EXPIRED)


def _damage(error: BaseException, settings: Settings | None) -> LakeError | None:
    from lake.store.damage import blamed

    return blamed(settings, error) if settings else None
