"""A bucket in memory, for what is tried between any two of its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from lake.store.storage import Entry, Storage


class Bucket(Storage):
    """A store in memory, by a clock of its own; `step` is called before each thing that is done to it."""

    may_tear, options, staging = False, None, None

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.at = 0.0
        self.step: Callable[[], object] = lambda: None

    def open(self, url: str) -> BinaryIO:
        if url not in self.files:
            raise FileNotFoundError(url)
        return BytesIO(self.files[url])

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        del deep, after
        names = sorted(file.removeprefix(f"{url}/") for file in self.files if file.startswith(f"{url}/"))
        if not names:
            raise FileNotFoundError(url)
        return (Entry(name, 0, self.times[f"{url}/{name}"]) for name in names)

    def put_if_absent(self, url: str, content: bytes) -> bool:
        self.step()
        if url in self.files:
            return False
        self.files[url], self.times[url] = content, self.at
        return True

    def put_file(self, url: str, file: Path) -> None:
        self.step()
        self.files[url], self.times[url] = file.read_bytes(), self.at

    def delete(self, url: str) -> None:
        self.step()
        self.files.pop(url, None)

    def delete_all(self, urls: Sequence[str]) -> None:
        for url in urls:
            self.delete(url)

    def head(self, url: str) -> Entry | None:
        return Entry(url.rpartition("/")[2], 0, self.times[url]) if url in self.files else None
