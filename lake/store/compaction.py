"""Compaction: the rows of a log or table in fewer files, proved to be the same rows.

The commit changes no row, so it repeats the table's position: numbers, cuts and change feed go on as if it were not
there. Derived tables are compacted by delta-rs; logs by Spark, because delta-rs refuses to write tables with in-commit
timestamps. What is read together lies together afterwards: rows are put in Z-order of their identity or key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from lake.errors import LawError
from lake.store import delta
from lake.store.commit import session_settings
from lake.store.delta import Position
from lake.store.published import duckdb_type, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 << 20
"""How large files are made."""
SMALL_FILES: Final = 8
"""Twice as many files as the bytes need, and so many more, are too many: what is rewritten has grown as much since."""


@dataclass(frozen=True)
class Part:
    """What is compacted at once: a bucket of a log, or (None) a whole table."""

    bucket: int | None
    files: int
    size: int

    @property
    def due(self) -> bool:
        """Whether there are many more files than the bytes need."""
        return self.files >= 2 * math.ceil(self.size / TARGET_BYTES) + SMALL_FILES


@dataclass(frozen=True)
class Compacted:
    """What a compaction did: files and bytes before and after; `fingerprint` is that of the rows, before and after."""

    files: tuple[int, int]
    size: tuple[int, int]
    rows: int
    fingerprint: str


def parts(path: Path) -> list[Part]:
    """The parts of the table at `path`, those with the most files first."""
    actions = pa.table(DeltaTable(str(path)).get_add_actions(flatten=True))
    bucket = '"partition._bucket"' if "partition._bucket" in actions.column_names else "NULL"
    with delta.connection() as con:
        con.register("a", actions)
        query = f"SELECT {bucket}::INTEGER, count(*), sum(size_bytes)::BIGINT FROM a GROUP BY ALL ORDER BY 2 DESC, 1"
        return [Part(*row) for row in con.sql(query).fetchall()]


def compact_table(path: Path, position: Position | None, identity: Sequence[str]) -> Compacted:
    """Compacts a table by delta-rs; the caller holds its lease.

    Raises LawError, the table restored, where the rows afterwards are not those before.
    """
    table = DeltaTable(str(path))
    version, again = table.version(), _carrying(position)
    kinds = {field.name: field.type for field in pa.schema(table.schema())}
    by = [name for name in identity if not pa.types.is_nested(kinds[name])]
    if by:
        table.optimize.z_order(by, target_size=TARGET_BYTES, commit_properties=again)
    else:
        table.optimize.compact(target_size=TARGET_BYTES, commit_properties=again)
    return _proved(path, version, undo=lambda: DeltaTable(str(path)).restore(version, commit_properties=again))


def compact_log(
    spark: SparkSession, path: Path, position: Position, buckets: Iterable[int], key: Sequence[str]
) -> Compacted:
    """Compacts `buckets` of a log by Spark, by `key`; the caller holds its lease. Raises as `compact_table` does."""
    version = DeltaTable(str(path)).version()
    options = {
        "spark.databricks.delta.commitInfo.userMetadata": position.again().metadata,
        "spark.databricks.delta.optimize.maxFileSize": str(TARGET_BYTES),
    }
    numbers, columns = ", ".join(map(str, buckets)), ", ".join(f"`{name}`" for name in key)

    def run(statement: str) -> None:
        with session_settings(spark, options):
            spark.sql(statement).collect()

    run(f"OPTIMIZE delta.`{path}` WHERE _bucket IN ({numbers}) ZORDER BY ({columns})")
    return _proved(path, version, undo=lambda: run(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}"))


def fingerprint(table: DeltaTable, files: Sequence[str]) -> tuple[int, str]:
    """How many rows `files` of `table` hold, and a hash of them that no order of rows and no cut into files changes."""
    if not files:
        return 0, "0"
    fields = json.loads(table.schema().to_json())["fields"]
    with delta.connection() as con:
        partitioned = bool(table.metadata().partition_columns)
        there = con.read_parquet(list(files), union_by_name=True, hive_partitioning=partitioned)
        con.register("t", there)
        values = ", ".join(
            f"CAST({quoted(f['name']) if f['name'] in there.columns else 'NULL'} AS {duckdb_type(f['type'])})"
            for f in fields
        )
        found = con.execute(f"SELECT count(*), sum(hash({values})::HUGEINT)::VARCHAR FROM t").fetchone()
    assert found is not None
    return found[0], found[1] or "0"


def _proved(path: Path, version: int, *, undo: Callable[[], object]) -> Compacted:
    """What the commits after `version` did: they may have replaced files by others with the same rows, no more."""
    before, after = DeltaTable(str(path), version=version), DeltaTable(str(path))
    old, new = set(delta.files(before)), set(delta.files(after))
    gone, come = sorted(old - new), sorted(new - old)
    removed, added = fingerprint(before, gone), fingerprint(after, come)
    if removed != added:
        undo()
        raise LawError(
            f"compaction changed rows and was undone: {removed[0]} rows ({removed[1]}) became {added[0]} ({added[1]})",
            where=str(path),
            fix="keep this warehouse as it is and report it; lake verify tells whether its tables are right",
        )
    return Compacted((len(old), len(new)), (_bytes(gone), _bytes(come)), *added)


def _carrying(position: Position | None) -> CommitProperties | None:
    if position is None:
        return None
    return CommitProperties(custom_metadata={"userMetadata": position.again().metadata})


def _bytes(files: Iterable[str]) -> int:
    return sum(Path(file).stat().st_size for file in files)
