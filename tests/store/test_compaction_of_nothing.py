"""Compaction of a table without rows, which has no files. No JVM."""

from __future__ import annotations

from pathlib import Path

from deltalake import write_deltalake

from lake.store import duckdb_tables
from lake.store.storage import Address
from lake.store.table_log import delta_table
from lake.store.upkeep.compaction import file_groups


def test_table_without_rows_is_not_due_for_compaction(tmp_path: Path) -> None:
    table = Address(str(tmp_path / "t"))
    duckdb_tables.append(table, "a INTEGER", [(1,)])
    write_deltalake(table.url, delta_table(table).to_pyarrow_table().slice(0, 0), mode="overwrite")
    assert [(part.files, part.size, part.is_due) for part in file_groups(table)] == [(0, 0, False)]
