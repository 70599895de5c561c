"""Files of a Delta table that nothing needs any more.

deltalake tells which files the newest version does not have; those of kept versions and of the change feed are taken
out of them, and the rest is deleted without a commit, so that a table's versions are those of its rows.
"""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.config import Settings
from lake.store import delta
from lake.store.torn import commit_file
from lake.store.warehouse import Warehouse

GRACE: Final = timedelta(minutes=1)
"""A commit's time is that of its beginning: who began to read shortly after may not have seen it."""
CHECKPOINT_EVERY: Final = 20
UPLOAD: Final = re.compile(r"#\d+$")
"""What delta-rs has begun to write is called so until it is whole, and its own listing hides it."""
UNNAMED: Final = timedelta(days=1)
"""So long a file that no commit names is left alone: Spark may be at work for a client that died, and commit it yet."""


def unneeded(path: Path, *, keep: Iterable[int], since: int, unnamed: timedelta = UNNAMED) -> list[Path]:
    """The files that no version of `keep`, none from `since` on, and no change feed after `since` reads.

    Those that no commit names once they are `unnamed` old. The caller holds the table's lease, so that no writer's new
    files are among them.
    """
    stale = DeltaTable(str(path)).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    needed = _needed(path, sorted({*keep, since}), since)
    # What a commit has removed is named for good, whether its file is still there or not.
    gone = {file for name in stale if (file := path / name) not in needed and file.exists()}
    gone -= _awaited(path, gone, datetime.now(UTC) - unnamed)
    log = path / "_delta_log"
    gone |= {file for file in path.rglob("*#*") if UPLOAD.search(file.name)}
    return [*sorted(file for file in gone if not _checks(file, gone)), *log.glob("_commit_*.tmp"), *log.glob(".*.tmp")]


def _needed(path: Path, keep: Sequence[int], since: int) -> set[Path]:
    """The files of the versions `keep`, in order, of all from `since` on, and of the change feed after it.

    One walk over the commits, where asking for the files of each version takes 10 ms a version.
    """
    first, last = DeltaTable(str(path), version=keep[0]), delta.version(path)
    born = {Path(file): keep[0] for file in delta.files(first)}
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


def _awaited(path: Path, files: Iterable[Path], moment: datetime) -> set[Path]:
    """Those of `files` that were made after `moment`, and that no commit, which is no older than its files, names."""
    after = moment.timestamp()
    young = {file for file in files if file.suffix != ".crc" and file.stat().st_mtime > after}
    for version in range(delta.version(path), -1, -1):
        commit = commit_file(path, version)
        if not young or not commit.exists() or commit.stat().st_mtime <= after:
            break
        young -= {file for _, file in _actions(path, version)}
    return young


def seen_at(path: Path, moment: datetime) -> int:
    """The newest version that who began to read at `moment` has surely seen; the first, where none is that old."""
    latest = (moment - GRACE).timestamp() * 1000
    return next((c["version"] for c in delta.commits(path) if c["timestamp"] <= latest), 0)


def before_newest(path: Path) -> list[int]:
    """The version before the newest, which counts again should the newest's commit turn out to be cut short.

    None where the table begins at its newest.
    """
    before = delta.version(path) - 1
    try:
        return [DeltaTable(str(path), version=before).version()] if before >= 0 else []
    except DeltaError:  # its past was ended
        return []


def left_behind(settings: Settings, before: datetime) -> list[Path]:
    """What crashes left beside the tables: tables whose removal was cut short, what was staged or spilled `before`."""
    scratch = [file for name in ("staging", "sql") for file in settings.path(f".lake/{name}").glob("*")]
    old = [file for file in scratch if file.lstat().st_mtime < before.timestamp()]
    return [*sorted(Warehouse(settings).root.glob("*/.*.gone")), *old]


def remove_table(path: Path) -> None:
    """Removes the Delta table at `path`; a crash leaves the whole table, or what no one takes for one."""
    gone = path.with_name(f".{path.name}.gone")
    if gone.exists():  # an earlier removal was cut short, and the table built again
        shutil.rmtree(gone)
    path.rename(gone)
    shutil.rmtree(gone)


def checkpoint(path: Path) -> None:
    """Keeps the commits few that opening the table reads one by one."""
    last = path / "_delta_log" / "_last_checkpoint"
    table = DeltaTable(str(path))
    known = json.loads(last.read_text())["version"] if last.exists() else 0
    if table.version() - known >= CHECKPOINT_EVERY:
        table.create_checkpoint()


def _actions(path: Path, version: int) -> Iterator[tuple[str, Path]]:
    """What the commit `version` did with files: add, remove, cdc (of the change feed)."""
    for line in commit_file(path, version).read_text().splitlines():
        [(kind, action)] = json.loads(line).items()
        if kind in {"add", "remove", "cdc"}:
            yield kind, path / unquote(action["path"])


def _checks(file: Path, gone: set[Path]) -> bool:
    """Whether `file` is the checksum, as Spark writes them, of one that stays."""
    checked = file.with_name(file.name[1:-4])
    return file.name.startswith(".") and file.suffix == ".crc" and checked.exists() and checked not in gone
