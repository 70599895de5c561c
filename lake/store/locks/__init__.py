"""Leases: each log, table and ledger table of a warehouse has one writer at a time. `activity` lists the readers.

Among processes of one machine, leases are locked files `NAME.lock`, which the kernel unlocks when a process dies. While
a lease is held, `NAME.holder` names its holder as JSON. A process that died leaves this file.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from filelock import FileLock, Timeout

from lake.errors import Busy
from lake.store.storage import Address

NOUNS: Final = {"log": "the log of", "meta": "the ledger of", "archive": "the archive of", "consumer": "consumer"}


@dataclass(frozen=True)
class Holder:
    """Process that holds a lease of number `epoch`; without a command, an unknown process."""

    command: str = ""
    pid: int = 0
    since: str = ""
    host: str = ""
    epoch: int = 0

    @classmethod
    def this_process(cls) -> Holder:
        """Arguments after its verb are left out: they may be personal data."""
        command = " ".join([Path(sys.argv[0]).name, *(verb for verb in sys.argv[1:2] if verb.isalpha())])
        return cls(command, os.getpid(), f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")

    @classmethod
    def read(cls, file: Address) -> Holder:
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(file.read()))
        return cls()

    @property
    def json(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    def __str__(self) -> str:
        if not self.command:
            return "another process"
        host = f" on {self.host}" if self.host and self.host != platform.node() else ""
        return f"`{self.command}`{host} (pid {self.pid}, since {self.since})"


class LeaseHeld(Busy):
    def __init__(self, name: str, holder: Holder, *, where: str, seconds: float) -> None:
        verb = "being read for" if name.startswith("consumer.") else "being written"
        fix = f"try again when it is done, or stop it (waited {seconds:g} s; setting lease_seconds)"
        super().__init__(f"{lease_text(name)} is {verb} by {holder}", where=where, fix=fix)
        self.holder = holder


class Lease(Protocol):
    """A lease that this process holds. `epoch` is its number in a bucket, 0 for a lease of one machine."""

    epoch: int

    def renew(self) -> None:
        """Show other hosts that this process is alive. Detect whether one of them has overtaken it."""
        return

    def must_hold(self) -> None:
        """Raise Unavailable if another host may hold the lease. Call it before files are deleted."""
        return

    def release(self) -> None: ...


class Leases(Protocol):
    """Leases of a warehouse, by names such as `log.flights`, `table.carrier_daily` and `meta.cuts`."""

    def acquire(self, name: str, *, seconds: float) -> Lease:
        """Acquire a lease, overtaking a dead holder. Not re-entrant. Raises LeaseHeld after `seconds`."""

    def prefetch(self, kind: str) -> None:
        """Look up the leases of a `kind`, such as "table", together if that saves requests. Never fails."""
        del kind


def lease_text(name: str) -> str:
    kind, _, subject = name.partition(".")
    return f"{NOUNS.get(kind, f'the {kind}')} {subject}"


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
        """Write the holder, and the number of its lease in a bucket: for messages, and for the next process."""
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
