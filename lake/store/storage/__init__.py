"""Addresses of the files of a warehouse, and the storages that keep them. A local folder is the first storage.

delta-rs, DuckDB and Spark read and write data files themselves, by the address in their own form. Operations that only
a local folder has are in lake.store.storage.removal and lake.store.truncated_commit.
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
    """Listed file `name` of `size` bytes, last changed at `time` (seconds since 1970), or folder, whose name ends in
    `/`.

    `tag` identifies the content, if the storage has tags. Size and time of folders are meaningless.
    """

    name: str
    size: int
    time: float
    tag: str = ""


class Storage(Protocol):
    """Storage of files by their URLs: a file is complete, and never changed in place."""

    @property
    def may_tear(self) -> bool:
        """Return whether a file may be truncated because its writer was stopped: true of a local folder."""

    @property
    def options(self) -> dict[str, str] | None:
        """Storage options for delta-rs."""

    @property
    def staging(self) -> Path | None:
        """Local folder in which uploads are prepared; None for any."""

    def of(self, url: str) -> Storage:
        """Return the storage of the file at `url`: this one, or another bucket of the same store."""
        del url
        return self

    def open(self, url: str) -> BinaryIO:
        """Open a file for reading and seeking. Raises FileNotFoundError."""

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        """Yield the entries of a folder by name, after the name `after`; with `deep`, all files below it.

        Raises FileNotFoundError if there is nothing.
        """

    def make_folder(self, url: str) -> None:
        del url

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        """Write a file atomically unless it exists. Return its tag, "" if unknown; None if the file exists."""

    def put_file(self, url: str, file: Path) -> None:
        """Copy a local file atomically, over any existing one; folders above it are made."""

    def delete(self, url: str) -> None:
        """Delete a file, if it exists."""

    def delete_all(self, urls: Sequence[str]) -> None:
        """Delete files, if they exist, in any order."""

    def delete_empty_folders(self, url: str) -> None:
        """Delete the folders below a folder that have no file, if this storage has folders."""
        del url

    def delete_folder(self, url: str) -> None:
        """Delete a folder and all files below it."""
        self.delete_all([f"{url}/{entry.name}" for entry in self.list(url, deep=True)])

    def head(self, url: str) -> Entry | None:
        """Return the entry of the file; None if there is none."""

    def to_read(self, url: str) -> bool:
        """Return whether the file, which is about to be read, exists. A bucket caches its end by the same request."""
        return self.head(url) is not None


class LocalFolder(Storage):
    """Files of this machine: a URL is an absolute path. Symbolic links below a folder are skipped."""

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
                with suppress(FileNotFoundError):  # the folder was removed meanwhile
                    for below in self.list(entry.path, deep=True):
                        yield Entry(f"{entry.name}/{below.name}", below.size, below.time)
            else:
                yield Entry(f"{entry.name}/", 0, 0)

    def make_folder(self, url: str) -> None:
        Path(url).mkdir(parents=True, exist_ok=True)

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        file = Path(url)
        temporary = file.with_name(f".{file.name}.{token_hex(8)}.tmp")
        temporary.write_bytes(content)
        try:
            os.link(temporary, file)
        except FileExistsError:
            return None
        finally:
            temporary.unlink()
        return ""

    def put_file(self, url: str, file: Path) -> None:
        target = Path(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{token_hex(8)}.tmp")
        shutil.copyfile(file, temporary)
        temporary.replace(target)

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
    """Folder or file of a storage, by the URL that delta-rs and DuckDB take."""

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
        return self.url

    @property
    def uri(self) -> str:
        """Escaped URI with a scheme, as Delta's log names files of another table."""
        return quote(self.url, safe=":/") if "://" in self.url else Path(self.url).as_uri()

    @property
    def local(self) -> Path:
        """Local path, for operations that only a local folder has."""
        return Path(self.url)

    def relative_to(self, folder: Address) -> str:
        if not self.url.startswith(f"{folder}/"):
            raise ValueError(f"{self} is not in {folder}")
        return self.url.removeprefix(f"{folder}/")

    def open(self) -> BinaryIO:
        return self.storage.open(self.url)

    def read(self) -> bytes:
        with self.open() as file:
            return file.read()

    def at(self, url: str) -> Address:
        return Address(url, self.storage.of(url))

    def list(self, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        return self.storage.list(self.url, deep=deep, after=after)

    def put_if_absent(self, content: bytes) -> bool:
        """Write the file atomically unless it exists. Return whether it was written."""
        return self.put_tagged(content) is not None

    def put_tagged(self, content: bytes) -> str | None:
        """Write as `put_if_absent` does. Return the new file's tag, "" if unknown; None if the file exists."""
        return self.storage.put_if_absent(self.url, content)

    def put_file(self, file: Path) -> None:
        self.storage.put_file(self.url, file)

    def delete(self) -> None:
        self.storage.delete(self.url)

    def head(self) -> Entry | None:
        return self.storage.head(self.url)

    def exists(self) -> bool:
        return self.head() is not None
