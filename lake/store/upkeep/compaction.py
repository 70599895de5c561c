"""Compaction: the rows of a log or table in fewer files, proved to be the same rows.

There are two. `lake maintain` makes large files of all. Writers pack the small files that their commits leave, once
there are CROWDED of them, so that no commit finds more than that: the cost of the next one does not grow.

The commit changes no row, so it repeats the table's position: numbers, cuts and change feed go on as if it were not
there. `lake maintain` has Spark compact logs, which spills what is too large for its memory; delta-rs compacts all
else. What is read together lies together afterwards: `lake maintain` puts the
rows of a log in the order of their event time, and others in Z-order of their identity or key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from lake.errors import LawError
from lake.quoting import SPARK, quoted
from lake.store import delta, duckdb_tables
from lake.store.delta import Position
from lake.store.positioned_commit import commit_staged
from lake.store.snapshot import duckdb_type
from lake.store.staging_table import stage
from lake.store.storage import Address
from lake.store.table_log import TableState, delta_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 << 20
"""How large files are made."""
SMALL_FILES: Final = 8
"""Twice as many files as the bytes need, and so many more, are too many: what is rewritten has grown as much since."""
SLICES: Final = 64
"""Into so many spans of time a bucket of a log with event time is cut, in files of PACKED_BYTES to TARGET_BYTES."""
PACKED_BYTES: Final = 8 << 20
"""How large a writer packs files; those of half of it are left alone from then on."""
CROWDED: Final = 32
"""So many smaller ones are packed: at 100 small files an append takes 3 times what it takes at 10."""


@dataclass(frozen=True)
class FileGroup:
    """What is compacted at once: a bucket of a log, or (None) a whole table."""

    bucket: int | None
    files: int
    size: int
    small: int
    timed: bool = False

    @property
    def target(self) -> int:
        """How large its files are made: those of a log with event time so that one is a small part of its time."""
        return min(max(self.size // SLICES, PACKED_BYTES), TARGET_BYTES) if self.timed else TARGET_BYTES

    @property
    def due(self) -> bool:
        """Whether there are many more files than the bytes need."""
        return self.files >= 2 * math.ceil(self.size / self.target) + SMALL_FILES

    @property
    def crowded(self) -> bool:
        """Whether there are so many small files that the next writers would feel them."""
        return self.small >= CROWDED


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: files and bytes before and after; `fingerprint` is that of the rows, before and after."""

    files: tuple[int, int]
    size: tuple[int, int]
    rows: int
    fingerprint: str


def file_groups(path: Address, *, timed: bool = False) -> list[FileGroup]:
    """The parts of the table at `path`, those with the most files first; of a log, whether its events have a time."""
    with delta.opened(path) as table:
        actions = pa.table(table.get_add_actions(flatten=True))
    bucket = '"partition._bucket"' if "partition._bucket" in actions.column_names else "NULL"
    with duckdb_tables.connection() as con:
        con.register("a", actions)
        query = f"""SELECT {bucket}::INTEGER, count(*), coalesce(sum(size_bytes), 0)::BIGINT,
                           count(*) FILTER (size_bytes < {PACKED_BYTES // 2})
                    FROM a GROUP BY ALL ORDER BY 2 DESC, 1"""
        return [FileGroup(number, files, size, few, timed) for number, files, size, few in con.sql(query).fetchall()]


def pack_table(path: Address, position: Position | None = None) -> None:
    """Packs the small files of a table where there are many; the caller holds its lease. Raises as `compact_table`."""
    if any(part.crowded for part in file_groups(path)) and not _foreign(path, position):
        compact_table(path, position, target=PACKED_BYTES)


def pack_log(path: Address, position: Position) -> None:
    """Packs the small files of the buckets of a log that have many. Raises as `compact_table` does."""
    crowded = [part.bucket for part in file_groups(path) if part.crowded and part.bucket is not None]
    if crowded and not _foreign(path, position):
        compact_table(path, position, buckets=crowded, target=PACKED_BYTES)


def _foreign(path: Address, position: Position | None) -> bool:
    """Whether another tool has written to the table last: its rows are not ours to move."""
    return position is not None and position.version != delta.version(path)


def compact_table(
    path: Address,
    position: Position | None,
    identity: Sequence[str] = (),
    *,
    buckets: Iterable[int] = (),
    target: int = TARGET_BYTES,
) -> Compacted:
    """Compacts the files of less than `target` bytes by delta-rs; the caller holds the table's lease.

    With `identity`, all files, by it; with `buckets`, those of a log alone. Raises LawError where the rows afterwards
    are not those before; the table is then restored.
    """
    version, again = delta.version(path), position.again() if position else None
    by = sortable_columns(path, identity)
    with delta.changing(path, again) as (table, properties):
        how: dict[str, Any] = {
            "target_size": target,
            "writer_properties": delta.in_groups(table, "ZSTD", 4),  # by itself it compresses so too
            "commit_properties": properties,
        }
        if by:
            table.optimize.z_order(by, **how)
        else:
            parts = [("_bucket", "in", [str(bucket) for bucket in buckets])] if buckets else None
            table.optimize.compact(parts, **how)

    old, new = delta_table(path, version), delta_table(path)
    before, after = set(delta.files(old)), set(delta.files(new))
    try:
        return _proved(path, new, len(before), before - after, after - before)
    except LawError:
        undo = position.again() if position else None
        with delta.changing(path, undo, goes_back=True) as (table, properties):
            table.restore(version, commit_properties=properties)
        raise


def sortable_columns(path: Address, columns: Sequence[str]) -> list[str]:
    """Those of the `columns` of the table at `path` by which its rows can be put in order."""
    with delta.opened(path) as table:
        kinds = {field.name: field.type for field in pa.schema(table.schema())}
    return [name for name in columns if not pa.types.is_nested(kinds[name])]


def compact_by_spark(  # noqa: PLR0913 which parts of which table, and how
    spark: SparkSession,
    path: Address,
    position: Position,
    buckets: Collection[int] = (),
    key: Sequence[str] = (),
    *,
    target: int = TARGET_BYTES,
) -> Compacted:
    """Compact `buckets` of a log, or a table, by Spark: files of less than half of `target` bytes, or with `key` all,
    in Z-order of it.

    The caller holds the lease. Raises LawError if the rows would change; nothing is committed then.
    """
    options = {
        "spark.databricks.delta.optimize.minFileSize": str(target // 2),
        "spark.databricks.delta.optimize.maxFileSize": str(target),
        "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    }
    where = f"WHERE _bucket IN ({', '.join(map(str, buckets))})" if buckets else ""
    order = f"ZORDER BY ({', '.join(quoted(name, SPARK) for name in key)})" if key else ""
    staging = stage(path, with_files=True)
    for name, value in options.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"OPTIMIZE {staging.sql} {where} {order}").collect()
    finally:
        for name in options:
            spark.conf.unset(name)
    _, actions = staging.changes()
    files = [(kind, str(path / unquote(fields["path"]))) for action in actions for kind, fields in action.items()]
    gone, come = ([file for kind, file in files if kind == wanted] for wanted in ("remove", "add"))
    with delta.opened(path, staging.version) as table:
        compacted = _proved(path, table, len(delta.files(table)), gone, come)
    if actions:
        again = position.again()
        with delta.read_back(path, again.writer):
            commit_staged(staging, again)
    return compacted


def fingerprint(path: Address, table: TableState, files: Sequence[str], where: str = "true") -> tuple[int, str]:
    """How many rows `files` of the `table` at `path` hold, and a hash that no order and no cut into files changes.

    Of those that `where`, DuckDB's SQL, is true of.
    """
    if not files:
        return 0, "0"
    fields = json.loads(table.schema().to_json())["fields"]
    with duckdb_tables.open_files(path, table, files) as (con, columns):
        values = ", ".join(
            f"CAST({quoted(f['name']) if f['name'] in columns else 'NULL'} AS {duckdb_type(f['type'])})" for f in fields
        )
        counted = con.execute(f"SELECT count(*), sum(hash({values})::HUGEINT)::VARCHAR FROM t WHERE {where}").fetchone()
    assert counted is not None
    return counted[0], counted[1] or "0"


def _proved(path: Address, table: TableState, files: int, gone: Iterable[str], come: Iterable[str]) -> Compacted:
    """Return what a compaction of the `table` does, which replaces the files `gone`, of `files`, by the files `come`.

    Raises LawError if these have other rows.
    """
    gone, come = sorted(gone), sorted(come)
    removed, added = fingerprint(path, table, gone), fingerprint(path, table, come)
    if removed != added:
        raise LawError(
            f"compaction changed rows and was undone: {removed[0]} rows ({removed[1]}) became {added[0]} ({added[1]})",
            where=str(path),
            fix="keep this warehouse as it is and report a bug; lake verify shows whether its tables are right",
        )
    sizes = [sum(entry.size for file in some if (entry := path.storage.head(file))) for some in (gone, come)]
    return Compacted((files, files - len(gone) + len(come)), (sizes[0], sizes[1]), *added)
