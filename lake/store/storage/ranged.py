"""Files of a store read in parts, and as DuckDB reads them: a query asks for the end of a file, then for some columns.

The end of a file comes with its size by one request; small files are whole by it. Data files never change, so their
ends are remembered, and of those that are not large all that was read at once, up to a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Protocol

from fsspec import AbstractFileSystem

from lake.store.storage.positioned import Positioned

END: Final = 1 << 20
"""So many bytes of a file are asked for at first."""
WHOLE: Final = 4 << 20
"""A file of so many bytes is remembered whole, once all of it was read."""
REMEMBERED: Final = 64 << 20
"""Bytes of data files that a process remembers."""


class Parts(Protocol):
    """What gives parts of files by their URLs."""

    def end(self, url: str, most: int) -> tuple[bytes, int, float]:
        """The last bytes of a file, `most` at most, its size and its time. Raises FileNotFoundError."""

    def part(self, url: str, start: int, size: int) -> bytes:
        """`size` bytes of a file from `start` on. Raises FileNotFoundError."""


@dataclass(frozen=True)
class Known:
    """What is known of a file: its end, its size, and when it was made."""

    end: bytes
    size: int
    time: float


class Memory:
    """The ends of data files, or all of one; those asked for longest ago are dropped first. Many threads may ask."""

    def __init__(self) -> None:
        """With nothing in it."""
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def of(self, parts: Parts, url: str) -> Known:
        """What is known of a file. Raises FileNotFoundError."""
        with self._lock:
            if url in self._known:
                self._known.move_to_end(url)
                return self._known[url]
        known = Known(*parts.end(url, END))
        self.keep(url, known)
        return known

    def keep(self, url: str, known: Known) -> None:
        """Remembers what is known of a file, if it is one of data."""
        if not url.endswith(".parquet"):
            return
        with self._lock:
            if before := self._known.pop(url, None):
                self._size -= len(before.end)
            self._known[url] = known
            self._size += len(known.end)
            while self._size > REMEMBERED:
                self._size -= len(self._known.popitem(last=False)[1].end)


_MEMORY: Final = Memory()


def remember(url: str, content: bytes, time: float) -> None:
    """Remembers the content of a small file that was put there, which was made at this `time`."""
    _MEMORY.keep(url, Known(content, len(content), time))


def is_known(parts: Parts, url: str) -> bool:
    """Whether there is a file, of which the end is read if it is not remembered."""
    try:
        _MEMORY.of(parts, url)
    except FileNotFoundError:
        return False
    return True


class Ranged(Positioned):
    """A file that is read by asking for what is read."""

    def __init__(self, parts: Parts, url: str) -> None:
        """Its end is read at once. Raises FileNotFoundError."""
        self._parts, self._url = parts, url
        self.known = _MEMORY.of(parts, url)
        super().__init__(url, self.known.size)

    def _next(self, most: int) -> bytes:
        return self._between(self._at, min(self._at + most, self.known.size))

    def _between(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        known, before = self.known.end, self.known.size - len(self.known.end)
        if start >= before:
            return known[start - before : end - before]
        content = self._parts.part(self._url, start, min(end, before) - start)
        if len(content) == before and self.known.size <= WHOLE:
            self.known = Known(content + known, self.known.size, self.known.time)
            _MEMORY.keep(self._url, self.known)
        return content + known[: max(end - before, 0)]


class FileSystem(AbstractFileSystem):  # type: ignore[misc] # without types
    """The files of buckets, to be read, as DuckDB asks for them. Which it may read, its own settings say."""

    protocol = "s3"
    cachable = False

    def __init__(self) -> None:
        """Without a bucket; they are added to `stores`, by name."""
        super().__init__()
        self.stores: dict[str, Parts] = {}

    def _parts(self, path: str) -> Parts:
        bucket = _url(path).split("/")[2]
        try:
            return self.stores[bucket]
        except KeyError:
            raise FileNotFoundError(2, "No such bucket", path) from None

    def open(self, path: str, mode: str = "rb", **_: Any) -> Ranged:
        """A file to be read; nothing is written here."""
        if mode != "rb":
            raise PermissionError(1, "Files of a warehouse are not written by a query", path)
        return Ranged(self._parts(path), _url(path))

    def _known(self, path: str) -> Known:
        return _MEMORY.of(self._parts(path), _url(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        known = self._known(path)
        return {"name": path, "size": known.size, "type": "file", "mtime": known.time}

    def size(self, path: str) -> int:
        return self._known(path).size

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._known(path).time, UTC)

    def exists(self, path: str, **_: Any) -> bool:
        try:
            self._known(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        del path
        return False

    def glob(self, path: str, **_: Any) -> list[str]:
        """The file itself: files are named one by one."""
        return [path]


def _url(path: str) -> str:
    return path if path.startswith("s3://") else f"s3://{path}"
