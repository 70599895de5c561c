"""Objects of a bucket as they were listed, to be read as files are: each as it was then, or not at all.

An object never changes in place, it is replaced, and its tag with it: what is read is asked for by the tag, and what
was read of it once may be remembered.
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
from typing import Any, BinaryIO, Final, Protocol

from lake.store.storage import Address, Entry
from lake.store.storage.positioned import Positioned

FIRST: Final = 1 << 16
"""So many bytes are asked for at first, and where a reader has gone elsewhere; twice as many each time it reads on."""
MOST: Final = 8 << 20
WHOLE: Final = 1 << 20
"""An object that is no larger is asked for at once."""
REMEMBERED: Final = 64 << 20
"""Bytes of beginnings and ends that a process remembers."""
AT_ONCE: Final = 16
"""So many requests are under way together where each object is asked about."""

COPIES_AT_ONCE: Final = 4


class Tagged(Protocol):
    """A store that gives parts of objects by their tags."""

    def part_of(self, url: str, tag: str, start: int, size: int) -> bytes:
        """`size` bytes from `start` on. Raises FileNotFoundError where the object is gone or replaced."""


@dataclass(frozen=True)
class Object:
    """The object at `address`, as it was listed. It has what `pathlib.Path` has of a file that is only read.

    The `time` of its last change is in whole seconds since 1970: listings may tell more of it than a look at the
    object.
    """

    address: Address
    size: int
    time: int
    tag: str

    @classmethod
    def of(cls, folder: Address, entry: Entry) -> Object:
        """What a listing of `folder` tells of it."""
        return cls(folder / entry.name, entry.size, int(entry.time), entry.tag)

    @classmethod
    def at(cls, address: Address) -> Object | None:
        """What is at `address`; None where nothing is."""
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
        """Whether it is there still, and is what it was."""
        now = self.address.head()
        return now is not None and (now.size, now.tag) == (self.size, self.tag)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Its content, to be read and sought in. Reading raises FileNotFoundError where it is gone or replaced."""
        assert mode == "rb"
        return io.BufferedReader(_Content(self), FIRST)

    def read_bytes(self) -> bytes:
        """All of its content. Raises FileNotFoundError where it is gone or replaced."""
        with self.open() as stream:
            return stream.read()


def unchanged(objects: Iterable[Object]) -> list[bool]:
    """Whether each is there still, and is what it was."""
    return _each(Object.unchanged, objects)


def look_into(objects: Iterable[Object]) -> None:
    """Has the beginnings of `objects` be remembered, as many as can be: asked for one by one, they take long."""
    _each(_look_into, objects)


def _look_into(one: Object) -> None:
    with suppress(FileNotFoundError), one.open() as stream:
        stream.read(1)


def _each(ask: Any, objects: Iterable[Object]) -> list[Any]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, objects))


def copy_all(objects: Iterable[Object], folder: Path) -> dict[Object, Path]:
    """Copy objects into `folder` of this machine, in pieces; return the copies.

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
    """Short parts of objects, those dropped first that were asked for longest ago. Many threads may ask."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[str, str, int, int], bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def part(self, one: Object, start: int, size: int) -> bytes:
        """A part of an object. Raises FileNotFoundError where it is gone or replaced, unless it is remembered."""
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
    """The content of an object, of which is asked for what is read, and some of what follows."""

    def __init__(self, of: Object) -> None:
        super().__init__(str(of), of.size)
        self._of, self._part, self._start, self._ahead = of, b"", 0, FIRST

    def _next(self, most: int) -> bytes:
        if not self._start <= self._at < self._start + len(self._part):
            self._fetch(most)
        return self._part[self._at - self._start :][:most]

    def _fetch(self, wanted: int) -> None:
        """Has the part be there that begins where the reader is."""
        size, reads_on = self._of.size, self._at == self._start + len(self._part)
        if self._at >= size or not wanted:
            self._part, self._start = b"", self._at
            return
        self._ahead = min(2 * self._ahead, MOST) if reads_on and self._at else FIRST
        start, length = (0, size) if size <= WHOLE else (self._at, min(max(wanted, self._ahead), size - self._at))
        self._part, self._start = _MEMORY.part(self._of, start, length), start
