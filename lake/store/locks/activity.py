"""Who is at work on a warehouse: each running command keeps a small file locked, which the kernel lets go at its death.

`lake maintain` deletes nothing that could be read when the oldest of them began: so a query, a batch and a rebuild find
every file of what they started from, however long they take. Of a warehouse in a bucket, other machines are told too,
by lake.store.locks.presence.
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
from typing import Final

from lake import file_modes
from lake.config import Settings
from lake.errors import LakeError
from lake.store import delta
from lake.store.locks.epochs import Keeper
from lake.store.locks.presence import Presence, present
from lake.store.storage import Address
from lake.store.warehouse import Warehouse

TOLD: Final = ("pid", "command", "edition", "seen", "host")
"""What other machines are told of a process."""
_own: dict[Path, tuple[int, str]] = {}
"""This process's own file in a folder: its descriptor, which is locked, and its name."""
_shown: dict[Path, dict[str, object]] = {}
"""What this process says there."""
_told: dict[Path, Presence] = {}
"""What it says to other machines."""


@dataclass(frozen=True)
class Running:
    """A process at work since `since`: what it runs, and the edition it reads where it keeps to one.

    `seen` is the newest edition that there was when it began, 0 where that is not known.
    """

    pid: int
    command: str
    edition: int | None
    since: datetime
    seen: int = 0
    host: str = ""

    def __str__(self) -> str:
        what = f"{self.command} of edition {self.edition}" if self.edition else self.command
        host = f" on {self.host}" if self.host else ""
        return f"{what} (pid {self.pid}{host}, since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


def begin(settings: Settings, command: str, *, edition: int | None = None) -> None:
    """Makes this process known as one at work, from now until it ends; once is enough.

    A warehouse that this process may not write to has no such list; one that is not there yet, from its first lease on.
    """
    _shown.setdefault(_folder(settings), {"pid": os.getpid(), "command": command, "edition": edition})
    if settings.store or settings.warehouse_path.is_dir():
        join(settings)


def join(settings: Settings) -> None:
    """Puts this process on the list of the warehouse, which is there, if it has begun and is not on it."""
    folder = _folder(settings)
    if folder not in _shown or folder in _own:
        return
    with suppress(OSError), _listed(file_modes.readers(settings)):
        if folder not in _own:
            now = moment(settings)
            _own[folder] = _locked(folder, now.text, 0o666 & ~file_modes.umask(settings))
            if settings.store:
                _told[folder] = Presence(_reads(settings))
                _tell(folder, now)


@dataclass(frozen=True)
class Moment:
    """What there was to read at `time`, and what this process `said` of itself; `up` is by a clock nobody can set."""

    said: Mapping[str, object]
    time: float
    up: float

    @property
    def text(self) -> str:
        return json.dumps({**self.said, "up": self.up})


def moment(settings: Settings) -> Moment:
    """What there is to read now. This process has begun."""
    seen = 0
    with suppress(Exception):  # a damaged book is told by whoever reads it
        book = Warehouse(settings).book("editions")
        head = delta.head(book.path, book.app)
        seen = head.data["edition"]["number"] if head else 0
    return Moment({**_shown[_folder(settings)], "seen": seen}, time.time(), time.monotonic())


def _tell(folder: Path, since: Moment) -> None:
    """Tells other machines too; a bucket that this process may not write to has no such list."""
    presence = _told[folder]
    with suppress(LakeError, OSError):
        back = max(time.monotonic() - since.up, 0)
        presence.say({**since.said, "host": os.uname().nodename, "list": _identity(folder), "back": back})
        Keeper.at_work.add(presence)
        Keeper.start()


def _identity(folder: Path) -> str:
    """What tells the list of this machine from that of another one, whatever both are called."""
    boot, found = Path("/proc/sys/kernel/random/boot_id"), folder.stat()
    machine = boot.read_text().strip() if boot.exists() else os.uname().nodename
    return f"{machine}:{found.st_dev}:{found.st_ino}"


def _locked(folder: Path, text: str, mode: int) -> tuple[int, str]:
    """A new file in `folder`, locked, its descriptor and its name; none is left where the disk is full."""
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
    """Takes this process off every list; what one that is killed leaves there, the next `others` removes."""
    Keeper.tidy()
    _shown.clear()
    while _told:
        _, presence = _told.popitem()
        Keeper.at_work.discard(presence)
        with suppress(LakeError, OSError):
            presence.leave()
    while _own:
        _, (descriptor, name) = _own.popitem()
        Path(name).unlink(missing_ok=True)
        os.close(descriptor)


def renew(settings: Settings, since: Moment | None = None) -> None:
    """Says that this process reads nothing older than what there was at a moment, by default now."""
    folder = _folder(settings)
    if own := _own.get(folder):
        since = since or moment(settings)
        text = since.text.encode()
        with suppress(OSError), _listed(folder):
            os.pwrite(own[0], text, 0)
            os.ftruncate(own[0], len(text))
            os.utime(own[0], (since.time, since.time))
        if folder in _told:
            _tell(folder, since)


def others(settings: Settings) -> list[Running]:
    """The other processes at work, the longest first. Files of dead ones are removed."""
    folder = _folder(settings)
    listed = _elsewhere(settings, folder) if settings.store else []
    if folder.is_dir():
        with _listed(folder):
            own = _own.get(folder, (0, ""))[1]
            listed += [_running(file) for file in folder.iterdir() if str(file) != own]
    return sorted((process for process in listed if process is not None), key=lambda process: process.since)


def _elsewhere(settings: Settings, folder: Path) -> list[Running | None]:
    """The processes of other machines, which are not in the list of this one."""
    here = _identity(folder) if folder.is_dir() else ""
    return [
        Running(**{name: note[name] for name in TOLD}, since=datetime.fromtimestamp(since, UTC))
        for note, since in present(_reads(settings))
        if note["list"] != here
    ]


def _reads(settings: Settings) -> Address:
    return Warehouse(settings).root / "locks" / "reads"


def _folder(settings: Settings) -> Path:
    return settings.warehouse_path / "locks" / "reads"


@contextmanager
def _listed(folder: Path) -> Iterator[None]:
    """Nobody comes or goes meanwhile: whoever is not listed yet will read what there is afterwards."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _running(file: Path) -> Running | None:
    """Whose `file` it is; None for a dead process, whose file goes."""
    with file.open("rb") as open_file:
        try:
            fcntl.flock(open_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note = json.loads(open_file.read())
            began = datetime.fromtimestamp(os.fstat(open_file.fileno()).st_mtime, UTC)
            age = timedelta(seconds=max(time.monotonic() - note.pop("up"), 0)) if "up" in note else timedelta()
            # The earlier of both: somebody may have set the clock since.
            return Running(**note, since=min(began, datetime.now(UTC) - age))
        file.unlink()
        return None
