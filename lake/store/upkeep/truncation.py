"""Truncation of a table's history: only its newest version stays, and nothing reveals earlier rows.

Values of deleted rows survive in old data files, in files of the change feed, and in the column statistics of old
commits and checkpoints. So all of these are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from lake.store import delta, durable
from lake.store.delta import Position
from lake.store.storage import Address
from lake.store.table_log import delta_table
from lake.store.table_logs import invalidate, table_log
from lake.store.upkeep import vacuum

CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint.*\.parquet")


def begin_anew(path: Address, position: Position | None = None, **also: object) -> int:
    """Commit a checkpoint that changes no row and repeats the `position` with the metadata `also`. Return its version.

    Readers from that version on need nothing older. The caller holds the table's lease.
    """
    with delta.changing(path, _kept(path, position, also) if position else None) as (table, properties):
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
    table = delta_table(path)
    table.create_checkpoint()
    invalidate(path)
    return table.version()


def end(path: Address, *, upto: int | None = None) -> int:
    """Delete every version before the newest checkpoint, and files that no later version needs. Return their number.

    With `upto`, before the newest checkpoint not beyond this version: it may be published, and the table newer. The
    caller holds the table's lease, and has called `begin_anew`. After a crash a second call continues.
    """
    log, newest = path / "_delta_log", delta.newest_checkpoint(path)
    names = [entry.name for entry in log.list()]
    checkpoints = (int(name[:20]) for name in names if CHECKPOINT.fullmatch(name))
    since = newest if upto is None else max(version for version in checkpoints if version <= min(upto, newest))
    durable.flush_all(path, since)
    old = [log / name for name in names if _version(name) < since]
    gone = [*old, *vacuum.unneeded(path, keep=(), since=since, unnamed=timedelta())]
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
