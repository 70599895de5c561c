"""The end of a table's past: it begins anew at its newest version, and nothing tells what earlier ones held.

The values of rows that are gone live on in old data files, in files of the change feed, and in the column statistics
that old commits and checkpoints keep. So all of these go.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from deltalake import CommitProperties, DeltaTable

from lake.store import delta, vacuum
from lake.store.delta import Position


def begin_anew(path: Path, position: Position | None = None, **also: object) -> int:
    """One more commit, which changes no row, repeats the `position` with what it says `also`, and is a checkpoint.

    Returns its version: whoever reads from it on needs nothing older. The caller holds the table's lease.
    """
    again = _kept(path, position, also).metadata if position else None
    properties = CommitProperties(custom_metadata={"userMetadata": again}) if again else None
    table = DeltaTable(str(path))
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    table = DeltaTable(str(path))
    table.create_checkpoint()
    return table.version()


def begins(path: Path) -> int:
    """The version of the table's newest checkpoint: whoever reads from it on needs nothing older. -1 for none whole."""
    try:
        version: int = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"]
    except (FileNotFoundError, ValueError):
        return -1
    return version


def end(path: Path, *, upto: int | None = None) -> int:
    """Removes every version of the table at `path` before its newest checkpoint, and files that none since needs.

    With `upto`, before the newest one that is not beyond this version: it may have been published, and the table gone
    on since. The caller holds the table's lease, and has had the table begin anew. Returns how many files went; after a
    crash, called again, it goes on.
    """
    log, newest = path / "_delta_log", begins(path)
    since = newest if upto is None else max(each for each in _checkpoints(log) if each <= min(upto, newest))
    _on_disk([*log.glob(f"{since:020}.*"), log / "_last_checkpoint", log])
    old = [file for file in sorted(log.iterdir()) if _version(file) < since]
    gone = [*old, *vacuum.unneeded(path, keep=(), since=since, unnamed=timedelta())]
    for file in gone:
        file.unlink()
    return len(gone)


def _checkpoints(log: Path) -> Iterator[int]:
    return (int(file.name[:20]) for file in log.glob("[0-9]*.checkpoint*.parquet"))


def _kept(path: Path, position: Position, also: Mapping[str, object]) -> Position:
    """`position` as the new commit repeats it, with what the newest build said of the definition."""
    built = next((p for p in delta.positions(path, position.app) if "definition" in p.data), position)
    return Position(position.app, position.txn, {**built.data, **position.data, **also}, position.version).again()


def _on_disk(files: Iterable[Path]) -> None:
    """Has the disk hold `files`, folders among them, before what they replace is gone."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _version(file: Path) -> float:
    """The version that a file of a Delta log is about; those that are about none are no older than any."""
    number = file.name.lstrip(".")[:20]
    return int(number) if number.isdigit() and len(number) == 20 else float("inf")
