"""Base of files that are read in parts: a position from which reading continues."""

from __future__ import annotations

import io
from typing import Any


class Positioned(io.RawIOBase):
    """Read-only file of a known size with a position."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self._size, self._at = name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

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
