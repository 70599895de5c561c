"""Compaction: the rows of a log or table in fewer files, verified to be the same rows.

`lake maintain` makes large files of all; writers pack the small files of their commits once there are CROWDED of them.
Spark, which spills what exceeds its memory, compacts logs, in the order of event time or key, and large tables;
delta-rs compacts all else. Tables are in Z-order of their kinds' `file_order`. The commit changes no row, so it repeats
the table's position: numbers, cuts and change feed are unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from lake.errors import LawError
from lake.lazy import SparkSession, pa
from lake.session.spark_session import configured
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.delta import Position
from lake.store.duckdb_tables import TableFiles
from lake.store.positioned_commit import commit_actions, stage
from lake.store.proof.fingerprints import duck_values, fields_of_json
from lake.store.rows import sortable
from lake.store.storage import Address
from lake.store.table_log import TableState, delta_table
from lake.text import SPARK, literal, quoted

TARGET_BYTES: Final = 128 << 20
EXCESS_FILES: Final = 8
"""A group with this many files more than twice the needed number is compacted: its rewritten bytes have doubled."""
SLICES: Final = 64
"""Time spans into which a bucket of a log with event time is cut, in files of PACKED_BYTES to TARGET_BYTES."""
PACKED_BYTES: Final = 8 << 20
"""Size of files that a writer packs; files of at least half of it are not packed again."""
CROWDED: Final = 32
"""Number of small files at which a writer packs them: at 100, an append takes 3 times as long as at 10."""


@dataclass(frozen=True)
class FileGroup:
    bucket: int | None
    files: int
    size: int
    small: int
    timed: bool = False

    @property
    def target(self) -> int:
        return min(max(self.size // SLICES, PACKED_BYTES), TARGET_BYTES) if self.timed else TARGET_BYTES

    @property
    def is_due(self) -> bool:
        return self.files >= 2 * math.ceil(self.size / self.target) + EXCESS_FILES

    @property
    def is_crowded(self) -> bool:
        return self.small >= CROWDED


@dataclass(frozen=True)
class Compacted:
    """`row_hash` is DuckDB's, to compare rows within one process: a fingerprint takes twenty times as long."""

    files: tuple[int, int]
    size: tuple[int, int]
    rows: int
    row_hash: str


def file_groups(path: Address, *, timed: bool = False) -> list[FileGroup]:
    with delta.opened(path) as table:
        actions = delta.file_actions(table)
    bucket = '"partition._bucket"' if "partition._bucket" in actions.column_names else "NULL"
    with duckdb_tables.connection() as con:
        con.register("a", actions)
        query = f"""SELECT {bucket}::INTEGER, count(*), coalesce(sum(size_bytes), 0)::BIGINT,
                           count(*) FILTER (size_bytes < {PACKED_BYTES // 2})
                    FROM a GROUP BY ALL ORDER BY 2 DESC, 1"""
        return [FileGroup(number, files, size, few, timed) for number, files, size, few in con.sql(query).fetchall()]


def pack_table(path: Address, position: Position | None = None) -> None:
    """Pack the small files of a table, or of buckets of a log, if there are many.

    Does nothing if another tool committed after `position`, or if delta-rs would alter times: `lake maintain` compacts
    by Spark then. The caller holds the table's lease. Raises as `compact_table` does.
    """
    crowded = [part.bucket for part in file_groups(path) if part.is_crowded]
    if not crowded or (position is not None and position.version != delta.version(path)):
        return
    if not is_altered(path, below=PACKED_BYTES):
        buckets = [bucket for bucket in crowded if bucket is not None]
        compact_table(path, position, buckets=buckets, target=PACKED_BYTES)


def compact_table(
    path: Address,
    position: Position | None,
    order: Sequence[str] = (),
    *,
    buckets: Iterable[int] = (),
    target: int = TARGET_BYTES,
) -> Compacted:
    """Compact the files of less than `target` bytes by delta-rs; the caller holds the table's lease.

    With `order`, all files, in Z-order of these columns; with `buckets`, only those of a log. Raises LawError if the
    rows have changed; the table is then restored.
    """
    version, again = delta.version(path), position.again() if position else None
    by = sortable_columns(path, order)
    with delta_writer.changing(path, again) as (table, properties):
        how: dict[str, Any] = {
            "target_size": target,
            "writer_properties": delta_writer.writer_properties(table, "ZSTD", 4),  # delta-rs's default
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
        return _check_rows(path, new, len(before), before - after, after - before)
    except LawError:
        undo = position.again() if position else None
        with delta_writer.changing(path, undo, goes_back=True) as (table, properties):
            table.restore(version, commit_properties=properties)
        raise


def sortable_columns(path: Address, columns: Sequence[str]) -> list[str]:
    with delta.opened(path) as table:
        return sortable(pa.schema(table.schema()), columns)


def compact_by_spark(  # noqa: PLR0913 which parts of which table, and how
    spark: SparkSession,
    path: Address,
    position: Position,
    buckets: Collection[int] = (),
    key: Sequence[str] = (),
    *,
    target: int = TARGET_BYTES,
) -> Compacted:
    """Compact files of less than half of `target` bytes, or with `key` all, in Z-order of it, by Spark.

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
    with configured(spark, options):
        spark.sql(f"OPTIMIZE {staging.sql} {where} {order}").collect()
    info, actions = staging.changes()
    files = [(kind, str(path / unquote(fields["path"]))) for action in actions for kind, fields in action.items()]
    old, new = ([file for kind, file in files if kind == wanted] for wanted in ("remove", "add"))
    with delta.opened(path, staging.version) as table:
        compacted = _check_rows(path, table, len(delta.files(table)), old, new)
    if actions:
        again = position.again()
        with delta_writer.read_back(path, again.writer):
            commit_actions(path, again, actions, version=staging.version + 1, info=info)
    staging.delete_log()
    return compacted


def is_altered(path: Address, *, below: float = float("inf")) -> bool:
    """Return whether delta-rs would alter far times of the table's files of less than `below` bytes: INT96 of Spark."""
    with delta.opened(path) as table:
        if not delta_writer.may_have_far_times(table):
            return False
        actions = delta.file_actions(table).select(["path", "size_bytes"]).to_pylist()
        files = [f"{path}/{file['path']}" for file in actions if file["size_bytes"] < below]
    if not files:
        return False
    with duckdb_tables.connection() as con:
        query = f"SELECT count(*) > 0 FROM parquet_schema([{', '.join(map(literal, files))}]) WHERE type = 'INT96'"
        [[found]] = con.sql(query).fetchall()
    return bool(found)


def count_and_hash(files: TableFiles, where: str = "true") -> tuple[int, str]:
    if not files.paths:
        return 0, "0"
    fields = fields_of_json(files.table.schema().to_json())
    with duckdb_tables.open_files(files) as (con, columns):
        rows = f"SELECT {duck_values(fields, columns)} FROM t WHERE {where}"
        [[count, total]] = con.sql(f"SELECT count(*), sum(hash(r)::HUGEINT)::VARCHAR FROM ({rows}) r").fetchall()
    return count, total or "0"


def _check_rows(path: Address, table: TableState, files: int, old: Iterable[str], new: Iterable[str]) -> Compacted:
    old, new = sorted(old), sorted(new)
    before, after = (count_and_hash(TableFiles(path, table, some)) for some in (old, new))
    if before != after:
        raise LawError(
            f"compaction changed rows and was undone: {before[0]} rows ({before[1]}) became {after[0]} ({after[1]})",
            where=str(path),
            fix="keep this warehouse as it is and report a bug; lake verify shows whether its tables are right",
        )
    sizes = [sum(entry.size for file in some if (entry := path.storage.head(file))) for some in (old, new)]
    return Compacted((files, files - len(old) + len(new)), (sizes[0], sizes[1]), *after)
