"""One writer at a time per log and table: an operating-system lock, let go by the kernel when its process dies.

Beside each lock that is held lies a file that says who holds it, for the message to those that wait. Of a warehouse in
a store, to which other hosts may write, the lease is held there besides: lake.store.locks.epochs.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from lake import file_modes
from lake.config import Settings
from lake.errors import Busy
from lake.store.locks import activity, epochs
from lake.store.recovery import put_aside
from lake.store.table_logs import holding
from lake.store.warehouse import Warehouse

NOUNS: Final = {
    "log": "the log of",
    "table": "the table",
    "meta": "the ledger of",
    "source": "the source",
    "consumer": "consumer",
    "archive": "the archive of",
}
DOING: Final = {"consumer": "is being read for"}
QUIETLY: Final = 1.0  # seconds of waiting that nobody need hear of


@contextmanager
def lease(
    settings: Settings, name: str, *, seconds: float | None = None, commits: bool = True, hosts: bool = True
) -> Iterator[None]:
    """Holds the lease `name` (e.g. `log.flights`, `table.carrier_daily`, `meta.cuts`) while the block runs.

    First takes away a commit that was cut short. Without `hosts`, processes of other machines are not kept out: of two
    that commit, one fails. Re-entrant within a process and thread. Raises Unavailable when another writer keeps it
    longer than `seconds`, by default `settings.lease_seconds`; that of another host, as long as it gives signs of life.
    """
    folder = file_modes.locks(settings)
    activity.join(settings)
    file, holder = folder / f"{name}.lock", folder / f"{name}.holder"
    lock = FileLock(file, is_singleton=True)
    seconds = settings.lease_seconds if seconds is None else seconds
    try:
        _acquire(lock, name, holder, seconds=seconds)
    except Timeout:
        raise _held(name, _read(holder), str(file), seconds) from None
    try:
        if lock.lock_counter == 1:
            last = _read(holder)  # left only by a holder that died
            note = {"pid": os.getpid(), "command": _command(), "since": _now()}
            if settings.store and commits and hosts:
                note["epoch"] = _epoch(settings, name, note, seconds, last).number
            for location in Warehouse(settings).leased(name):
                put_aside(location.path)
            holder.write_text(json.dumps(note))
        # A commit to a bucket on top of an old version is refused; in a folder only the lock prevents it.
        alone = hosts or not settings.store
        with holding(location.path for location in Warehouse(settings).leased(name)) if alone else nullcontext():
            yield
    finally:
        if lock.lock_counter == 1:
            holder.unlink(missing_ok=True)
            epochs.let_go(settings, name)
        lock.release()


def _epoch(
    settings: Settings, name: str, note: Mapping[str, Any], seconds: float, last: Mapping[str, Any]
) -> epochs.Epoch:
    """The lease of several hosts, held. `last` is what the last holder on this one left, if it died."""
    told = {"host": platform.node(), **note}
    try:
        return epochs.take(settings, name, told, seconds=seconds, dead=last.get("epoch"))
    except epochs.Held as held:
        raise _held(name, held.note, settings.store, seconds) from None


def _held(name: str, note: Mapping[str, Any], where: str, seconds: float) -> Busy:
    return Busy(
        f"{_as_text(name)} {DOING.get(name.partition('.')[0], 'is being written')} by {_holder(note)}",
        where=where,
        fix=f"try again when it is done, or stop it (waited {seconds:g} s; setting lease_seconds)",
    )


def _acquire(lock: FileLock, name: str, holder: Path, *, seconds: float) -> None:
    """Takes the lock within `seconds`, else raises Timeout; says what it waits for."""
    try:
        lock.acquire(timeout=min(QUIETLY, seconds))
    except Timeout:
        if seconds <= QUIETLY:
            raise
        logging.getLogger("lake").warning("waiting for %s, held by %s", _as_text(name), _holder(_read(holder)))
        lock.acquire(timeout=seconds - QUIETLY)


def forget_the_dead(settings: Settings, *, dry_run: bool) -> list[Path]:
    """Mends what processes that died have left, and removes the files that say who holds their locks."""
    dead = []
    for holder in sorted(_folder(settings).glob("*.holder")):
        with suppress(Timeout, Busy):
            with FileLock(holder.with_suffix(".lock"), is_singleton=True).acquire(timeout=0):
                pass
            if not dry_run:
                with lease(settings, holder.stem, seconds=0):
                    pass
            dead.append(holder)
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


def _read(file: Path) -> Mapping[str, Any]:
    """What the holder of a lease has said of itself; nothing, where nobody holds it or that cannot be read."""
    with suppress(OSError, ValueError):
        note = json.loads(file.read_text())
        return note if isinstance(note, dict) else {}
    return {}


def _holder(note: Mapping[str, Any]) -> str:
    host = f" on {note['host']}" if note.get("host", platform.node()) != platform.node() else ""
    try:
        return f"`{note['command']}`{host} (pid {note['pid']}, since {note['since']})"
    except KeyError:
        return "another process"
