"""The end of a table's past: it begins anew at its newest version, and nothing tells what earlier ones held.

The values of rows that are gone live on in old data files, in files of the change feed, and in the column statistics
that old commits and checkpoints keep. So all of these go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def end(path: Path) -> int:
    """Removes every version of the table at `path` before its newest checkpoint, and files that none since needs.

    The caller holds the table's lease. Returns how many files went; after a crash, called again, it goes on.
    """
    log = path / "_delta_log"
    since: int = json.loads((log / "_last_checkpoint").read_text())["version"]
    old = [file for file in sorted(log.iterdir()) if _version(file) < since]
    gone = [*old, *vacuum.unneeded(path, keep=(), since=since)]
    for file in gone:
        file.unlink()
    return len(gone)


def _kept(path: Path, position: Position, also: Mapping[str, object]) -> Position:
    """`position` as the new commit repeats it, with what the newest build said of the definition."""
    built = next((p for p in delta.positions(path, position.app) if "definition" in p.data), position)
    return Position(position.app, position.txn, {**built.data, **position.data, **also}, position.version).again()


def _version(file: Path) -> float:
    """The version that a file of a Delta log is about; those that are about none are no older than any."""
    number = file.name.lstrip(".")[:20]
    return int(number) if number.isdigit() and len(number) == 20 else float("inf")
