"""Leases: each log, table and ledger table of a warehouse has one writer at a time. `activity` lists the readers."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

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
