"""Leases among processes of one machine: locked files `NAME.lock`, which the kernel unlocks when a process dies.

While a lease is held, `NAME.holder` names its holder as JSON. A process that died leaves this file.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from lake.store.locks import Holder, Lease, LeaseHeld, Leases, lease_text
from lake.store.storage import Address

SILENT: Final = 1.0  # seconds of waiting before a message names the holder


@dataclass
class FolderLease(Lease):
    """A locked file, which needs no renewal. `dead` is the holder before this process if it died."""

    lock: FileLock
    file: Path
    dead: Holder
    holder: Holder = field(default_factory=Holder.this_process)
    epoch: int = 0

    def record(self, epoch: int = 0) -> None:
        """Write the holder, and the number of its lease in a bucket, for messages to those that wait."""
        with suppress(OSError):
            self.file.write_text(replace(self.holder, epoch=epoch).json)

    def release(self) -> None:
        self.file.unlink(missing_ok=True)
        self.lock.release()


@dataclass(frozen=True)
class FolderLeases(Leases):
    """`folder` has to exist when a lease is acquired."""

    folder: Path

    def acquire(self, name: str, *, seconds: float) -> FolderLease:
        file = self.folder / f"{name}.holder"
        lock, recorded = FileLock(file.with_suffix(".lock"), thread_local=False), Address(str(file))
        with suppress(Timeout):
            lock.acquire(timeout=min(SILENT, seconds))
        if not lock.is_locked and seconds > SILENT:
            report_wait(name, recorded)
            with suppress(Timeout):
                lock.acquire(timeout=seconds - SILENT)
        if not lock.is_locked:
            raise LeaseHeld(name, Holder.read(recorded), where=lock.lock_file, seconds=seconds)
        lease = FolderLease(lock, file, dead=Holder.read(recorded))
        lease.record()
        return lease


def report_wait(name: str, holder: Address) -> None:
    logging.getLogger("lake").warning("waiting for %s, held by %s", lease_text(name), Holder.read(holder))
