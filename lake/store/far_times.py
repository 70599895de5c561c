"""Times that delta-rs would alter: those in files of Spark's type INT96 that 64 bits of nanoseconds cannot hold.

Spark wrote INT96 until this project set another type. delta-rs reads it as nanoseconds: what is before 1677 or after
2262 becomes another time. DuckDB and Spark read it right.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.store import delta, duckdb_tables
from lake.store.storage import Address
from lake.text import literal

if TYPE_CHECKING:
    from lake.store.table_log import TableState

NEAR: Final = (datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 11, tzinfo=UTC))


def may_have_far_times(table: TableState) -> bool:
    """Return whether a time in `table` is not between NEAR, by the statistics of its files; or has none."""
    names = [*_times(pa.schema(table.schema()))]
    if not names:
        return False
    files = delta.file_actions(table)
    return any(_is_far(files, name) for name in names)


def is_altered(path: Address, *, below: float = float("inf")) -> bool:
    """Return whether delta-rs would alter times of the table's files of less than `below` bytes."""
    with delta.opened(path) as table:
        if not may_have_far_times(table):
            return False
        actions = delta.file_actions(table).select(["path", "size_bytes"]).to_pylist()
        files = [f"{path}/{file['path']}" for file in actions if file["size_bytes"] < below]
    if not files:
        return False
    with duckdb_tables.connection() as con:
        query = f"SELECT count(*) > 0 FROM parquet_schema([{', '.join(map(literal, files))}]) WHERE type = 'INT96'"
        [[found]] = con.sql(query).fetchall()
    return bool(found)


def _times(fields: pa.Schema | pa.StructType, within: str = "") -> Iterator[str]:
    """Yield the dotted names of columns with times. Lists and maps have no statistics."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _times(field.type, f"{within}{field.name}.")
        elif "timestamp" in str(field.type):
            yield f"{within}{field.name}"


def _is_far(files: pa.Table, name: str) -> bool:
    columns = [f"{kind}.{name}" for kind in ("min", "max", "null_count")]
    if not {*columns} <= {*files.column_names}:
        return bool(files.num_rows)
    least, greatest, nulls = (files.column(column) for column in columns)
    has_values = pc.fill_null(pc.less(nulls, files.column("num_records")), True)
    is_near = pc.and_(*(pc.fill_null(test, False) for test in (pc.greater(least, NEAR[0]), pc.less(greatest, NEAR[1]))))
    return bool(pc.any(pc.and_(has_values, pc.invert(is_near))).as_py())
