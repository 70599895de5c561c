"""Listed objects of a bucket, read like files: each in the version that was listed, or not at all.

An object never changes in place; it is replaced, and its tag with it. Reads ask for the tag, so what was read once may
be cached.
"""

from __future__ import annotations

import io
import shutil
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO, Final

from lake.store.storage import Address, Entry
from lake.store.storage.positioned import Positioned

FIRST: Final = 1 << 16
"""Bytes of the first request at a new position; doubled for each sequential read."""
MOST: Final = 8 << 20
"""Maximum bytes of one request."""
WHOLE: Final = 1 << 20
"""Maximum size of an object that is fetched by one request."""
REMEMBERED: Final = 64 << 20
"""Bytes of beginnings and ends that a process caches."""
AT_ONCE: Final = 16
"""Maximum number of objects that are looked up or opened in parallel."""
COPIES_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Object:
    """Object at `address` as it was listed, with the methods of `pathlib.Path` for a read-only file.

    `time` of its last change is in whole seconds since 1970: listings may be more precise than a look-up of the object.
    """

    address: Address
    size: int
    time: int
    tag: str

    @classmethod
    def of(cls, folder: Address, entry: Entry) -> Object:
        return cls(folder / entry.name, entry.size, int(entry.time), entry.tag)

    @classmethod
    def at(cls, address: Address) -> Object | None:
        entry = address.head()
        return cls(address, entry.size, int(entry.time), entry.tag) if entry else None

    def __str__(self) -> str:
        return self.address.url

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.name).suffixes

    def unchanged(self) -> bool:
        now = self.address.head()
        return now is not None and (now.size, now.tag) == (self.size, self.tag)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open it for reading and seeking. Reads raise FileNotFoundError if it is gone or replaced."""
        assert mode == "rb"
        return io.BufferedReader(_Content(self), FIRST)

    def read_bytes(self) -> bytes:
        """Return its content. Raises FileNotFoundError if it is gone or replaced."""
        with self.open() as stream:
            return stream.read()


def unchanged(objects: Iterable[Object]) -> list[bool]:
    """Return for each object whether it exists and has not been replaced."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(Object.unchanged, objects))


def prefetch(objects: Iterable[Object]) -> None:
    """Cache the beginnings of `objects` in parallel, as far as the cache has room."""

    def read_beginning(one: Object) -> None:
        with suppress(FileNotFoundError), one.open() as stream:
            stream.read(1)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(read_beginning, objects))


def copy_all(objects: Iterable[Object], folder: Path) -> dict[Object, Path]:
    """Copy objects into a local `folder`, in pieces; return the copies.

    Raises FileNotFoundError if one is gone or replaced.
    """
    copies = {one: folder / str(number) for number, one in enumerate(objects)}
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(_copy, copies, copies.values()))
    return copies


def _copy(one: Object, file: Path) -> None:
    with one.open() as content, file.open("wb") as copy:
        shutil.copyfileobj(content, copy, MOST)


class _Memory:
    """Cache of short parts of objects; the least recently used go first. Thread-safe."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[str, str, int, int], bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def part(self, one: Object, start: int, size: int) -> bytes:
        """Return a part of an object. Raises FileNotFoundError if it is gone or replaced and not cached."""
        key = (str(one), one.tag, start, size)
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        store: Any = one.address.storage
        part = bytes(store.part_of(str(one), one.tag, start, size))
        if size <= FIRST or size == one.size <= WHOLE:
            with self._lock:
                if key not in self._parts:
                    self._parts[key] = part
                    self._size += size
                while self._size > REMEMBERED:
                    self._size -= len(self._parts.popitem(last=False)[1])
        return part


_MEMORY: Final = _Memory()


class _Content(Positioned):
    """Content of an object, fetched as it is read, with some bytes ahead."""

    def __init__(self, source: Object) -> None:
        super().__init__(str(source), source.size)
        self._source, self._part, self._start, self._ahead = source, b"", 0, FIRST

    def _next(self, most: int) -> bytes:
        if not self._start <= self._at < self._start + len(self._part):
            self._fetch(most)
        return self._part[self._at - self._start :][:most]

    def _fetch(self, wanted: int) -> None:
        size, is_sequential = self._source.size, self._at == self._start + len(self._part)
        if self._at >= size or not wanted:
            self._part, self._start = b"", self._at
            return
        self._ahead = min(2 * self._ahead, MOST) if is_sequential and self._at else FIRST
        start, length = (0, size) if size <= WHOLE else (self._at, min(max(wanted, self._ahead), size - self._at))
        self._part, self._start = _MEMORY.part(self._source, start, length), start
