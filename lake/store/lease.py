"""One writer at a time per log and table: an operating-system lock, let go by the kernel when its process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lake.config import Settings
from lake.errors import Unavailable


@contextmanager
def lease(settings: Settings, name: str) -> Iterator[None]:
    """Holds the lease `name` (e.g. `log.flights`, `table.carrier_daily`, `meta.cuts`) while the block runs.

    Re-entrant within a process and thread. Raises Unavailable when another writer keeps it longer than
    `settings.lease_seconds`.
    """
    folder = settings.warehouse_path / "locks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file, holder = folder / f"{name}.lock", folder / f"{name}.holder"
    lock = FileLock(file, timeout=settings.lease_seconds, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise Unavailable(
            f"{name} is being written by another process{_holder(holder)}",
            where=str(file),
            fix=f"try again when it is done (waited {settings.lease_seconds:g} s; setting lease_seconds)",
        ) from None
    try:
        holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _holder(file: Path) -> str:
    try:
        return f" (pid {file.read_text().strip()})"
    except OSError:
        return ""
