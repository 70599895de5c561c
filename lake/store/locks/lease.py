"""Hold the lease of a log, a table or a ledger table while a block runs, in a folder or in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import get_ident
from typing import Final

from filelock import FileLock, Timeout

from lake.config import Settings
from lake.session import file_modes
from lake.store.locks import FolderLeases, Lease, LeaseHeld, Leases, activity
from lake.store.locks.bucket_leases import BucketLeases
from lake.store.recovery import set_truncated_aside
from lake.store.storage import Storage
from lake.store.table_logs import holding
from lake.store.warehouse import Warehouse

_held: Final[dict[tuple[int, Path, str], Lease]] = {}
_bucket_leases: Final[dict[tuple[FolderLeases, Storage], BucketLeases]] = {}  # one for each warehouse, for its thread


@contextmanager
def lease(
    settings: Settings, name: str, *, seconds: float | None = None, commits: bool = True, hosts: bool = True
) -> Iterator[Lease]:
    """Hold the lease `name` while the block runs. Re-entrant in a thread. First set a truncated commit aside.

    In a bucket, other hosts are kept out too if the block `commits`. Without `hosts` they are not: of two hosts that
    commit, one fails. Raises LeaseHeld after `seconds` of waiting, by default `settings.lease_seconds`.
    """
    key = (get_ident(), settings.warehouse_path, name)
    if outer := _held.get(key):
        yield outer
        return
    among_hosts, machine = leases(settings), FolderLeases(file_modes.locks(settings))
    activity.join(settings)
    chosen = among_hosts if commits and hosts else machine
    held = _held[key] = chosen.acquire(name, seconds=settings.lease_seconds if seconds is None else seconds)
    try:
        tables = [location.path for location in Warehouse(settings).leased(name)]
        for path in tables:
            set_truncated_aside(path)
        # A commit to a bucket on top of an old version is refused; in a folder only the lock prevents it.
        with holding(tables) if hosts or among_hosts == machine else nullcontext():
            yield held
    finally:
        del _held[key]
        held.release()


def must_hold(settings: Settings, name: str) -> None:
    """Raise Unavailable if another host may hold a lease of this thread, which then must not delete files."""
    _held[get_ident(), settings.warehouse_path, name].must_hold()


def leases(settings: Settings) -> Leases:
    machine = FolderLeases(settings.warehouse_path / "locks")
    folder = Warehouse(settings).root / "locks"
    if not folder.storage.is_remote:
        return machine
    return _bucket_leases.setdefault((machine, folder.storage), BucketLeases(folder, machine))


def clear_dead_holders(settings: Settings, *, dry_run: bool) -> list[Path]:
    dead = []
    for file in sorted(settings.warehouse_path.glob("locks/*.holder")):
        with suppress(Timeout, LeaseHeld):
            FileLock(file.with_suffix(".lock")).acquire(timeout=0).lock.release()
            if not dry_run:
                with lease(settings, file.stem, seconds=0):
                    pass
            dead.append(file)
    return dead
