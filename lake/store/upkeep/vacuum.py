"""Deletion of files of a Delta table that nothing needs any more: vacuum, and truncation of its history.

deltalake lists the files that the newest version lacks. Files of kept versions and of the change feed are excluded, and
the rest is deleted without a commit, so a table's versions are those of its rows. After a truncation (`begin_anew`,
then `truncate`) nothing reveals earlier rows, whose values are also in the column statistics of old commits.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from lake.store import delta, delta_writer, durable
from lake.store.delta import Position
from lake.store.delta_writer import CHECKPOINT_EVERY
from lake.store.storage import Address
from lake.store.table_log import commit_file, delta_table
from lake.store.table_logs import invalidate, table_log

GRACE: Final = timedelta(minutes=1)
"""A commit's time is that of its beginning, so a read that began shortly after it may not have seen it."""
CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint.*\.parquet")
UPLOAD: Final = re.compile(r"#\d+$")
"""Unfinished file of delta-rs, which its own listing hides."""
CHECKSUM: Final = re.compile(r"\.(.*)\.crc")
UNCOMMITTED: Final = re.compile(r"(_commit_|\.).*\.tmp")
"""Unfinished commit of delta-rs or Headwater."""
UNNAMED: Final = timedelta(days=1)
"""Age below which a file that no commit names is kept: a host with an expired lease may still commit it."""


def unneeded(path: Address, *, keep: Iterable[int], since: int, unnamed: timedelta = UNNAMED) -> dict[Address, int]:
    """Return the files, with sizes, that no version of `keep`, none from `since` on, and no later change feed reads.

    Files that no commit names are returned once they are `unnamed` old. The caller holds the lease: no writer has new
    ones.
    """
    stale = delta_table(path).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    files = {path / entry.name: entry for entry in path.list(deep=True)}
    oldest = _oldest_version(path, files)
    since = max(since, oldest)
    needed = _needed(path, sorted({since, *(version for version in keep if version >= oldest)}), since)
    gone = {file for name in stale if (file := path / name) not in needed and file in files}
    gone -= _may_be_committed(path, {file: files[file].time for file in gone}, datetime.now(UTC) - unnamed)
    gone |= {file for file in files if UPLOAD.search(file.name)}
    gone -= {file for file in gone if (checked := _checked_by(file)) in files and checked not in gone}
    gone |= {file for file in files if file.parent == path / "_delta_log" and UNCOMMITTED.fullmatch(file.name)}
    return {file: files[file].size for file in sorted(gone)}


def _oldest_version(path: Address, files: Collection[Address]) -> int:
    """Return the oldest version that can be read: after a truncation, that of the oldest checkpoint."""
    if commit_file(path, 0) in files:
        return 0
    return min(_checkpoints(file.name for file in files if file.parent == path / "_delta_log"), default=0)


def _checkpoints(names: Iterable[str]) -> Iterator[int]:
    return (int(name[:20]) for name in names if CHECKPOINT.fullmatch(name))


def _needed(path: Address, keep: Sequence[int], since: int) -> set[Address]:
    """Return the files of the versions `keep` (sorted), of all from `since` on, and of the change feed after it.

    One walk over the commits, because listing the files of each version takes 10 ms a version.
    """
    first, last = delta_table(path, keep[0]), delta.version(path)
    born = {path.at(file): keep[0] for file in delta.files(first)}
    needed = set()
    for version in range(keep[0] + 1, last + 1):
        for kind, file in _actions(path, version):
            if kind == "add":
                born[file] = version
            elif kind == "cdc" and version > since:
                needed.add(file)
            elif kind == "remove":
                kept = bisect_left(keep, version) > bisect_left(keep, born.pop(file, version))
                if kept or version > since:
                    needed.add(file)
    return needed | born.keys()


def _may_be_committed(path: Address, files: Mapping[Address, float], moment: datetime) -> set[Address]:
    """Return those `files` made after `moment` that no commit adds or removes. No commit is older than its files."""
    after = moment.timestamp()
    young = {file for file, time in files.items() if not file.name.endswith(".crc") and time > after}
    for version in range(delta.version(path), -1, -1):
        commit = commit_file(path, version).head() if young else None
        if commit is None or commit.time <= after:
            break
        young -= {file for _, file in _actions(path, version)}
    return young


def seen_at(path: Address, moment: datetime) -> int:
    """Return the newest version that a read begun at `moment` has surely seen; the first if none is that old."""
    latest = (moment - GRACE).timestamp() * 1000
    return next((c["version"] for c in delta.commits(path) if c["timestamp"] <= latest), 0)


def before_newest(path: Address) -> list[int]:
    """Return the version before the newest, which counts again if the newest commit proves to be truncated.

    Empty if the table begins at its newest.
    """
    before = delta.version(path) - 1
    try:
        return [delta_table(path, before).version()] if before >= 0 else []
    except DeltaError:  # the table was truncated
        return []


def checkpoint(path: Address) -> None:
    table = delta_table(path)
    if table.version() - max(delta.newest_checkpoint(path), 0) >= CHECKPOINT_EVERY:
        table.create_checkpoint()


def _actions(path: Address, version: int) -> Iterator[tuple[str, Address]]:
    for kind, action in delta.actions(path, version):
        if kind in delta.FILE_ACTIONS:
            yield kind, path / unquote(action["path"])


def _checked_by(file: Address) -> Address | None:
    name = CHECKSUM.fullmatch(file.name)
    return file.parent / name[1] if name else None


def begin_anew(path: Address, position: Position | None = None, **also: object) -> int:
    """Commit a checkpoint that changes no row and repeats the `position` with the metadata `also`.

    Readers from the version returned on need nothing older. The caller holds the table's lease.
    """
    with delta_writer.changing(path, _kept(path, position, also) if position else None) as (table, properties):
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    table = delta_table(path)
    table.create_checkpoint()
    invalidate(path)
    return table.version()


def truncate(path: Address, *, upto: int | None = None) -> int:
    """Delete every version before the newest checkpoint, and files that no later version needs; return their number.

    With `upto`, before the newest checkpoint not beyond this version: it may be published, and the table newer. The
    caller holds the lease, and has called `begin_anew`. After a crash a second call continues.
    """
    log, newest = path / "_delta_log", delta.newest_checkpoint(path)
    names = [entry.name for entry in log.list()]
    since = newest if upto is None else max(each for each in _checkpoints(names) if each <= min(upto, newest))
    durable.flush_all(path, since)
    old = [log / name for name in sorted(names, key=_version) if _version(name) < since]
    gone = [*old, *unneeded(path, keep=(), since=since, unnamed=timedelta())]
    for file in gone:
        file.delete()
    table_log(path).forget()
    return len(gone)


def _kept(path: Address, position: Position, also: Mapping[str, object]) -> Position:
    built = next((p.data for p in delta.positions(path, position.app) if "definition" in p.data), {})
    definition = {"definition": built["definition"]} if built else {}
    return Position(position.app, position.txn, {**definition, **position.data, **also}, position.version).again()


def _version(name: str) -> float:
    number = name.lstrip(".")[:20]
    return int(number) if number.isdigit() and len(number) == 20 else float("inf")
