"""Landing files to be ingested, and the record of ingested ones.

Commits of a log list the files of their batch. `meta/landed` has copies of these lists, so that readers need not walk
the history. After a crash it is completed from the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from lake.ingest.files import (
    File,
    Mark,
    archived_name,
    folders_in,
    in_range,
    list_bucket,
    list_folder,
    mark_of,
    move,
    printable,
)
from lake.session import file_modes
from lake.store import delta
from lake.store.ledger_table import LedgerTable
from lake.store.log import Log
from lake.store.storage import Address, address_of
from lake.store.storage.objects import Object
from lake.text import some_of

LANDED: Final = LedgerTable(
    "landed",
    {
        "stream": "VARCHAR",
        "batch": "BIGINT",
        "name": "VARCHAR",
        "size": "BIGINT",
        "mtime": "BIGINT",
        "tag": "VARCHAR",
    },
)
MARK: Final = "name AS path, size, mtime, tag"


def pending(settings: Settings, stream: str, marks: set[Mark], denied: set[str]) -> list[File]:
    """Return the files of the next batch among `marks`. Add the names of unreadable ones to `denied`."""
    chosen: list[File] = []
    size = 0
    for file in list_files(settings, stream):
        if file.mark not in marks:
            continue
        if file.is_denied:
            denied.add(file.name)
            continue
        size += file.size
        if chosen and (len(chosen) >= settings.batch_files or size > settings.batch_bytes):
            break
        chosen.append(file)
    return chosen


def folder(settings: Settings, where: Path | str, stream: str) -> Path | Address:
    address = address_of(settings, where) / stream
    return address.on_disk or address


def list_files(settings: Settings, stream: str) -> list[File]:
    """List the landing folder of `stream`, by name. Raises what `list_folder` and `list_bucket` do."""
    where = folder(settings, settings.landing, stream)
    listed = list_folder(where, stream) if isinstance(where, Path) else list_bucket(where, stream)
    return sorted(listed, key=lambda file: file.name)


def local_file(settings: Settings, path: Path, *, name: str = "") -> File:
    """Return a local file. Its default name is its path, relative to the project if it is there."""
    path = path.resolve()
    status = path.stat()
    named = path.relative_to(settings.project) if path.is_relative_to(settings.project) else path
    return File(name or printable(str(named)), path, status.st_size, in_range(status.st_mtime_ns))


def ingested_marks(log: Log, *, upto: float = math.inf) -> set[Mark]:
    settings, stream, head = log.settings, log.stream, delta.head(log.path, log.app)
    query = f"SELECT batch, {MARK} FROM t WHERE stream = $1 AND batch <= $2"
    recorded = LANDED.rows(settings, query, stream, head.data["batch"] if head else 0)
    last = max((row["batch"] for row in recorded), default=0)
    return {mark_of(row) for row in chain(recorded, _files_after(log, last)) if row["batch"] <= upto}


def backlog(settings: Settings, stream: str) -> tuple[int, int]:
    """Return the number of files that are not ingested, and their bytes."""
    ingested = ingested_marks(Log(settings, stream))
    waiting = [file.size for file in list_files(settings, stream) if file.mark not in ingested]
    return len(waiting), sum(waiting)


def mtimes(settings: Settings, stream: str, batches: Collection[int]) -> dict[tuple[int, str], int]:
    """Return mtimes in nanoseconds by (batch, name)."""
    query = "SELECT batch, name, mtime FROM t WHERE stream = $1 AND list_contains($2, batch)"
    rows = LANDED.rows(settings, query, stream, sorted(batches))
    return {(row["batch"], row["name"]): row["mtime"] for row in rows}


def find_file(settings: Settings, stream: str, mark: Mark) -> File | None:
    """Return the file where it landed or in the archive; None if it is gone or changed."""
    name, size, mtime, *tag = mark
    for place in _possible_places(settings, stream, mark):
        if isinstance(place, Path):
            if place.is_file():
                file = local_file(settings, place, name=name)
                if file.mark == mark or (file.mark == mark[:3] and place.name == archived_name(mark)):
                    return replace(file, tag="".join(tag))
        elif (copy := Object.at(place)) and copy.size == size and (copy.tag in tag or copy.name == archived_name(mark)):
            return File(name, copy, size, mtime, tag="".join(tag))
    return None


def _possible_places(settings: Settings, stream: str, mark: Mark) -> Iterator[Path | Address]:
    name, _, mtime, *tag = mark
    last, landing = Path(name).name, folder(settings, settings.landing, stream)
    if isinstance(landing, Path) or tag:
        yield landing / last
    if not tag:
        yield settings.path(name)
    folders = [landing, settings.path(name).parent]
    if settings.archive is not None:
        archive = folder(settings, settings.archive, stream)
        folders.append(archive)
        if isinstance(archive, Path):
            yield archive / last
            yield archive / f"{mtime}-{last}"
        yield archive / archived_name(mark)
    if "\\" in name:  # a name with bytes escaped by `printable`
        for parent in folders:
            yield from (at for at in _entries(parent) if printable(at.name).endswith(last))


def _entries(folder: Path | Address) -> list[Path] | list[Address]:
    if isinstance(folder, Path):
        return sorted(folder.iterdir()) if folder.is_dir() else []
    with suppress(FileNotFoundError):
        return [folder / entry.name for entry in folder.list() if not entry.name.endswith("/")]
    return []


def record_ingested(log: Log) -> None:
    """Add the log's files that `meta/landed` lacks. The caller holds the log's lease."""
    settings, stream = log.settings, log.stream
    if next(_files_after(log, LANDED.greatest(settings, "batch", "stream = $1", stream)), None) is None:
        return
    with LANDED.hold_lease(settings):
        from lake.store.upkeep.compaction import pack_table  # needs pyarrow, which reading does not

        newer = _files_after(log, LANDED.greatest(settings, "batch", "stream = $1", stream))
        LANDED.append(settings, [[stream, *file.values()] for file in newer])
        pack_table(LANDED.location(settings).path)


def archive(settings: Settings, stream: str, marks: set[Mark]) -> None:
    assert settings.archive is not None
    target = folder(settings, settings.archive, stream)
    for file in list_files(settings, stream):
        if file.mark in marks and not (isinstance(file.path, Path) and file.path.is_symlink()):
            try:
                move(file, target)
            except FileNotFoundError:  # moved or deleted since it was listed
                continue
            except OSError as error:
                logging.getLogger("lake").warning("%s stays in the landing folder: %s", file.name, error.strerror)


def ignored_folders(settings: Settings, stream: str) -> list[str]:
    return folders_in(folder(settings, settings.landing, stream))


def warn_of_folders(settings: Settings, stream: str) -> None:
    """Warn once of each sub-folder with files; `.lake/folders` lists those reported. Buckets are not checked."""
    if not isinstance(folder(settings, settings.landing, stream), Path):
        return
    names = ignored_folders(settings, stream)
    reported = file_modes.scratch(settings, "folders") / stream
    before = reported.read_text("utf-8").splitlines() if reported.exists() else []
    if new := [name for name in names if name not in before]:
        words = "%s: files in sub-folders of its landing folder are not read: %s; move them up"
        logging.getLogger("lake").warning(words, stream, ", ".join(new))
    if names != before:
        reported.write_text("\n".join(names), "utf-8")


def warn_of_denied(stream: str, denied: Collection[str]) -> None:
    words = "%s: this user may not read %s: they wait in the landing folder until they may be read"
    logging.getLogger("lake").warning(words, stream, some_of(sorted(denied)))


def _files_after(log: Log, last: int) -> Iterator[dict[str, Any]]:
    """Yield the files of batches after `last`: the columns of LANDED after `stream`, with `path` for `name`."""
    for position in delta.positions(log.path, log.app):
        data = position.data
        if data["batch"] <= last:
            return
        if not data.get("repeated"):
            for file in data["files"]:
                path, size, mtime, *_ = mark_of(file)
                yield {"batch": data["batch"], "path": path, "size": size, "mtime": mtime, "tag": file.get("tag")}
