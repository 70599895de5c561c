"""Processes of this machine that use a warehouse: `lake maintain` deletes no file that the oldest of them may read.

Each keeps a locked file in `locks/reads`, which the kernel unlocks when the process dies. Processes of other hosts are
not listed: in a bucket, no file is deleted that was replaced within `keep_days`.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.session import file_modes
from lake.store import delta
from lake.store.warehouse import Warehouse

_files: Final[dict[Path, tuple[int, str]]] = {}  # descriptor and name of this process's file, by folder
_notes: Final[dict[Path, dict[str, object]]] = {}  # fields of that file which do not change, by folder


@dataclass(frozen=True)
class Running:
    """Process that uses the warehouse, or one `edition` of it. `seen` was the newest edition then, 0 if unknown."""

    pid: int
    command: str
    edition: int | None
    since: datetime
    seen: int = 0

    def __str__(self) -> str:
        what = f"{self.command} of edition {self.edition}" if self.edition else self.command
        return f"{what} (pid {self.pid}, since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


@dataclass(frozen=True)
class Moment:
    """Record of this process at `time`. Its JSON `text` also has a time that does not change when the clock is set."""

    text: str
    time: float


def begin(settings: Settings, command: str, *, edition: int | None = None) -> None:
    """List this process until it ends; if the warehouse does not exist yet, from its first lease on."""
    _notes.setdefault(_folder(settings), {"pid": os.getpid(), "command": command, "edition": edition})
    if has_unlisted(settings) or settings.warehouse_path.is_dir():
        join(settings)


def join(settings: Settings) -> None:
    folder = _folder(settings)
    if folder not in _notes or folder in _files:
        return
    with suppress(OSError), _locked(file_modes.readers(settings)):
        if folder in _files:
            return
        descriptor, name = tempfile.mkstemp(prefix=f"{os.getpid()}.", dir=folder)
        try:
            os.fchmod(descriptor, 0o666 & ~file_modes.umask(settings))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with open(descriptor, "w", closefd=False) as file:
                file.write(moment(settings).text)
        except OSError:  # the disk is full
            Path(name).unlink()
            os.close(descriptor)
        else:
            _files[folder] = descriptor, name


def moment(settings: Settings) -> Moment:
    seen = 0
    with suppress(Exception):  # readers report a damaged ledger
        editions = Warehouse(settings).book("editions")
        head = delta.head(editions.path, editions.app)
        seen = head.data["edition"]["number"] if head else 0
    return Moment(json.dumps({**_notes[_folder(settings)], "seen": seen, "up": time.monotonic()}), time.time())


@atexit.register
def end() -> None:
    """Delete this process's files. Those of a killed process are deleted by the next `others`."""
    _notes.clear()
    while _files:
        _, (descriptor, name) = _files.popitem()
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def renew(settings: Settings, since: Moment | None = None) -> None:
    """Record that this process reads nothing older than what existed `since` a moment, by default now."""
    folder = _folder(settings)
    if own := _files.get(folder):
        since = since or moment(settings)
        text = since.text.encode()
        with suppress(OSError), _locked(folder):
            os.pwrite(own[0], text, 0)
            os.ftruncate(own[0], len(text))
            os.utime(own[0], (since.time, since.time))


def others(settings: Settings) -> list[Running]:
    folder = _folder(settings)
    if not folder.is_dir():
        return []
    with _locked(folder):
        own = _files.get(folder, (0, ""))[1]
        running = [_running(file) for file in folder.iterdir() if str(file) != own]
    return sorted(filter(None, running), key=lambda process: process.since)


def has_unlisted(settings: Settings) -> bool:
    """Return whether processes of other hosts, which `others` does not list, may use the warehouse."""
    return Warehouse(settings).root.storage.is_remote


def _folder(settings: Settings) -> Path:
    return settings.warehouse_path / "locks" / "reads"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A process that joins the list later reads what exists after the block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _running(file: Path) -> Running | None:
    with suppress(FileNotFoundError), file.open("rb") as open_file:
        try:
            fcntl.flock(open_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = json.loads(open_file.read())
            began = datetime.fromtimestamp(os.fstat(open_file.fileno()).st_mtime, UTC)
            age = timedelta(seconds=max(time.monotonic() - note.pop("up"), 0))
            return Running(**note, since=min(began, datetime.now(UTC) - age))  # the clock may have been set since
        file.unlink()
    return None
