"""Addresses of the files of a warehouse, and the storages that keep them: a local folder, or an object storage.

A kind of object storage is a connector: an entry point of the group `lake.storage`, named as the scheme of its URLs,
whose object is a StorageKind. delta-rs, DuckDB and Spark read and write data files themselves, by their URLs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

from lake.config import Settings, StorageAccess
from lake.connectors import translated_import_errors

Use: TypeAlias = Literal["read", "move", "write", "commit"]
"""Use of a folder: its files are read, read and deleted, or written; or tables in it are committed to."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Entry:
    """Listed file of `size` bytes, last changed at `time` (seconds since 1970); or folder, whose name ends in `/`.

    `tag` identifies the content, if the storage has tags. Size and time of folders are meaningless.
    """

    name: str
    size: int
    time: float
    tag: str = ""


class Storage(Protocol):
    """Storage of files by their URLs. No file is changed in place.

    `is_durable`: each file is complete and on the disk. In a folder, it may be truncated because its machine stopped.
    `is_remote`: calls are requests, so their results are cached; and other hosts may use the storage at the same time.
    """

    is_durable: ClassVar[bool]
    is_remote: ClassVar[bool]

    @property
    def options(self) -> dict[str, str] | None:
        """Storage options for delta-rs."""

    @property
    def staging(self) -> Path | None:
        """Local folder in which uploads are prepared; None for any."""

    def of(self, url: str) -> Storage:
        """Return the storage of the file at `url`: this one, or another of the same kind and settings."""
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
        for url in urls:
            self.delete(url)

    def delete_empty_folders(self, url: str) -> None:
        """Delete the folders below a folder that have no file, if this storage has folders."""
        del url

    def delete_folder(self, url: str) -> None:
        """Delete a folder and all files below it."""

    def delete_table(self, url: str) -> None:
        """Delete a Delta table; a crash leaves the whole table, or no table."""

    def head(self, url: str) -> Entry | None:
        """Return the entry of the file; None if there is none."""

    def to_read(self, url: str) -> bool:
        """Return whether the file, which is about to be read, exists. A remote one is cached by the same request."""
        return self.head(url) is not None

    def missing(self, urls: Sequence[str], *, to_read: bool = False) -> Sequence[str]:
        """Return those files that do not exist. If few are `to_read` in this process, they are cached."""
        return [url for url in urls if self.head(url) is None]

    def begin(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Mapping[Item, Future[Result]]:
        """Begin a call for each of `items` in parallel, since each is a request; {} if calls take no time."""
        return {}

    def check(self, url: str, setting: str, use: Use) -> str:
        """Return what `lake doctor` reports of the folder of a setting. Raises LakeError if it cannot be used."""


class StorageKind(StorageAccess, Protocol):
    """Kind of object storage: the object of an entry point in the group `lake.storage`, named as its `scheme`.

    It is imported if a setting has a URL of that scheme. Keys of the storage are no settings: its client and Spark read
    them from the environment. A RemoteStorage (lake.store.storage.objects) has all but the requests themselves.
    """

    def open(self, settings: Settings, url: str) -> Storage:
        """Return the storage of `url`, without a request. Raises DeclarationError for wrong settings."""


class LocalFolder(Storage):
    """Files of this machine: a URL is an absolute path. A deep listing skips symbolic links."""

    is_durable = is_remote = False
    options = None
    staging = None

    def open(self, url: str) -> BinaryIO:
        return open(url, "rb")

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        entries = {f"{entry.name}/" if entry.is_dir() else entry.name: entry for entry in os.scandir(url)}
        for name, entry in sorted(entries.items()):
            if deep and entry.is_symlink():
                continue
            if not entry.is_dir():
                if name > after and (file := self.head(entry.path)):
                    yield Entry(name, file.size, file.time)
            elif deep:
                with suppress(FileNotFoundError):  # the folder was removed meanwhile
                    for below in self.list(entry.path, deep=True):
                        if f"{name}{below.name}" > after:
                            yield Entry(f"{name}{below.name}", below.size, below.time)
            elif name > after:
                yield Entry(name, 0, 0)

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

    def delete_empty_folders(self, url: str) -> None:
        for folder, _, files in os.walk(url, topdown=False):
            if not files and folder != url:
                with suppress(OSError):  # it has a folder with files
                    os.rmdir(folder)

    def delete_folder(self, url: str) -> None:
        shutil.rmtree(url)

    def delete_table(self, url: str) -> None:
        folder = Path(url)
        gone = folder.with_name(f".{folder.name}.gone")
        if gone.exists():  # an earlier deletion was interrupted, and the table built again
            shutil.rmtree(gone)
        folder.rename(gone)
        shutil.rmtree(gone)

    def check(self, url: str, setting: str, use: Use) -> str:
        from lake.store.storage.access_check import check_folder

        return check_folder(Path(url), setting, use)

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
    def uri(self) -> str:
        """Escaped URI with a scheme, as Delta's log names files of another table."""
        return quote(self.url, safe=":/") if "://" in self.url else Path(self.url).as_uri()

    @property
    def on_disk(self) -> Path | None:
        """Path on this machine; None in a remote storage."""
        return None if self.storage.is_remote else Path(self.url)

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
        return self.storage.put_if_absent(self.url, content) is not None

    def put_file(self, file: Path) -> None:
        self.storage.put_file(self.url, file)

    def delete(self) -> None:
        self.storage.delete(self.url)

    def head(self) -> Entry | None:
        return self.storage.head(self.url)

    def exists(self) -> bool:
        return self.head() is not None

    def missing(self, urls: Sequence[str], *, to_read: bool = False) -> Sequence[str]:
        return self.storage.missing(urls, to_read=to_read)


@lru_cache(maxsize=64)
def address_of(settings: Settings, where: Path | str) -> Address:
    """Return the address of a folder of the project: a path, or a URL in an object storage.

    Raises DeclarationError for an unknown or broken kind of storage, and for wrong settings.
    """
    url = settings.place(where)
    scheme, is_url, _ = url.partition("://")
    if not is_url:
        return Address(url)
    with translated_import_errors("lake.storage", scheme, url) as entry:
        kind: StorageKind = entry.load()
        return Address(url, kind.open(settings, url))
