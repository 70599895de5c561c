"""List of the processes of this machine at work on a warehouse: each locks a small file, until the kernel unlocks it.

`lake maintain` deletes nothing that could be read when the oldest of them began: a query, a batch and a rebuild find
every file of what they started from, however long they take. Processes of other machines, which a warehouse in a bucket
may have, are not listed: there it deletes nothing that was replaced within the last `keep_days`.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lake import file_modes
from lake.config import Settings
from lake.store import delta
from lake.store.warehouse import Warehouse

_own: dict[Path, tuple[int, str]] = {}
"""This process's own file in a folder: its descriptor, which is locked, and its name."""
_shown: dict[Path, dict[str, object]] = {}
"""Its entry there."""


@dataclass(frozen=True)
class Running:
    """A process at work since `since`, and the edition it reads if it keeps to one.

    `seen` is the newest edition that existed when it began, 0 if that is not known.
    """

    pid: int
    command: str
    edition: int | None
    since: datetime
    seen: int = 0

    def __str__(self) -> str:
        what = f"{self.command} of edition {self.edition}" if self.edition else self.command
        return f"{what} (pid {self.pid}, since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


def begin(settings: Settings, command: str, *, edition: int | None = None) -> None:
    """List this process as one at work, from now until it ends; once is enough.

    It is not listed if it may not write to the warehouse. If there is no warehouse yet, it is listed from its first
    lease on.
    """
    _shown.setdefault(_folder(settings), {"pid": os.getpid(), "command": command, "edition": edition})
    if settings.store or settings.warehouse_path.is_dir():
        join(settings)


def join(settings: Settings) -> None:
    """Add this process to the list of the warehouse, which exists, if it has begun and is not on it."""
    folder = _folder(settings)
    if folder not in _shown or folder in _own:
        return
    with suppress(OSError), _listed(file_modes.readers(settings)):
        if folder not in _own:
            _own[folder] = _locked(folder, moment(settings).text, 0o666 & ~file_modes.umask(settings))


@dataclass(frozen=True)
class Moment:
    """The moment since which this process reads: its `entry` in the list, and `up`, by a clock nobody can set."""

    entry: Mapping[str, object]
    time: float
    up: float

    @property
    def text(self) -> str:
        return json.dumps({**self.entry, "up": self.up})


def moment(settings: Settings) -> Moment:
    """Return the present moment. This process has begun."""
    seen = 0
    with suppress(Exception):  # its readers report a damaged book
        book = Warehouse(settings).book("editions")
        head = delta.head(book.path, book.app)
        seen = head.data["edition"]["number"] if head else 0
    return Moment({**_shown[_folder(settings)], "seen": seen}, time.time(), time.monotonic())


def _locked(folder: Path, text: str, mode: int) -> tuple[int, str]:
    """Return the descriptor and the name of a new locked file in `folder`. It is deleted if the disk is full."""
    descriptor, name = tempfile.mkstemp(prefix=f"{os.getpid()}.", dir=folder)
    try:
        os.fchmod(descriptor, mode)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open(descriptor, "w", closefd=False) as file:
            file.write(text)
    except OSError:
        os.close(descriptor)
        Path(name).unlink()
        raise
    return descriptor, name


@atexit.register
def end() -> None:
    """Remove this process from every list. If it is killed, the next call of `others` does so."""
    _shown.clear()
    while _own:
        _, (descriptor, name) = _own.popitem()
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def renew(settings: Settings, since: Moment | None = None) -> None:
    """Record that this process reads nothing older than what existed at a moment, by default now."""
    folder = _folder(settings)
    if own := _own.get(folder):
        since = since or moment(settings)
        text = since.text.encode()
        with suppress(OSError), _listed(folder):
            os.pwrite(own[0], text, 0)
            os.ftruncate(own[0], len(text))
            os.utime(own[0], (since.time, since.time))


def others(settings: Settings) -> list[Running]:
    """Return the other processes of this machine at work, the longest first. Files of dead ones are removed."""
    folder, listed = _folder(settings), list[Running | None]()
    if folder.is_dir():
        with _listed(folder):
            own = _own.get(folder, (0, ""))[1]
            listed += [_running(file) for file in folder.iterdir() if str(file) != own]
    return sorted((process for process in listed if process is not None), key=lambda process: process.since)


def _folder(settings: Settings) -> Path:
    return settings.warehouse_path / "locks" / "reads"


@contextmanager
def _listed(folder: Path) -> Iterator[None]:
    """Lock the list: a process that is not on it yet will read what exists afterwards."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _running(file: Path) -> Running | None:
    """Return the process that locks `file`; delete the file and return None if it is dead."""
    with file.open("rb") as open_file:
        try:
            fcntl.flock(open_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = json.loads(open_file.read())
            began = datetime.fromtimestamp(os.fstat(open_file.fileno()).st_mtime, UTC)
            age = timedelta(seconds=max(time.monotonic() - note.pop("up"), 0)) if "up" in note else timedelta()
            # The earlier of both: the clock may have been set since.
            return Running(**note, since=min(began, datetime.now(UTC) - age))
        file.unlink()
        return None
