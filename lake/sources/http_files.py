"""What `lake serve http` has acknowledged and no log has yet: a folder of numbered files, each one group of records.

    LANDING/.http/<source>/spool.json          {"spool": an id that no other folder has}
                           000000000042-17.jsonl   the 17 records of group 42: [stream, text, {fact: value}] a line
                           .new                    a group that is being written
                           taken.json          {"upto": 41}: the groups that logs have, whose files are removed
                           lock                held by the one process that writes

Numbers begin at 1 and have no gaps, so that a missing file is seen. In a recreated folder they begin after the next
multiple of GENERATION, above all that logs have: no event's place is given twice. A group appears by one rename, after
its bytes are on the disk; its writer answers after the folder is there as well. Landing folders pass over it: its name
is hidden.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from lake import disk
from lake.config import Settings
from lake.errors import StorageError, Unavailable

FOLDER: Final = ".http"
ABOUT: Final = "spool.json"
TAKEN: Final = "taken.json"
NEW: Final = ".new"
LOCK: Final = "lock"
GENERATION: Final = 10**15
"""More groups than a folder has: the distance between the first numbers of a folder and of the one after it."""
NAME: Final = re.compile(r"([0-9]{12,})-([0-9]+)\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """The file of one group commit: `number`, how many `records`, `size` in bytes, `at` in seconds since 1970."""

    number: int
    records: int
    size: int
    at: float

    @property
    def name(self) -> str:
        return f"{self.number:012}-{self.records}.jsonl"


@dataclass(frozen=True)
class Waiting:
    """What is in a folder: so many `files` of so many `events` and `size` bytes; the `oldest`, None where none is."""

    files: int = 0
    events: int = 0
    size: int = 0
    oldest: float | None = None


@dataclass(frozen=True)
class Folder:
    """The folder of one source; it may not exist yet."""

    path: Path

    @classmethod
    def of(cls, settings: Settings, source: str) -> Folder:
        return cls(settings.landing_path / FOLDER / source)

    @property
    def spool(self) -> str:
        """The id of this folder; "" where nothing was ever acknowledged in it."""
        note = self._note(ABOUT)
        return str(note["spool"]) if note else ""

    @property
    def taken(self) -> int:
        """The number of the last group whose file may have been removed; 0 for none."""
        note = self._note(TAKEN)
        return int(note["upto"]) if note else 0

    def groups(self) -> list[Group]:
        try:
            entries = [(entry, NAME.fullmatch(entry.name)) for entry in os.scandir(self.path)]
        except FileNotFoundError:
            return []
        groups = []
        for entry, name in entries:
            with suppress(FileNotFoundError):  # taken meanwhile
                if name:
                    status = entry.stat()
                    groups.append(Group(int(name[1]), int(name[2]), status.st_size, status.st_mtime))
        return sorted(groups)

    def records(self, group: Group) -> Iterator[tuple[str, str, dict[str, str]]]:
        """(stream, text, facts) of each record of a group. Raises StorageError where the file is damaged."""
        file, seen = self.path / group.name, 0
        try:
            with file.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    stream, text, facts = json.loads(line)
                    yield stream, text, facts
                    seen += 1
        except (ValueError, FileNotFoundError) as error:
            raise _damaged(file, str(error)) from None
        if seen != group.records:
            raise _damaged(file, f"it has {seen} of its records")

    def remove(self, upto: int) -> None:
        """Removes the groups up to a number, once logs have them; the number is kept, so that none is given again."""
        if upto > self.taken:
            self._write(TAKEN, {"upto": upto})
        for group in self.groups():
            if group.number <= upto:
                (self.path / group.name).unlink(missing_ok=True)

    def waiting(self, after: int) -> Waiting:
        """What groups after a number amount to."""
        groups = [group for group in self.groups() if group.number > after]
        if not groups:
            return Waiting()
        events, size = sum(group.records for group in groups), sum(group.size for group in groups)
        return Waiting(len(groups), events, size, min(group.at for group in groups))

    def _note(self, name: str) -> Mapping[str, Any] | None:
        try:
            note: Mapping[str, Any] = json.loads((self.path / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _damaged(self.path / name, str(error)) from None
        return note

    def _write(self, name: str, note: Mapping[str, Any]) -> None:
        """A note, on the disk before anything that relies on it is done."""
        new = self.path / f"{NEW}.{name}"
        _put(new, json.dumps(note).encode())
        new.replace(self.path / name)
        disk.flush([self.path])


class Writer:
    """The one process that writes a folder, until it is closed. Raises Unavailable if another process writes it.

    `logged` returns the greatest number that logs have; it is called if the folder has no group and never had one.
    """

    def __init__(self, folder: Folder, logged: Callable[[], int] = lambda: 0) -> None:
        self.folder = folder
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk.flush_above(folder.path)
        self._lock = FileLock(folder.path / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise Unavailable(
                "another lake serve http takes events for this source",
                where=str(folder.path),
                fix="stop that one first, or give this one a source of its own",
            ) from None
        self._last = max([folder.taken, *(group.number for group in folder.groups())])
        if not self._last and (before := logged()):
            self._last = (before // GENERATION + 1) * GENERATION
            folder._write(TAKEN, {"upto": self._last})
        if not folder.spool:
            folder._write(ABOUT, {"spool": secrets.token_hex(8)})
        self._spool = folder.spool
        self._descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def last(self) -> int:
        """The number of the last group; 0 before the first."""
        return self._last

    def put(self, lines: Iterable[bytes], records: int) -> Group:
        """Has the disk hold a group of so many records, one a line: file, then name, then folder.

        Where this raises OSError none of it is promised, and its number is given to the next group, if it has not
        appeared under it. It raises OSError if the folder is no longer the one that was opened.
        """
        if self.folder.spool != self._spool:
            raise OSError(errno.ESTALE, "the folder was recreated: start the server again", str(self.folder.path))
        new = self.folder.path / NEW
        size = _put(new, b"".join(lines))
        group = Group(self._last + 1, records, size, time.time())
        new.rename(self.folder.path / group.name)
        self._last = group.number
        os.fsync(self._descriptor)
        return group

    def close(self) -> None:
        """Lets others write."""
        os.close(self._descriptor)
        self._lock.release()


def _put(file: Path, content: bytes) -> int:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(content)


def _damaged(file: Path, what: str) -> StorageError:
    return StorageError(
        f"a file of acknowledged events is damaged: {what}",
        where=str(file),
        fix="restore it from a backup, or remove it and give its events up: lake ingest SOURCE --give-up",
    )
