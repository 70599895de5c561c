"""What is to be read next: landing files as (name, size, time of change), and what has been read already.

Progress lives in the log's own commits: each lists the files of its batch. `meta/landed` remembers the older ones, so
that a reader needs not walk the whole history; it is repaired from the log, so a crash between the two loses nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lake.config import Settings
from lake.errors import Unavailable
from lake.store import delta
from lake.store.compaction import pack_table
from lake.store.lease import lease

LANDED = "stream VARCHAR, batch BIGINT, name VARCHAR, size BIGINT, mtime BIGINT"
PARTIAL = (".tmp", ".part", ".partial", ".crdownload")


@dataclass(frozen=True)
class File:
    """A file to read. `name` is how sources and progress call it; `mtime` is in nanoseconds.

    A file counts as read when name, size and mtime are those of one that was: a changed one is read again.
    """

    name: str
    path: Path
    size: int
    mtime: int

    @property
    def mark(self) -> tuple[str, int, int]:
        """What progress remembers of the file."""
        return self.name, self.size, self.mtime

    def unchanged(self) -> bool:
        """Whether the file still is what it was when it was listed."""
        try:
            now = self.path.lstat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.mtime)


def pending(settings: Settings, stream: str, marks: set[tuple[str, int, int]]) -> list[File]:
    """The landing files of `stream` that are among `marks`, by name: as many as one batch may take.

    Hidden files, folders and files still being written under a partial name (`.tmp`, `.part` …) are passed over.
    """
    taken: list[File] = []
    size = 0
    for file in listing(settings, stream):
        if file.mark not in marks:
            continue
        size += file.size
        if taken and (len(taken) >= settings.batch_files or size > settings.batch_bytes):
            break
        taken.append(file)
    return taken


def listing(settings: Settings, stream: str) -> list[File]:
    """All landing files of `stream`, by name.

    Raises Unavailable where the folder exists and cannot be listed.
    """
    folder = settings.path(settings.landing) / stream
    try:
        entries = [entry for entry in os.scandir(folder) if _wanted(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"landing folder of {stream} cannot be read: {error.strerror}", where=str(folder)) from None
    return sorted(_files(stream, entries), key=lambda file: file.name)


def at_hand(settings: Settings, path: Path) -> File:
    """A file that somebody names, called by its path within the project, else by its whole path."""
    whole = path.resolve()
    found = whole.stat()
    name = str(whole.relative_to(settings.project)) if whole.is_relative_to(settings.project) else str(whole)
    return File(printable(name), whole, found.st_size, found.st_mtime_ns)


def printable(name: str) -> str:
    """`name` with bytes that are not UTF-8, and control characters, spelled out."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def landed(settings: Settings, stream: str, app: str) -> set[tuple[str, int, int]]:
    """The marks of every file that the log of `stream` has taken in; `app` is the log's app id."""
    old = delta.rows(settings.meta_path("landed"), "SELECT batch, name, size, mtime FROM t WHERE stream = $1", stream)
    known = max((row["batch"] for row in old), default=0)
    return {(row["name"], row["size"], row["mtime"]) for row in old} | {
        (name, size, mtime) for _, name, size, mtime in _newer(settings, stream, app, known)
    }


def remember(settings: Settings, stream: str, app: str) -> None:
    """Brings `meta/landed` up to the log of `stream`."""
    path = settings.meta_path("landed")
    with lease(settings, "meta.landed"):
        [row] = delta.rows(path, "SELECT max(batch) AS batch FROM t WHERE stream = $1", stream) or [{"batch": None}]
        newer = [(stream, *record) for record in _newer(settings, stream, app, row["batch"] or 0)]
        if newer:
            delta.append(path, LANDED, newer)
            pack_table(path)


def archive(settings: Settings, stream: str, marks: set[tuple[str, int, int]]) -> None:
    """Moves the landing files among `marks` to the archive folder, where there is one set."""
    if settings.archive is None:
        return
    folder = settings.path(settings.archive) / stream
    folder.mkdir(parents=True, exist_ok=True)
    for file in listing(settings, stream):
        if file.mark in marks and not file.path.is_symlink():
            target = folder / file.path.name
            if target.exists():
                target = folder / f"{file.mtime}-{file.path.name}"
            shutil.move(file.path, target)


def _newer(settings: Settings, stream: str, app: str, known: int) -> Iterator[tuple[int, str, int, int]]:
    """(batch, name, size, mtime) of the files in the log's commits after batch `known`."""
    for position in delta.positions(settings.log_path(stream), app):
        batch = position.data["batch"]
        if batch <= known:
            return
        if not position.data.get("repeated"):
            for file in position.data["files"]:
                yield batch, file["path"], file["size"], file["mtime"]


def _wanted(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    return (
        not name.startswith((".", "_"))
        and not name.lower().endswith(PARTIAL)
        and not entry.is_dir(follow_symlinks=False)
    )


def _files(stream: str, entries: list[os.DirEntry[str]]) -> Iterator[File]:
    for entry in entries:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield File(f"{stream}/{printable(entry.name)}", Path(entry.path), found.st_size, found.st_mtime_ns)
