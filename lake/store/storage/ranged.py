"""Files of a store read in parts, and DuckDB's file system over them: a query reads a file's end, then some columns.

One request returns the end of a file and its size; small files are complete by it. Data files never change, so their
ends are cached up to a limit, and of small files everything that was read at once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from fsspec import AbstractFileSystem

from lake.session import duck
from lake.store.storage.positioned import Positioned, SizedCache

END: Final = 1 << 20
"""Bytes of a file's end that the first request asks for."""
WHOLE: Final = 4 << 20
"""Maximum size of a file that is cached completely once all of it was read."""


class Parts(Protocol):
    """Storage of which parts of files are read: see RemoteStorage."""

    def end(self, url: str, most: int) -> tuple[bytes, int, float]: ...

    def part(self, url: str, start: int, size: int) -> bytes: ...


@dataclass(frozen=True)
class FileEnd:
    """Cached last bytes `end` of a file, all of a small one; its size and its creation time."""

    end: bytes
    size: int
    time: float


_ENDS: Final = SizedCache[FileEnd]()


def _end(storage: Parts, url: str) -> FileEnd:
    """Return the end of a file, read if it is not cached. Raises FileNotFoundError."""
    known = _ENDS.get(url)
    if known is None:
        known = FileEnd(*storage.end(url, END))
        _keep(url, known)
    return known


def _keep(url: str, known: FileEnd) -> None:
    if url.endswith(".parquet"):  # a data file, which never changes
        _ENDS.put(url, known, len(known.end))


def remember(url: str, content: bytes, time: float) -> None:
    """Cache the content of a small file that was uploaded at `time`."""
    _keep(url, FileEnd(content, len(content), time))


def exists(storage: Parts, url: str) -> bool:
    """Return whether the file exists; its end is read if it is not cached."""
    try:
        _end(storage, url)
    except FileNotFoundError:
        return False
    return True


class Ranged(Positioned):
    """File whose end is read at once, the rest on demand."""

    def __init__(self, storage: Parts, url: str) -> None:
        """Raises FileNotFoundError."""
        self._storage, self._url = storage, url
        self.known = _end(storage, url)
        super().__init__(url, self.known.size)

    def _next(self, most: int) -> bytes:
        return self._between(self._at, min(self._at + most, self.known.size))

    def _between(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        known, before = self.known.end, self.known.size - len(self.known.end)
        if start >= before:
            return known[start - before : end - before]
        content = self._storage.part(self._url, start, min(end, before) - start)
        if len(content) == before and self.known.size <= WHOLE:
            self.known = FileEnd(content + known, self.known.size, self.known.time)
            _keep(self._url, self.known)
        return content + known[: max(end - before, 0)]


def register(storage: Parts, scheme: str, name: str) -> None:
    """Have DuckDB read `scheme://NAME/…` from `storage`."""
    system: Any = duck.FILE_SYSTEMS.setdefault(scheme, FileSystem(scheme))
    system.stores[name] = storage


class FileSystem(AbstractFileSystem):  # type: ignore[misc] # without types
    """Read-only file system of a scheme for DuckDB, whose own settings limit what it may read."""

    cachable = False

    def __init__(self, scheme: str) -> None:
        """Begin without storages: add them to `stores`, by the first name of their URLs."""
        super().__init__()
        self.protocol = scheme
        self.stores: dict[str, Parts] = {}

    def _url(self, path: str) -> str:
        return path if "://" in path else f"{self.protocol}://{path}"

    def _storage(self, path: str) -> Parts:
        try:
            return self.stores[self._url(path).split("/")[2]]
        except KeyError:
            raise FileNotFoundError(2, "No such bucket", path) from None

    def open(self, path: str, mode: str = "rb", **_: Any) -> Ranged:
        if mode != "rb":
            raise PermissionError(1, "Files of a warehouse are not written by a query", path)
        return Ranged(self._storage(path), self._url(path))

    def _known(self, path: str) -> FileEnd:
        return _end(self._storage(path), self._url(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        known = self._known(path)
        return {"name": path, "size": known.size, "type": "file", "mtime": known.time}

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._known(path).time, UTC)

    def exists(self, path: str, **_: Any) -> bool:
        with suppress(FileNotFoundError):
            return exists(self._storage(path), self._url(path))
        return False

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the file itself: files are named one by one."""
        return [path]
