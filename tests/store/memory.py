"""Bucket in memory, for tests that interleave other work with its requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from lake.store.storage import Entry
from lake.store.storage.objects import Object, RemoteStorage


class Bucket(RemoteStorage):
    """Object store in memory with its own clock. `step` is called before each request."""

    options, staging = None, None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.at = 0.0
        self.asked: list[tuple[str, int, int]] = []
        self.step: Callable[[], object] = lambda: None

    def open(self, url: str) -> BinaryIO:
        if url not in self.files:
            raise FileNotFoundError(url)
        return BytesIO(self.files[url])

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        self.step()
        names = sorted(file.removeprefix(f"{url}/") for file in self.files if file.startswith(f"{url}/"))
        if not names:
            raise FileNotFoundError(url)
        found = dict.fromkeys(name if deep or "/" not in name else f"{name.partition('/')[0]}/" for name in names)
        return (replace(self.head(f"{url}/{name}") or Entry("", 0, 0), name=name) for name in found if name > after)

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        self.step()
        if url in self.files:
            return None
        self.files[url], self.times[url] = content, self.at
        return ""

    def put(self, url: str, content: bytes) -> None:
        """Put an object, replacing any of the same name."""
        self.files[url], self.times[url] = content, self.at

    def copy(self, source: Object, url: str) -> None:
        """Copy the current content of an object."""
        self.step()
        if str(source) not in self.files:
            raise FileNotFoundError(str(source))
        self.put(url, self.files[str(source)])

    def end(self, url: str, most: int) -> tuple[bytes, int, float]:
        if url not in self.files:
            raise FileNotFoundError(2, "No such file", url)
        return self.files[url][-most:], len(self.files[url]), self.times[url]

    def part(self, url: str, start: int, size: int, tag: str = "") -> bytes:
        entry = self.head(url)
        if entry is None or entry.tag != tag:
            raise FileNotFoundError(2, "No such file", url)
        self.asked.append((url, start, size))
        return self.files[url][start : start + size]

    def put_file(self, url: str, file: Path) -> None:
        self.step()
        self.put(url, file.read_bytes())

    def delete(self, url: str) -> None:
        self.step()
        self.files.pop(url, None)

    def delete_all(self, urls: Sequence[str]) -> None:
        for url in urls:
            self.delete(url)

    def head(self, url: str) -> Entry | None:
        if url not in self.files:
            return None
        content = self.files[url]
        return Entry(url.rpartition("/")[2], len(content), self.times[url], hashlib.md5(content).hexdigest())


@dataclass
class Clock:
    """Clock that advances only by waiting, for leases in a bucket. Each wait calls `meanwhile`."""

    at: float = 1000.0
    meanwhile: Callable[[], object] = lambda: None

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.meanwhile()
