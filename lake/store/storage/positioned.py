"""Files that are read in parts: a position from which reading continues, and a cache of parts."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, Final, Generic, TypeVar

REMEMBERED: Final = 64 << 20
"""Bytes that a process keeps in each cache."""
Value = TypeVar("Value")


class SizedCache(Generic[Value]):
    """Cache of at most REMEMBERED bytes; the least recently used go first. Thread-safe."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        with self._lock:
            self._size += size - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, size
            while self._size > REMEMBERED:
                self._size -= self._values.popitem(last=False)[1][1]


class Positioned(io.RawIOBase):
    """Read-only file of a known size with a position."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size, self._at = name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if self._at < 0:
            raise OSError(22, "Invalid argument", self._name)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        content = self._next(len(view))
        view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def readall(self) -> bytes:
        """Read the rest by one request: `io` would send one for each 8 KiB."""
        parts = []
        while content := self._next(max(0, self._size - self._at)):
            parts.append(content)
            self._at += len(content)
        return b"".join(parts)

    def _next(self, most: int) -> bytes:
        """Return at most `most` bytes after the position; none only at the end."""
        raise NotImplementedError
