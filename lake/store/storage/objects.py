"""Object storages, apart from the protocol of their requests; and listed objects, read like files.

An object is complete or not there. It never changes in place; it is replaced, and its tag with it. It is read in the
version that was listed, or not at all: reads ask for the tag, so what was read once may be cached. Folders are common
prefixes of names. DuckDB reads objects through fsspec, see lake.store.storage.ranged.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from lake.store.storage import Address, Entry, Item, Result, Storage, Use
from lake.store.storage.positioned import Positioned, SizedCache

FIRST: Final = 1 << 16
"""Bytes of the first request at a new position; doubled for each sequential read."""
MOST: Final = 8 << 20
"""Maximum bytes of one request."""
WHOLE: Final = 1 << 20
"""Maximum size of an object that is fetched by one request."""
AT_ONCE: Final = 16
"""Maximum number of objects that are looked up or opened in parallel."""
COPIES_AT_ONCE: Final = 4
THREADS: Final = 8
"""Maximum number of parallel requests about tables."""
FETCHED: Final = 32
"""Maximum number of files whose ends are fetched in advance."""
MANY_FILES: Final = 3
"""From this number of files of a table on, they are looked up by a listing."""


class RemoteStorage(Storage):
    """Object storage. A subclass adds the requests, and raises Unavailable for those that fail."""

    is_durable = is_remote = True

    def end(self, url: str, most: int) -> tuple[bytes, int, float]:
        """Return at most `most` last bytes of a file, its size and its time. Raises FileNotFoundError."""
        raise NotImplementedError

    def part(self, url: str, start: int, size: int, tag: str = "") -> bytes:
        """Return `size` bytes of a file from `start` on. Raises FileNotFoundError, also for another `tag`."""
        raise NotImplementedError

    def copy(self, source: Object, url: str) -> None:
        """Copy an object to `url`, over any existing one. Raises FileNotFoundError if it is gone or replaced."""
        raise NotImplementedError

    def open(self, url: str) -> BinaryIO:
        from lake.store.storage.ranged import Ranged

        return io.BufferedReader(Ranged(self, url), 1 << 16)

    def delete(self, url: str) -> None:
        self.delete_all([url])

    def delete_folder(self, url: str) -> None:
        self.delete_all([f"{url}/{entry.name}" for entry in self.list(url, deep=True)])

    def delete_table(self, url: str) -> None:
        """Delete the checkpoints first, then the commits, without which the rest is not read."""
        with suppress(FileNotFoundError):
            names = [entry.name for entry in self.list(url, deep=True)]
            log = [name for name in names if name.startswith("_delta_log/")]
            commits = [name for name in log if name.endswith(".json")]
            for part in (sorted(set(log) - set(commits)), commits, sorted(set(names) - set(log))):
                self.delete_all([f"{url}/{name}" for name in part])

    def to_read(self, url: str) -> bool:
        from lake.store.storage import ranged

        return ranged.exists(remote(Address(url, self.of(url))), url)

    def missing(self, urls: Sequence[str], *, to_read: bool = False) -> Sequence[str]:
        if to_read and len(urls) <= FETCHED:
            begun = self.begin(self.to_read, urls)
            return [url for url in urls if not begun[url].result()]
        if len(urls) < MANY_FILES:
            return [url for url in urls if self.of(url).head(url) is None]
        by_table: defaultdict[str, list[str]] = defaultdict(list)
        for url in urls:
            by_table[url.partition("/_bucket=")[0] if "/_bucket=" in url else url.rpartition("/")[0]].append(url)
        existing: set[str] = set()
        for some in by_table.values():
            common = os.path.commonprefix(some)  # noqa: RUF071  commonpath makes one slash of the two in ://
            folder = common.rpartition("/")[0]
            with suppress(FileNotFoundError):  # all were deleted
                existing |= {f"{folder}/{entry.name}" for entry in self.of(folder).list(folder, deep=True)}
        return [url for url in urls if url not in existing]

    def begin(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Mapping[Item, Future[Result]]:
        pool = ThreadPoolExecutor(THREADS)
        begun = {item: pool.submit(copy_context().run, call, item) for item in items}
        pool.shutdown(wait=False)
        return begun

    def check(self, url: str, setting: str, use: Use) -> str:
        from lake.store.storage.access_check import check_objects

        return check_objects(Address(url, self), use)


def remote(address: Address) -> RemoteStorage:
    assert isinstance(address.storage, RemoteStorage)
    return address.storage


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

    def copy_to(self, target: Address) -> None:
        """Copy it, over any existing object. Raises FileNotFoundError if it is gone or replaced."""
        remote(target).copy(self, target.url)

    def read_bytes(self) -> bytes:
        """Return its content. Raises FileNotFoundError if it is gone or replaced."""
        with self.open() as stream:
            return stream.read()


def prefetch(objects: Iterable[Object]) -> None:
    """Cache the beginnings of `objects` in parallel, as far as the cache has room."""

    def read_beginning(one: Object) -> None:
        with suppress(FileNotFoundError), one.open() as stream:
            stream.read(1)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(read_beginning, objects))


def copy_all(objects: Iterable[Object], folder: Path) -> dict[Object, Path]:
    """Copy objects into a local `folder`; return the copies. Raises FileNotFoundError if one is gone or replaced."""
    copies = {one: folder / str(number) for number, one in enumerate(objects)}
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(_copy, copies, copies.values()))
    return copies


def _copy(one: Object, file: Path) -> None:
    with one.open() as content, file.open("wb") as copy:
        shutil.copyfileobj(content, copy, MOST)


_PARTS: Final = SizedCache[bytes]()


def _part(one: Object, start: int, size: int) -> bytes:
    """Return a part of an object; cache short ones. Raises FileNotFoundError if it is gone or replaced."""
    key = (str(one), one.tag, start, size)
    part = _PARTS.get(key)
    if part is None:
        part = remote(one.address).part(str(one), start, size, one.tag)
        if size <= FIRST or size == one.size <= WHOLE:
            _PARTS.put(key, part, size)
    return part


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
        self._part, self._start = _part(self._source, start, length), start
