"""This process at work on a project: its registration, the faults behind its errors, and expected durations."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import duckdb

from lake.config import Settings, load_settings
from lake.errors import DELETED, EXPIRED, LakeError, Unavailable, forbidden, full, out_of_memory, unreached
from lake.session import duck, file_modes
from lake.session.spark_session import first_line, lost
from lake.store.locks import activity

SWITCH: Final = 0.0005
"""Seconds until a computing thread yields Python's lock: a thread waits that long after each response of a store."""


def begin(project: Path | None, command: str) -> Settings:
    """Begin `command`, and return the settings of `project` (default: the nearest one above the current folder).

    Until it ends, `lake maintain` keeps the files it may read. Its files have the permissions of the settings. Raises
    DeclarationError if the settings are wrong.
    """
    settings = load_settings(project)
    sys.setswitchinterval(SWITCH)
    file_modes.begin(settings)
    duck.bound(settings.client_memory, settings.path(".lake"))
    activity.begin(settings, command)
    return settings


def end() -> None:
    """Remove this process from the list of those at work. Its exit does so too."""
    activity.end()


@contextmanager
def end_signals_handled(handle: Callable[[int], object]) -> Iterator[None]:
    """Call `handle` with each SIGTERM and SIGINT while the block runs, instead of what handles them outside."""
    previous = {
        number: signal.signal(number, lambda number, _: handle(number)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def last_durations(settings: Settings, verb: str) -> Mapping[str, float]:
    from lake.store.ledger import runs

    with suppress(Exception):
        return {name: run.seconds for name, run in runs.last_runs(settings, verb, outcome="done").items()}
    return {}


def fault_of(error: BaseException, settings: Settings | None) -> LakeError | None:
    """Return the fault behind `error`, of any library, such as a lost session; None if it is unexpected.

    With `settings`, also search their warehouse for damage.
    """
    if isinstance(error, LakeError):
        return error
    where = settings.place(settings.warehouse) if settings else ""
    disk = full(error, where=where) or forbidden(error, where=where)
    storage = settings.object_storage if settings else None
    requested = storage.error_of(error) if storage else None
    known = lost(error) or requested or disk or _system_fault(error) or _out_of_memory(error, settings)
    return known or _damage(error, settings) or _deleted(error) or unreached(error, where=where)


def _system_fault(error: BaseException) -> LakeError | None:
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return Unavailable(
        error.strerror or "a file cannot be read or written",
        where=os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | Path) else str(error.filename),
        fix="check that it exists, that this user may read and write it and that the disk has room; then try again",
    )


def _out_of_memory(error: BaseException, settings: Settings | None) -> LakeError | None:
    if not isinstance(error, duckdb.OutOfMemoryException) or settings is None:
        return out_of_memory(error)
    return LakeError(
        f"client_memory, {settings.client_memory:,} bytes, is not enough here: {first_line(error)}",
        where=str(settings.project / "pyproject.toml"),
        fix="allow more by that setting, or by LAKE_CLIENT_MEMORY; committed work is kept",
    )


def _deleted(error: BaseException) -> LakeError | None:
    """Return the fault if a file is missing. The newest state of no table needs it: `_damage` found nothing."""
    if not DELETED.search(str(error)):
        return None
    return Unavailable(f"a file that was being read was deleted: {first_line(error)}", fix=EXPIRED)


def _damage(error: BaseException, settings: Settings | None) -> LakeError | None:
    from lake.store.damage import damage_behind

    return damage_behind(settings, error) if settings else None
