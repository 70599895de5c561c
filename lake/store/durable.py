"""Durability of commits: a commit is on the disk before anything outside relies on it.

Neither delta-rs nor Spark flushes files. An object store has on disk what it acknowledged. On a local disk `flush`
writes commits of any process: until the first flush of a process, everything since the table's newest checkpoint counts
as unwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lake.errors import StorageError, full
from lake.session import file_modes
from lake.store import delta
from lake.store.storage import Address, Entry
from lake.store.table_log import commit_file

_flushed: Final[dict[Address, tuple[int, Entry | None]]] = {}
"""Newest flushed version of each table, and its commit: another one has its number if the table was created again."""


def flush(path: Address, since: Callable[[], int] | None = None) -> None:
    """Flush every commit to the table: its files, then the commit, then the folders of both.

    A process that has not flushed the table yet begins after version `since`, by default before the newest checkpoint.
    Raises StorageError if a file of a commit is missing or truncated, Unavailable if the disk is full.
    """
    newest = None if path.storage.is_durable else delta.newest_version(path)
    if newest is None:
        return
    known, flushed = _flushed.get(path, (-1, None))
    first = flushed is None or commit_file(path, known).head() != flushed
    if known == newest and not first:
        return
    if first:
        known = since() if since else delta.newest_checkpoint(path) - 1
    commit = commit_file(path, newest).head()
    versions, home = range(known + 1, newest + 1), path.local
    try:
        files = _files(path, versions)
        file_modes.flush(_with_checksums(files))
        folders = {folder for file in files for folder in file.parents if folder.is_relative_to(home)}
        file_modes.flush(folders)
        file_modes.flush(_with_checksums(_log_files(path, versions)))
        file_modes.flush([home / "_delta_log", home])
        if first:
            file_modes.flush_above(home)
    except OSError as error:
        raise full(error, where=str(path)) or StorageError(
            f"the disk did not take a commit to {path.name}: {error.strerror}",
            where=error.filename or str(path),
            fix="find out what is wrong with the disk, then run the command again: no source was told of the commit",
        ) from error
    _flushed[path] = newest, commit


def flush_all(path: Address, version: int) -> None:
    """Flush the whole table from `version` on, so that files of older versions can be deleted."""
    if not path.storage.is_durable:
        with delta.opened(path, version) as table:
            files = [path.at(file).local for file in delta.files(table)]
        file_modes.flush([*_with_checksums(files), *{file.parent for file in files}])
        _flushed.pop(path, None)
        flush(path, lambda: version - 1)


def _files(path: Address, versions: Iterable[int]) -> list[Path]:
    """Raises StorageError if the newest version lacks one."""
    sizes, replaceable = dict[str, int](), set[str]()
    for version in versions:
        for kind, action in _actions(path, version):
            if kind in delta.FILE_ACTIONS - {"remove"}:
                sizes[action["path"]] = action["size"]
            if kind in delta.FILE_ACTIONS - {"add"}:
                replaceable.add(action["path"])  # vacuum may have deleted it
    files = []
    for name, size in sizes.items():
        file = path / unquote(name)
        entry = file.head()
        if entry is not None:
            files.append(file.local)
        if name not in replaceable and (entry is None or entry.size != size):
            raise StorageError(
                f"a file of {path.name} is {'cut short' if entry else 'gone'}",
                where=str(file),
                fix="restore it from a backup",
            )
    return files


def _actions(path: Address, version: int) -> list[tuple[str, dict[str, Any]]]:
    try:
        return delta.actions(path, version)
    except FileNotFoundError:  # the table was truncated after it
        return []
    except ValueError as error:
        where = str(commit_file(path, version))
        raise StorageError(
            f"a commit of {path.name} cannot be read", where=where, fix="restore it from a backup"
        ) from error


def _log_files(path: Address, versions: range) -> list[Path]:
    log = path.local / "_delta_log"
    files = [log / f"{version:020}.{kind}" for version in versions for kind in ("json", "crc")]
    if delta.newest_checkpoint(path) in versions:
        files += [log / "_last_checkpoint", *(f for f in log.glob("*.checkpoint*") if int(f.name[:20]) in versions)]
    return [file for file in files if file.exists()]


def _with_checksums(files: Iterable[Path]) -> list[Path]:
    """Add the checksum files of Spark's files, without which Spark does not read them."""
    every = list(files)
    return every + [crc for file in every if (crc := file.with_name(f".{file.name}.crc")).exists()]
