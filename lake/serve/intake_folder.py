"""Folder of acknowledged events that are in no log yet: numbered files, each with one group of records.

    LANDING/.http/<source>/spool.json          {"spool": unique id of the folder}
                           000000000042-17.jsonl   17 records of group 42; each line is [stream, text, {fact: value}]
                           .new                    group being written
                           taken.json          {"upto": 41}: groups in the logs, whose files may be removed
                           lock                of the only writer

Numbers begin at 1 without gaps, so a missing file is detected. A recreated folder begins after the next multiple of
GENERATION, so no place is reused. A group appears by a rename after its bytes are synced, and is acknowledged after the
folder is synced.
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

from lake.config import Settings
from lake.errors import StorageError, Unavailable, full
from lake.session import file_modes
from lake.store.log_head import GENERATION

FOLDER: Final = ".http"
ABOUT: Final = "spool.json"
TAKEN: Final = "taken.json"
NEW: Final = ".new"
LOCK: Final = "lock"
NAME: Final = re.compile(r"([0-9]{12,})-([0-9]+)\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """File of one group, of `size` bytes, modified `at` (Unix time)."""

    number: int
    records: int
    size: int
    at: float

    @property
    def name(self) -> str:
        return f"{self.number:012}-{self.records}.jsonl"


@dataclass(frozen=True)
class Backlog:
    """Totals of waiting groups; `oldest` is a Unix time."""

    files: int = 0
    events: int = 0
    size: int = 0
    oldest: float | None = None


@dataclass(frozen=True)
class IntakeFolder:
    """Folder of one source. It may not exist yet."""

    path: Path

    @classmethod
    def of(cls, settings: Settings, source: str) -> IntakeFolder:
        return cls(settings.landing_path / FOLDER / source)

    @property
    def spool(self) -> str:
        content = self._read(ABOUT)
        return str(content["spool"]) if content else ""

    @property
    def taken(self) -> int:
        """Number of the last group whose file may have been removed; 0 for none."""
        content = self._read(TAKEN)
        return int(content["upto"]) if content else 0

    def groups(self) -> list[Group]:
        try:
            entries = [(entry, NAME.fullmatch(entry.name)) for entry in os.scandir(self.path)]
        except FileNotFoundError:
            return []
        groups = []
        for entry, name in entries:
            with suppress(FileNotFoundError):  # removed meanwhile
                if name:
                    status = entry.stat()
                    groups.append(Group(int(name[1]), int(name[2]), status.st_size, status.st_mtime))
        return sorted(groups)

    def records(self, group: Group) -> Iterator[tuple[str, str, dict[str, str]]]:
        file, count = self.path / group.name, 0
        try:
            with file.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    stream, text, facts = json.loads(line)
                    yield stream, text, facts
                    count += 1
        except (ValueError, FileNotFoundError) as error:
            raise _damaged(file, str(error)) from None
        if count != group.records:
            raise _damaged(file, f"it has {count} of its records")

    def remove(self, upto: int) -> None:
        files = [self.path / group.name for group in self.groups() if group.number <= upto]
        try:
            self._mark_taken(upto)
        except OSError as error:
            if full(error) is None or len(files) < 2:
                raise
            files.pop(0).unlink(missing_ok=True)  # makes room; a later file shows that its number is used
            self._mark_taken(upto)
        for file in files:
            file.unlink(missing_ok=True)

    def _mark_taken(self, upto: int) -> None:
        if upto > self.taken:
            self._write(TAKEN, {"upto": upto})

    def waiting(self, after: int) -> Backlog:
        groups = [group for group in self.groups() if group.number > after]
        if not groups:
            return Backlog()
        events, size = sum(group.records for group in groups), sum(group.size for group in groups)
        return Backlog(len(groups), events, size, min(group.at for group in groups))

    def _read(self, name: str) -> Mapping[str, Any] | None:
        try:
            content: Mapping[str, Any] = json.loads((self.path / name).read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise _damaged(self.path / name, str(error)) from None
        return content

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        new = self.path / f"{NEW}.{name}"
        _put(new, json.dumps(content).encode())
        new.replace(self.path / name)
        file_modes.flush([self.path])


class GroupWriter:
    """Writer of a folder, which it locks. Raises Unavailable if another process keeps the lock for `patience` seconds.

    `logged` returns the greatest number in the logs. It is called if the folder never had a group.
    """

    def __init__(self, folder: IntakeFolder, logged: Callable[[], int] = lambda: 0, *, patience: float = 0) -> None:
        self.folder = folder
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file_modes.flush_above(folder.path)
        self._lock = FileLock(folder.path / LOCK)
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            raise Unavailable(
                "another lake serve http takes events for this source, or lake append --decide does",
                where=str(folder.path),
                fix="stop that one first, or give this one a source of its own",
            ) from None
        self.last = max([folder.taken, *(group.number for group in folder.groups())])
        if not self.last and (before := logged()):
            self.last = (before // GENERATION + 1) * GENERATION
            folder._write(TAKEN, {"upto": self.last})
        if not folder.spool:
            folder._write(ABOUT, {"spool": secrets.token_hex(8)})
        self._spool = folder.spool
        self._descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)

    def put(self, lines: Iterable[bytes], records: int) -> Group:
        """Write a group to the disk: file, then name, then folder.

        If it raises OSError, the group is not acknowledged, and the next one gets its number unless the file has
        appeared.
        """
        if self.folder.spool != self._spool:
            raise OSError(errno.ESTALE, "the folder was recreated: start the server again", str(self.folder.path))
        new = self.folder.path / NEW
        size = _put(new, b"".join(lines))
        group = Group(self.last + 1, records, size, time.time())
        new.rename(self.folder.path / group.name)
        self.last = group.number
        os.fsync(self._descriptor)
        return group

    def close(self) -> None:
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
