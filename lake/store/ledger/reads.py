"""Reads by remote readers: who was given what, and when. A journal on the local disk, then a ledger table.

A line is on the disk before the first byte of an answer is sent. A crash between its commit and the removal of the
journal records it again, under the same id.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

from lake.config import Settings
from lake.session import file_modes
from lake.store.ledger_table import LedgerTable, columns_of, record_of


@dataclass(frozen=True)
class Read:
    """Read of `tables` under the grant `grant_id`. `kind` is `sql`, `table` or `share`; `query` has no values.

    `outcome` is None while the answer is being sent; the same id is recorded again at its end.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(12), kw_only=True)
    reader: str
    grant_id: str
    at: datetime = field(default_factory=lambda: datetime.now(UTC), kw_only=True)
    kind: str
    tables: Sequence[str] = ()
    query: str | None = None
    edition: int | None = None
    cut: int | None = None
    format: str | None = None
    outcome: str | None = None
    rows: int | None = None
    size: int | None = None
    seconds: float | None = None

    def ended(self, outcome: str, *, rows: int | None = None, size: int | None = None) -> Read:
        seconds = (datetime.now(UTC) - self.at).total_seconds()
        return replace(self, outcome=outcome, rows=rows, size=size, seconds=round(seconds, 6))

    @property
    def line(self) -> bytes:
        values = asdict(self) | {"at": self.at.isoformat(timespec="microseconds"), "tables": list(self.tables)}
        return json.dumps({name: values[name] for name in READS.columns}, ensure_ascii=False).encode() + b"\n"


READS: Final = LedgerTable("reads", columns_of(Read))


class Journal:
    def __init__(self, settings: Settings) -> None:
        """Raises OSError if this user may not write to the project."""
        self._settings = settings
        self._lock = Lock()
        self._file = self._create()
        self.lines = 0

    def add(self, reads: Iterable[Read]) -> None:
        """Return once the lines are on the disk. Raises OSError if it is full."""
        lines = [read.line for read in reads]
        with self._lock:
            _append(self._file, b"".join(lines))
            self.lines += len(lines)

    def record(self) -> None:
        """Record the lines of this journal and of those of dead processes. Lines may be added meanwhile.

        Raises Unavailable if another process is recording, and OSError if there is no room for a new journal.
        """
        with self._lock:
            if self.lines:
                full, self._file, self.lines = self._file, self._create(), 0
                os.close(full)
        for file in _journals(self._settings):
            if not _is_locked(file):
                _record(self._settings, file)

    def close(self) -> None:
        os.close(self._file)
        self.lines = 0

    def _create(self) -> int:
        folder = file_modes.scratch(self._settings, "reads")
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            os.close(file)
            raise
        return file


def unrecorded(settings: Settings) -> list[str]:
    lines = list[str]()
    for file in _journals(settings):
        with suppress(FileNotFoundError):  # it was recorded just now
            lines += _lines(file)
    return lines


def _append(file: int, lines: bytes) -> None:
    size = os.fstat(file).st_size
    try:
        written = 0
        while written < len(lines):
            written += os.write(file, lines[written:])
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _journals(settings: Settings) -> list[Path]:
    with suppress(OSError):
        return sorted(settings.path(".lake/reads").glob("*.jsonl"))
    return []


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8", "replace").split("\n")[:-1]


def _is_locked(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):  # or another process has recorded it
        return True
    return False


def _record(settings: Settings, file: Path) -> None:
    with READS.writing(settings) as head, suppress(FileNotFoundError):
        if reads := [record_of(Read, json.loads(line)) for line in _lines(file)]:
            head.add(*reads)
        file.unlink()
