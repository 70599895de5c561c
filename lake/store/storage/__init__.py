"""Addresses of the files of a warehouse, and the storages that keep them. A local folder is the first storage.

Data files are read and written by delta-rs, DuckDB and Spark themselves, each by the address in its own form. What only
a local folder has is in lake.store.storage.disk and lake.store.truncated_commit; locks of this machine: store.locks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO, Final, Protocol
from urllib.parse import quote


@dataclass(frozen=True)
class Entry:
    """What is called `name` below what was listed: a file of `size` bytes, last changed at `time`; or a folder.

    The time is in seconds since 1970; the tag is of the content, where the storage has one. The names of folders end in
    `/`; their size and time say nothing.
    """

    name: str
    size: int
    time: float
    tag: str = ""


class Storage(Protocol):
    """What keeps files by their URLs: whole ones, never changed in place."""

    @property
    def may_tear(self) -> bool:
        """Whether only the beginning of a file may be there, of one whose writer was stopped."""

    @property
    def options(self) -> dict[str, str] | None:
        """What delta-rs is told of it."""

    @property
    def staging(self) -> Path | None:
        """The folder of this machine where what is put there may be made; None for any."""

    def of(self, url: str) -> Storage:
        """What keeps the file at `url`: this, or another bucket of the same store."""
        del url
        return self

    def open(self, url: str) -> BinaryIO:
        """The content of a file, to be read and sought in. Raises FileNotFoundError."""

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        """What is in a folder, by name, from the one that follows `after`; with `deep`, all files below it.

        Raises FileNotFoundError where there is nothing.
        """

    def make_folder(self, url: str) -> None:
        """Make a folder and those above it, if this storage has folders."""
        del url

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        """Write a file, at once and whole, unless there is one. Return its tag, "" if unknown; None if there is one."""

    def put_file(self, url: str, file: Path) -> None:
        """Copies a file of this machine, at once and whole, over what there may be; folders above it are made."""

    def delete(self, url: str) -> None:
        """Deletes a file, which may be gone already."""

    def delete_all(self, urls: Sequence[str]) -> None:
        """Deletes files, which may be gone already, in any order."""

    def delete_empty_folders(self, url: str) -> None:
        """Delete the folders below a folder that have no file, if this storage has folders."""
        del url

    def delete_folder(self, url: str) -> None:
        """Delete a folder and all files below it."""
        self.delete_all([f"{url}/{entry.name}" for entry in self.list(url, deep=True)])

    def head(self, url: str) -> Entry | None:
        """The file at `url`; None where there is none."""

    def to_read(self, url: str) -> bool:
        """Whether there is a file, which is about to be read: some of it may come with the answer."""
        return self.head(url) is not None


class LocalFolder(Storage):
    """The files of this machine: a URL is an absolute path. Symbolic links are passed over below a folder."""

    may_tear = True
    options = None
    staging = None

    def open(self, url: str) -> BinaryIO:
        return open(url, "rb")

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        for entry in sorted(os.scandir(url), key=lambda entry: entry.name):
            if entry.name <= after or (deep and entry.is_symlink()):
                continue
            if not entry.is_dir():
                if file := self.head(entry.path):
                    yield Entry(entry.name, file.size, file.time)
            elif deep:
                with suppress(FileNotFoundError):  # a folder that has gone since
                    for below in self.list(entry.path, deep=True):
                        yield Entry(f"{entry.name}/{below.name}", below.size, below.time)
            else:
                yield Entry(f"{entry.name}/", 0, 0)

    def make_folder(self, url: str) -> None:
        Path(url).mkdir(parents=True, exist_ok=True)

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        file = Path(url)
        whole = file.with_name(f".{file.name}.{token_hex(8)}.tmp")
        whole.write_bytes(content)
        try:
            os.link(whole, file)
        except FileExistsError:
            return None
        finally:
            whole.unlink()
        return ""

    def put_file(self, url: str, file: Path) -> None:
        target = Path(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = target.with_name(f".{target.name}.{token_hex(8)}.tmp")
        shutil.copyfile(file, whole)
        whole.replace(target)

    def delete(self, url: str) -> None:
        Path(url).unlink(missing_ok=True)

    def delete_all(self, urls: Sequence[str]) -> None:
        for url in urls:
            self.delete(url)

    def delete_empty_folders(self, url: str) -> None:
        for folder, _, files in os.walk(url, topdown=False):
            if not files and folder != url:
                with suppress(OSError):  # it has a folder with files
                    os.rmdir(folder)

    def delete_folder(self, url: str) -> None:
        shutil.rmtree(url)

    def head(self, url: str) -> Entry | None:
        try:
            file = os.stat(url)
        except FileNotFoundError:
            return None
        return Entry(os.path.basename(url), file.st_size, file.st_mtime) if S_ISREG(file.st_mode) else None


LOCAL: Final = LocalFolder()


@dataclass(frozen=True, order=True)
class Address:
    """A folder or a file of a storage, by the URL that delta-rs and DuckDB take."""

    url: str
    storage: Storage = field(default=LOCAL, compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.url}/{name}", self.storage)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        return Address(self.url.rpartition("/")[0], self.storage)

    @property
    def spark(self) -> str:
        """The address as Spark takes it."""
        return self.url

    @property
    def uri(self) -> str:
        """The address as an escaped URI with a scheme, as Delta's log names files of another table."""
        return quote(self.url, safe=":/") if "://" in self.url else Path(self.url).as_uri()

    @property
    def local(self) -> Path:
        """The address on this machine, for what only a local folder has."""
        return Path(self.url)

    def relative_to(self, folder: Address) -> str:
        """The address below `folder`. Raises ValueError where it is elsewhere."""
        if not self.url.startswith(f"{folder}/"):
            raise ValueError(f"{self} is not in {folder}")
        return self.url.removeprefix(f"{folder}/")

    def open(self) -> BinaryIO:
        """The content, to be read and sought in. Raises FileNotFoundError."""
        return self.storage.open(self.url)

    def read(self) -> bytes:
        """The whole content. Raises FileNotFoundError."""
        with self.open() as file:
            return file.read()

    def at(self, url: str) -> Address:
        """The address of `url`, which is of the same storage, or of another bucket of it."""
        return Address(url, self.storage.of(url))

    def list(self, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        """What is in the folder, by name, from the one that follows `after`; with `deep`, all files below it.

        Raises FileNotFoundError.
        """
        return self.storage.list(self.url, deep=deep, after=after)

    def put_if_absent(self, content: bytes) -> bool:
        """Write the file, at once and whole, unless there is one. Return whether it was written."""
        return self.put_tagged(content) is not None

    def put_tagged(self, content: bytes) -> str | None:
        """As `put_if_absent`. Return the tag of what was written, "" if unknown; None if there is a file."""
        return self.storage.put_if_absent(self.url, content)

    def put_file(self, file: Path) -> None:
        """Copies a file of this machine there, at once and whole."""
        self.storage.put_file(self.url, file)

    def delete(self) -> None:
        """Deletes the file, which may be gone already."""
        self.storage.delete(self.url)

    def head(self) -> Entry | None:
        """The size and time of the file; None where there is none."""
        return self.storage.head(self.url)

    def exists(self) -> bool:
        """Whether the file is there."""
        return self.head() is not None
