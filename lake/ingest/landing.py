"""What is to be read next: landing files as (name, size, time of change), and what has been read already.

Progress lives in the log's own commits: each lists the files of its batch. `meta/landed` remembers the older ones, so
that a reader needs not walk the whole history; it is repaired from the log, so a crash between the two loses nothing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.store import delta
from lake.store.book import Book
from lake.store.log import Log

LANDED: Final = Book(
    "landed",
    {
        "stream": "VARCHAR",
        "batch": "BIGINT",
        "name": "VARCHAR",
        "size": "BIGINT",
        "mtime": "BIGINT",
        "at": "VARCHAR",
        "contract": "INTEGER",
        "ordered": "BOOLEAN",
        "content": "VARCHAR",
    },
)
FOLDER = "make it a folder that this user may read"
PARTIAL = (".tmp", ".part", ".partial", ".crdownload")


Mark = tuple[str, int, int]


@dataclass(frozen=True)
class Taken:
    """What batch `batch` was made of, in the order of reading: `marks`, `at` which time, under which contract version.

    Time and contract are not known of batches of long ago, nor the `content` that they had, as the commit said it; and
    their events are not `ordered` by arrival.
    """

    batch: int
    marks: tuple[Mark, ...]
    at: datetime | None = None
    contract: int | None = None
    ordered: bool = True
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class File:
    """A file to read. `name` is how sources and progress call it; `mtime` is in nanoseconds.

    A file counts as read when name, size and mtime are those of one that was: a changed one is read again. `seen` is
    what else was seen of it, and of what it links to: a producer can set an mtime, but no time of change.
    """

    name: str
    path: Path
    size: int
    mtime: int
    seen: tuple[int, ...] = field(default=(), repr=False)

    @property
    def mark(self) -> Mark:
        """What progress remembers of the file."""
        return self.name, self.size, self.mtime

    def unchanged(self) -> bool:
        """Whether the file still is what it was when it was listed."""
        try:
            now, target = self.path.lstat(), _target(self.path)
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.mtime) and self.seen in {(), _seen(now, target)}


def pending(settings: Settings, stream: str, marks: set[Mark]) -> list[File]:
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

    Raises Unavailable where the folder exists and cannot be listed, DeclarationError where it is a link.
    """
    folder = settings.path(settings.landing) / stream
    if folder.is_symlink():
        raise DeclarationError(
            f"the landing folder of {stream} is a symbolic link, and files elsewhere are not ingested",
            where=str(folder),
            fix="make it a folder, or set `landing` to the folder with the files",
        )
    try:
        entries = [entry for entry in os.scandir(folder) if _wanted(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(
            f"the landing folder of {stream} cannot be read: {error.strerror}", where=str(folder), fix=FOLDER
        ) from None
    return sorted(_files(stream, entries), key=lambda file: file.name)


def at_hand(settings: Settings, path: Path, *, name: str = "") -> File:
    """A file that somebody names; called by its path within the project, else by its whole path, if not by `name`."""
    whole = path.resolve()
    status = whole.stat()
    named = whole.relative_to(settings.project) if whole.is_relative_to(settings.project) else whole
    return File(name or printable(str(named)), whole, status.st_size, status.st_mtime_ns)


def printable(name: str) -> str:
    """`name` with bytes that are not UTF-8, and control characters, spelled out."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def landed(log: Log, *, upto: float = math.inf) -> set[Mark]:
    """The marks of every file that the log has taken in, with batch `upto` at the latest."""
    settings, stream, head = log.settings, log.stream, delta.head(log.path, log.app)
    query = "SELECT batch, name, size, mtime FROM t WHERE stream = $1 AND batch <= $2"
    old = LANDED.rows(settings, query, stream, head.data["batch"] if head else 0)
    remembered = max((row["batch"] for row in old), default=0)
    return {(row["name"], row["size"], row["mtime"]) for row in old if row["batch"] <= upto} | {
        (name, size, mtime) for batch, name, size, mtime, *_ in _newer(log, remembered) if batch <= upto
    }


def last_taken(settings: Settings, stream: str) -> int:
    """The number of the last batch that is remembered, 0 where none is."""
    rows = LANDED.rows(settings, "SELECT max(batch) AS batch FROM t WHERE stream = $1", stream)
    return max((row["batch"] or 0 for row in rows), default=0)


def taken(settings: Settings, stream: str, batch: int) -> Taken | None:
    """What is remembered as `batch`; None for nothing."""
    query = "SELECT * FROM t WHERE stream = $1 AND batch = $2"
    rows = LANDED.rows(settings, query, stream, batch)
    if not rows:
        return None
    marks = tuple((row["name"], row["size"], row["mtime"]) for row in rows)
    at = rows[0].get("at")
    when = datetime.fromisoformat(at) if at else None
    content = next((json.loads(row["content"]) for row in rows if row.get("content")), None)
    return Taken(batch, marks, when, rows[0].get("contract"), bool(rows[0].get("ordered")), content)


def times(settings: Settings, stream: str, batches: Collection[int]) -> dict[tuple[int, str], int]:
    """When the files of remembered `batches` were changed, in nanoseconds, by (batch, name)."""
    query = "SELECT batch, name, mtime FROM t WHERE stream = $1 AND list_contains($2, batch)"
    rows = LANDED.rows(settings, query, stream, sorted(batches))
    return {(row["batch"], row["name"]): row["mtime"] for row in rows}


def found_again(settings: Settings, stream: str, mark: Mark) -> File | None:
    """The file of a `mark`, as it was when it was read, wherever it is by now; None where it is gone."""
    candidates = [*places(settings, stream, mark), *_unprintable(settings, stream, mark[0])]
    files = [at_hand(settings, path, name=mark[0]) for path in candidates if path.is_file()]
    return next((file for file in files if file.mark == mark), None)


def disown(settings: Settings, stream: str, batch: int) -> None:
    """Forgets what is remembered as `batch`: files of it that are there are new again."""
    with LANDED.written(settings), delta.changing(LANDED.location(settings).path) as (table, properties):
        table.delete(f"stream = '{stream}' AND batch = {batch}", commit_properties=properties)


def places(settings: Settings, stream: str, mark: Mark) -> list[Path]:
    """Where the file of `mark` may be by now."""
    name, _, mtime = mark
    file = Path(name).name
    places = [settings.path(settings.landing) / stream / file, settings.path(name)]
    if settings.archive is not None:
        folder = settings.path(settings.archive) / stream
        places += [folder / file, folder / f"{mtime}-{file}"]
    return places


def _unprintable(settings: Settings, stream: str, name: str) -> Iterator[Path]:
    """The files whose name progress had to spell out, where `name` may be of such: it has what `printable` writes."""
    if "\\" not in name:
        return
    folders = {settings.path(settings.landing) / stream, settings.path(name).parent}
    folders |= {settings.path(settings.archive) / stream} if settings.archive is not None else set()
    for folder in sorted(folders):
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if printable(file.name).endswith(Path(name).name):
                yield file


def remember(log: Log) -> None:
    """Brings `meta/landed` up to the log."""
    settings, stream = log.settings, log.stream
    with LANDED.written(settings):
        newer = [(stream, *record) for record in _newer(log, last_taken(settings, stream))]
        if newer:
            from lake.store.upkeep.compaction import pack_table  # which needs pyarrow, and reading does not

            LANDED.append(settings, newer)
            pack_table(LANDED.location(settings).path)


def archive(settings: Settings, stream: str, marks: set[Mark], folder: Path) -> None:
    """Moves the landing files among `marks` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in listing(settings, stream):
        if file.mark in marks and not file.path.is_symlink():
            target = folder / file.path.name
            if target.exists():
                target = folder / f"{file.mtime}-{file.path.name}"
            shutil.move(file.path, target)


def _newer(log: Log, last: int) -> Iterator[tuple[int, str, int, int, str, int, bool, str | None]]:
    """As LANDED, but the stream: the files in the log's commits after batch `last`; the content, with the first."""
    for position in delta.positions(log.path, log.app):
        batch = position.data["batch"]
        if batch <= last:
            return
        if not position.data.get("repeated"):
            content = json.dumps(position.data["content"]) if "content" in position.data else None
            for file in position.data["files"]:
                mark = file["path"], file["size"], file["mtime"]
                data = position.data
                yield batch, *mark, data["at"], data["contract"], data.get("ordered", False), content
                content = None


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
            status, target = entry.stat(follow_symlinks=False), _target(entry)
        except FileNotFoundError:
            continue
        name = f"{stream}/{printable(entry.name)}"
        yield File(name, Path(entry.path), status.st_size, status.st_mtime_ns, _seen(status, target))


def _target(file: Path | os.DirEntry[str]) -> os.stat_result | None:
    """What a link leads to, where it leads anywhere."""
    if not file.is_symlink():
        return None
    with suppress(OSError):
        return file.stat()
    return None


def _seen(*statuses: os.stat_result | None) -> tuple[int, ...]:
    return tuple(
        number for status in statuses if status for number in (status.st_dev, status.st_ino, status.st_ctime_ns)
    )
