"""Landing files in a local folder or a bucket, how they are archived, and their facts as fields of records.

Facts are the name without folder, a part of it, or the mtime. They follow from the log, so replayed records have the
same ones.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lake import text
from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.errors import DeclarationError, Unavailable
from lake.session import file_modes
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object
from lake.text import EPOCH

Content = Path | Object
FOLDER: Final = "make it a folder that this user may read"
PARTIAL: Final = (".tmp", ".part", ".partial", ".crdownload")
SECOND: Final = 10**9

Mark = tuple[str, int, int, *tuple[str, ...]]
"""Identity of a file in the log: name, size, mtime in nanoseconds; and the tag of an object."""


def in_range(mtime: int) -> int:
    """Limit `mtime`, in nanoseconds, to 64 bits (1677 to 2262)."""
    return max(-(1 << 63), min(mtime, (1 << 63) - 1))


def mark_of(entry: Mapping[str, Any]) -> Mark:
    mark = entry["path"], entry["size"], in_range(entry["mtime"])
    return (*mark, entry["tag"]) if entry.get("tag") else mark


def mark_as_json(mark: Mark) -> dict[str, Any]:
    return dict(zip(("path", "size", "mtime", "tag"), mark, strict=False))


@dataclass(frozen=True)
class File:
    """A file to read; `mtime` is in nanoseconds. If name, size, mtime or `tag` change, it is read again.

    `seen` are device, inode and time of status change, of the file and of its link target: a producer can set an mtime,
    but not these. `tag` is an object's ETag: a bucket has no mtime but the time of the last PUT.
    """

    name: str
    path: Content
    size: int
    mtime: int
    seen: tuple[int, ...] = field(default=(), repr=False)
    tag: str = ""

    @property
    def mark(self) -> Mark:
        mark = self.name, self.size, self.mtime
        return (*mark, self.tag) if self.tag else mark

    @property
    def is_denied(self) -> bool:
        """True if this user may not read it, or its link's target."""
        if isinstance(self.path, Object) or os.access(self.path, os.R_OK, effective_ids=True):
            return False
        try:
            self.path.stat()
        except OSError as error:
            return isinstance(error, PermissionError)
        return True

    def unchanged(self) -> bool:
        if isinstance(self.path, Object):
            return self.path.unchanged()
        try:
            now, target = self.path.lstat(), _target(self.path)
        except OSError:
            return False
        is_same_size_and_time = (now.st_size, in_range(now.st_mtime_ns)) == (self.size, self.mtime)
        return is_same_size_and_time and self.seen in {(), _identity(now, target)}


def unchanged(files: Iterable[File]) -> tuple[File, ...]:
    files = tuple(files)
    with ThreadPoolExecutor(objects.AT_ONCE) as pool:
        same = [*pool.map(File.unchanged, files)]
    return tuple(file for file, is_same in zip(files, same, strict=True) if is_same)


def fault_of(file: File, *, folder: Path | Address | None = None) -> str:
    """Return why `file` cannot be opened, or "". No link may lead out of `folder`. Raises OSError."""
    from lake.records.read_tasks import format_of, unknown_format  # need pyarrow, which status does not

    path = file.path
    if isinstance(path, Path):
        outside = isinstance(folder, Path) and not Path(os.path.realpath(path)).is_relative_to(folder.resolve())
        if path.is_symlink() and outside:  # realpath of a loop is the loop
            return "a symbolic link out of the landing folder"
        try:
            is_regular = path.is_file()
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # of the target of a link
                raise
            is_regular = False
        if not is_regular:
            return "not a regular file"
    return "" if format_of(path.name) else unknown_format()


def list_folder(folder: Path, stream: str) -> list[File]:
    """List a landing folder. Raises Unavailable if that is impossible, DeclarationError if it is a link."""
    if folder.is_symlink():
        raise DeclarationError(
            f"the landing folder of {stream} is a symbolic link, and files elsewhere are not ingested",
            where=str(folder),
            fix="make it a folder, or set `landing` to the folder with the files",
        )
    try:
        return list(_landing_files(stream, os.scandir(folder)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(
            f"the landing folder of {stream} cannot be read: {error.strerror}", where=str(folder), fix=FOLDER
        ) from None


def folders_in(folder: Path | Address) -> list[str]:
    with suppress(OSError):
        if isinstance(folder, Path):
            entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
            return sorted(
                printable(entry.name) for entry in entries if _is_named(entry.name) and os.listdir(entry.path)
            )
        names = [entry.name.rstrip("/") for entry in folder.list() if entry.name.endswith("/")]
        return sorted(printable(name) for name in names if _is_named(name))
    return []


def list_bucket(folder: Address, stream: str) -> list[File]:
    """List a landing folder in a bucket. Raises Unavailable; DeclarationError if an object has no tag."""
    with suppress(FileNotFoundError):
        wanted = [entry for entry in folder.list() if not entry.name.endswith("/") and _is_named(entry.name)]
        for entry in wanted:
            if not entry.tag:
                raise DeclarationError(
                    f"an object of {stream} has no ETag: a change while it is read cannot be detected",
                    where=str(folder / entry.name),
                    fix="put it there by requests, not into the files of the server; or use a store that gives ETags",
                )
        named = ((f"{stream}/{printable(entry.name)}", Object.of(folder, entry)) for entry in wanted)
        return [File(name, obj, obj.size, in_range(obj.time * SECOND), tag=obj.tag) for name, obj in named]
    return []


def printable(name: str) -> str:
    return text.printable(os.fsencode(name).decode("utf-8", "backslashreplace"))


def archived_name(mark: Mark) -> str:
    """Return a name that identifies the file in an archive: a copy to or from a bucket has another time and tag."""
    name, size, mtime, *tag = mark
    last = Path(name).name
    plain = last if "\\" not in last else "".join(Path(last).suffixes[-2:])  # escaped, hence not the name
    return f"{mtime}-{hashlib.sha256(json.dumps([name, size, mtime, *tag]).encode()).hexdigest()[:16]}-{plain}"


def move(file: File, folder: Path | Address) -> None:
    """Move a file to an archive folder; complete an interrupted move.

    To or from a bucket it is copied, then deleted unless it was replaced. Several hosts may do so concurrently.
    """
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(file.path, Path):
            move_file(file.path, _archive_path(file, file.path, folder))
            return
    copy = folder / archived_name(file.mark)
    with suppress(FileNotFoundError):  # deleted or replaced since it was listed
        _copy(file, copy)
        if file.unchanged():
            _delete(file.path)
        elif _exists(file.path):
            _delete(copy)  # it may be of the replacement


def _archive_path(file: File, path: Path, folder: Path) -> Path:
    """Return the path of `file` in an archive folder: a free one, or that of its copy.

    Raises FileExistsError if the archive has another file of this name, size and mtime.
    """
    for name in (path.name, f"{file.mtime}-{path.name}", archived_name(file.mark)):
        target = folder / name
        if not target.exists() or _is_copy(file, path, target):
            return target
    raise FileExistsError(errno.EEXIST, "the archive has another file of its name, size and time", str(target))


def _is_copy(file: File, path: Path, target: Path) -> bool:
    status = target.stat()
    same = (status.st_size, in_range(status.st_mtime_ns)) == (file.size, file.mtime)
    return same and _digest(path) == _digest(target)


def _digest(path: Path) -> bytes:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def move_file(path: Path, target: Path) -> None:
    """Move a file. On another disk, `target` is written before `path` is deleted."""
    if path.stat().st_dev == target.parent.stat().st_dev:
        path.rename(target)
        return
    part = target.with_name(f".{target.name}.part")
    shutil.copy2(path, part)
    part.rename(target)
    file_modes.flush([target, target.parent])
    path.unlink()


def _copy(file: File, copy: Path | Address) -> None:
    if isinstance(copy, Path):
        with TemporaryDirectory(dir=copy.parent, prefix=".") as own:  # a temporary file has mode 0600
            part = Path(own) / copy.name
            with file.path.open("rb") as content, part.open("xb") as new:
                shutil.copyfileobj(content, new, objects.WHOLE)
            os.utime(part, ns=(file.mtime, file.mtime))
            part.replace(copy)
        file_modes.flush([copy, copy.parent])
    elif isinstance(file.path, Path):
        copy.put_file(file.path)
    else:
        file.path.copy_to(copy)


def _exists(content: Content) -> bool:
    return content.exists() if isinstance(content, Path) else content.address.exists()


def _delete(file: Content | Address) -> None:
    if isinstance(file, Path):
        file.unlink(missing_ok=True)
    else:
        (file.address if isinstance(file, Object) else file).delete()


def _is_named(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.lower().endswith(PARTIAL)


def _landing_files(stream: str, entries: Iterable[os.DirEntry[str]]) -> Iterator[File]:
    for entry in entries:
        if not _is_named(entry.name) or entry.is_dir(follow_symlinks=False):
            continue
        try:
            status, target = entry.stat(follow_symlinks=False), _target(entry)
        except FileNotFoundError:
            continue
        name = f"{stream}/{printable(entry.name)}"
        yield File(name, Path(entry.path), status.st_size, in_range(status.st_mtime_ns), _identity(status, target))


def _target(file: Path | os.DirEntry[str]) -> os.stat_result | None:
    if not file.is_symlink():
        return None
    with suppress(OSError):
        return file.stat()
    return None


def _identity(*statuses: os.stat_result | None) -> tuple[int, ...]:
    return tuple(
        number for status in statuses if status for number in (status.st_dev, status.st_ino, status.st_ctime_ns)
    )


def fact_fields(contract: Contract) -> list[Field]:
    return [field for field in contract.fields if field.of_file]


def fact_texts(contract: Contract, name: str, mtime: int | None) -> dict[str, str | None]:
    """Return a file's facts by field. `mtime` is in nanoseconds since 1970, within 64 bits."""
    return {field.name: _fact(field, name, mtime) for field in fact_fields(contract)}


def _fact(field: Field, name: str, mtime: int | None) -> str | None:
    if field.path[-1] == "time":
        return None if mtime is None else (EPOCH + timedelta(microseconds=mtime // 1000)).isoformat()
    if not field.pattern:
        return name
    part = re.search(field.pattern, name)
    return part and part[part.re.groups]
