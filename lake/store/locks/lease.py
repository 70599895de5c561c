"""Hold the lease of a log, a table or a ledger table while a block runs, in a folder or in a bucket.

Hosts that share a warehouse in a bucket take numbered epochs. Clocks of hosts are never compared. `locks/NAME/` in the
bucket holds, for the newest epoch of a lease and those before it:

    00000007               holder of epoch 7, as JSON; written by put-if-absent
    00000007.beat00000012  twelfth renewal of epoch 7; the one before is deleted
    00000007.end           epoch 7 was released

A process takes the next number if the newest epoch was released, or if its newest file has been the same for EXPIRED
seconds of that process's own clock. So a holder that was paused for longer may be overtaken. If another has committed
since, its own commit fails. Before it deletes files, it calls `must_hold`.
"""

from __future__ import annotations

import atexit
import logging
import platform
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import get_ident
from time import sleep
from typing import Final

from filelock import FileLock, Timeout

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.session import file_modes
from lake.store.delta_writer import set_truncated_aside
from lake.store.locks import SILENT, FolderLease, FolderLeases, Holder, Lease, LeaseHeld, Leases, activity, report_wait
from lake.store.storage import Address, Entry, Storage
from lake.store.table_logs import holding
from lake.store.warehouse import Warehouse

BEAT: Final = 7.0  # seconds between two renewals
EXPIRED: Final = 30.0  # seconds without a renewal after which a holder counts as dead
LOOK: Final = 1.0  # seconds between two looks at a lease that is held
LISTED: Final = 1000  # files of leases that are prefetched at most
KEPT: Final = 600.0  # seconds by the store's clock that the files of an older epoch are kept
_FILE: Final = re.compile(r"\d{8}(\.end|\.beat\d{8})?")


def clock() -> float:
    """Return seconds that include the sleep of the machine, if the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True)
class NewestEpoch:
    """State of a lease: its newest epoch, that epoch's newest renewal, and names of files that may be deleted."""

    number: int = 0
    renewal: str = ""
    is_released: bool = True
    old: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> NewestEpoch:
        files = [entry for entry in entries if _FILE.fullmatch(entry.name)]
        if not files:
            return cls()
        name, newest = max(file.name[:8] for file in files), max(file.time for file in files)
        renewal = max((file.name for file in files if file.name.startswith(f"{name}.beat")), default="")
        is_released = any(file.name == f"{name}.end" for file in files)
        old = (file.name for file in files if file.name[:8] < name and file.time < newest - KEPT)
        return cls(int(name), renewal, is_released, tuple(old))


def newest_epoch(folder: Address) -> NewestEpoch:
    with suppress(FileNotFoundError):
        return NewestEpoch.of(folder.list())
    return NewestEpoch()


@dataclass(eq=False)
class BucketLease(Lease):
    """Last renewed at `alive`. `is_lost` if another host has overtaken it."""

    leases: BucketLeases
    machine: FolderLease
    folder: Address
    epoch: int
    alive: float
    renewals: int = 0
    is_lost: bool = False

    def renew(self) -> None:
        begun = clock()
        (self.folder / f"{self.epoch:08}.beat{self.renewals + 1:08}").put_if_absent(b"")
        if self.renewals:
            (self.folder / f"{self.epoch:08}.beat{self.renewals:08}").delete()
        self.renewals += 1
        self.is_lost = newest_epoch(self.folder).number != self.epoch
        self.alive = begun

    def must_hold(self) -> None:
        if self.is_lost or clock() - self.alive > EXPIRED - BEAT:
            what = f"this process was too long without a sign of life: another host may hold {self.folder.name}"
            raise Unavailable(what, where=str(self.folder), fix="run the command again")

    def release(self) -> None:
        self.leases.held.discard(self)
        try:
            (self.folder / f"{self.epoch:08}.end").put_if_absent(b"")
        except (LakeError, OSError) as error:  # then it expires
            logging.getLogger("lake").warning("the lease %s was not released: %s", self.folder.name, error)
        finally:
            self.machine.release()


@dataclass(eq=False)
class BucketLeases(Leases):
    """`machine` keeps out other processes of this host."""

    folder: Address
    machine: FolderLeases
    held: set[BucketLease] = field(default_factory=set)
    prefetched: dict[str, tuple[NewestEpoch, float]] = field(default_factory=dict)
    old: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    def acquire(self, name: str, *, seconds: float) -> BucketLease:
        """A host that shows no sign of life is waited for EXPIRED seconds, unless `seconds` is 0."""
        machine = self.machine.acquire(name, seconds=seconds)
        try:
            lease = self._next_epoch(name, machine, seconds)
        except BaseException:
            machine.release()
            raise
        machine.record(lease.epoch)
        self.held.add(lease)
        if self.thread is None or not self.thread.is_alive():
            self.thread = threading.Thread(target=self._renew, name="leases", daemon=True)
            self.thread.start()
            atexit.register(self.delete_old)
        return lease

    def _next_epoch(self, name: str, machine: FolderLease, seconds: float) -> BucketLease:
        before, since, begun, is_alive, is_reported = None, 0.0, clock(), False, False
        now, at = self.prefetched.pop(name, (NewestEpoch(is_released=False), 0.0))
        if now.is_released and begun - at <= EXPIRED and (lease := self._put_epoch(name, machine, now, at)):
            return lease
        while True:
            now, at = newest_epoch(self.folder / name), clock()
            if before != now:
                is_alive = is_alive or before is not None
                before, since = now, at
            if now.is_released or now.number == machine.dead.epoch or at - since >= EXPIRED:
                if lease := self._put_epoch(name, machine, now, at):
                    return lease
            elif at - begun >= (seconds if is_alive or not seconds else max(seconds, EXPIRED)):
                holder = Holder.read(self.folder / name / f"{now.number:08}")
                raise LeaseHeld(name, holder, where=str(self.folder.parent), seconds=seconds)
            else:
                if at - begun >= SILENT and not is_reported:
                    is_reported = True
                    report_wait(name, self.folder / name / f"{now.number:08}")
                sleep(LOOK)

    def _put_epoch(self, name: str, machine: FolderLease, newest: NewestEpoch, at: float) -> BucketLease | None:
        lease = BucketLease(self, machine, self.folder / name, newest.number + 1, alive=clock())
        holder = replace(machine.holder, host=platform.node())
        if not (lease.folder / f"{lease.epoch:08}").put_if_absent(holder.json.encode()):
            return None
        if clock() - at > EXPIRED and newest_epoch(lease.folder).number != lease.epoch:
            return None  # others have written the number, released it and deleted its files meanwhile
        self.old += [str(lease.folder / file) for file in newest.old]
        return lease

    def prefetch(self, kind: str) -> None:
        """For EXPIRED seconds leases that are free are acquired without another look."""
        files, at = defaultdict[str, list[Entry]](list), clock()
        with suppress(FileNotFoundError, LakeError):
            for entry in islice(self.folder.list(deep=True, after=f"{kind}."), LISTED):
                name, _, file = entry.name.partition("/")
                files[name].append(replace(entry, name=file))
        if sum(map(len, files.values())) == LISTED:
            files.popitem()  # its list may be incomplete
        self.prefetched = {name: (NewestEpoch.of(files[name]), at) for name in files}

    def delete_old(self) -> None:
        old, self.old = self.old, []
        with suppress(LakeError, OSError):
            self.folder.storage.delete_all(old)

    def _renew(self) -> None:
        while True:
            sleep(BEAT)
            for lease in [*self.held]:
                if not lease.is_lost:
                    with suppress(LakeError, OSError):  # `alive` shows it
                        lease.renew()
            self.delete_old()


_held: Final[dict[tuple[int, Path, str], Lease]] = {}
_bucket_leases: Final[dict[tuple[FolderLeases, Storage], BucketLeases]] = {}  # one for each warehouse, for its thread


@contextmanager
def lease(settings: Settings, name: str, *, seconds: float | None = None, hosts: bool = True) -> Iterator[Lease]:
    """Hold the lease `name` while the block runs. Re-entrant in a thread.

    A truncated commit of its tables is set aside first. Without `hosts`, other hosts are not kept out of a bucket: of
    two hosts that commit, one fails. Raises LeaseHeld after `seconds` of waiting, by default `settings.lease_seconds`.
    """
    key = (get_ident(), settings.warehouse_path, name)
    if outer := _held.get(key):
        yield outer
        return
    among_hosts, machine = leases(settings), FolderLeases(file_modes.locks(settings))
    activity.join(settings)
    chosen = among_hosts if hosts else machine
    held = _held[key] = chosen.acquire(name, seconds=settings.lease_seconds if seconds is None else seconds)
    try:
        tables = [location.path for location in Warehouse(settings).leased(name)]
        for path in tables:
            set_truncated_aside(path)
        # A commit to a bucket on top of an old version is refused; in a folder only the lock prevents it.
        with holding(tables) if chosen == among_hosts else nullcontext():
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
