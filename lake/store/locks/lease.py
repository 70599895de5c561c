"""One writer at a time per log and table: an operating-system lock, let go by the kernel when its process dies.

Beside each lock that is held lies a file that says who holds it, for the message to those that wait.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from lake import file_modes, remote
from lake.config import Settings
from lake.errors import Unavailable
from lake.session import gone
from lake.store.locks import activity
from lake.store.recovery import mend
from lake.store.warehouse import Warehouse

NOUNS: Final = {
    "log": "the log of",
    "table": "the table",
    "meta": "the ledger of",
    "source": "the source",
    "consumer": "consumer",
}
DOING: Final = {"consumer": "is being read for"}
QUIETLY: Final = 1.0  # seconds of waiting that nobody need hear of


@contextmanager
def lease(settings: Settings, name: str, *, seconds: float | None = None, commits: bool = True) -> Iterator[None]:
    """Holds the lease `name` (e.g. `log.flights`, `table.carrier_daily`, `meta.cuts`) while the block runs.

    First repairs what a dead holder left, by lake.store.recovery; who `commits` nothing leaves the fence to the next
    who does.
    Re-entrant within a process and thread. Raises Unavailable when another writer keeps it longer than `seconds`, by
    default `settings.lease_seconds`.
    """
    folder = file_modes.locks(settings)
    activity.join(settings)
    file, holder = folder / f"{name}.lock", folder / f"{name}.holder"
    lock = FileLock(file, is_singleton=True)
    seconds = settings.lease_seconds if seconds is None else seconds
    try:
        _acquire(lock, name, holder, seconds=seconds)
    except Timeout:
        raise Unavailable(
            f"{_as_text(name)} {DOING.get(name.partition('.')[0], 'is being written')} by {_holder(holder)}",
            where=str(file),
            fix=f"try again when it is done, or stop it (waited {seconds:g} s; setting lease_seconds)",
        ) from None
    ended = True  # else Spark may still be at what it was told to do
    try:
        if lock.lock_counter == 1:
            died = holder.exists()
            ended = not died
            if died and any(location.by_spark for location in Warehouse(settings).leased(name)):
                remote.interrupt(settings, _session(holder))
            _mend(settings, name, died=died and commits)
            ended = commits or not died
            note = {"pid": os.getpid(), "command": _command(), "since": _now(), "session": remote.session_id()}
            holder.write_text(json.dumps(note))
        yield
    except BaseException as error:
        ended = ended and not (commits and (gone(error) or not isinstance(error, Exception)))
        raise
    finally:
        if lock.lock_counter == 1 and ended:
            holder.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, name: str, holder: Path, *, seconds: float) -> None:
    """Takes the lock within `seconds`, else raises Timeout; says what it waits for."""
    try:
        lock.acquire(timeout=min(QUIETLY, seconds))
    except Timeout:
        if seconds <= QUIETLY:
            raise
        logging.getLogger("lake").warning("waiting for %s, held by %s", _as_text(name), _holder(holder))
        lock.acquire(timeout=seconds - QUIETLY)


def _mend(settings: Settings, name: str, *, died: bool) -> None:
    for location in Warehouse(settings).leased(name):
        mend(location, died=died)


def forget_the_dead(settings: Settings, *, dry_run: bool) -> list[Path]:
    """Mends what processes that died have left, and removes the files that say who holds their locks."""
    dead = []
    for holder in sorted(_folder(settings).glob("*.holder")):
        try:
            with FileLock(holder.with_suffix(".lock"), is_singleton=True).acquire(timeout=0):
                dead.append(holder)
                if not dry_run:
                    _mend(settings, holder.stem, died=True)
                    holder.unlink(missing_ok=True)
        except Timeout:
            continue
    return dead


def _as_text(name: str) -> str:
    kind, _, subject = name.partition(".")
    return f"{NOUNS.get(kind, kind)} {subject}"


def _folder(settings: Settings) -> Path:
    return settings.warehouse_path / "locks"


def _command() -> str:
    """How this process was called: the program and its verb, and no value, which may be somebody's name."""
    program, *arguments = sys.argv
    return " ".join([Path(program).name, *(verb for verb in arguments[:1] if verb.isalpha())])


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _session(file: Path) -> str:
    """By what a Spark Connect server knows the session of who held a lease; what is none where that is not told."""
    try:
        return str(json.loads(file.read_text())["session"])
    except (OSError, ValueError, TypeError, KeyError):
        return remote.session_id()


def _holder(file: Path) -> str:
    try:
        note = json.loads(file.read_text())
        return f"`{note['command']}` (pid {note['pid']}, since {note['since']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
