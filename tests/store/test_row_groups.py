"""Small row groups by every writer: a reader holds one whole row group per thread."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import SparkSession

from lake import cost
from lake.cli.exits import as_fault
from lake.config import Settings
from lake.session import duck
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.delta import Position
from lake.store.positioned_commit import commit_staged, stage
from lake.store.scan import Scan, to_frame
from lake.store.storage import Address
from lake.store.upkeep.compaction import compact_by_spark, compact_table

ROWS: Final = 120_000
TWICE: Final = [Position("app", number, {"n": number}) for number in (1, 2)]


def texts(seed: int) -> pa.Table:
    """Return 13 MB of rows, at least 7 MB compressed."""
    chance = random.Random(seed)
    return pa.table({"n": range(ROWS), "text": [chance.randbytes(50).hex() for _ in range(ROWS)]})


def by_delta_rs(spark: SparkSession, to: Address) -> None:
    del spark
    for seed, position in enumerate(TWICE):
        delta_writer.write(to, texts(seed), position)


def without_a_position(spark: SparkSession, to: Address) -> None:
    del spark
    for seed in range(2):
        delta_writer.add(to, texts(seed))


def by_spark(spark: SparkSession, to: Address) -> None:
    delta_writer.create(to, Schema.from_arrow(texts(0).schema), {})
    for seed, position in enumerate(TWICE):
        staging = stage(to)
        to_frame(spark, texts(seed)).coalesce(1).write.format("delta").mode("append").save(staging.path.url)
        commit_staged(staging, position)


def groups(path: Address) -> list[list[int]]:
    """Return the bytes of each row group of each file."""
    files = [pq.ParquetFile(file).metadata for file in DeltaTable(path.url).file_uris()]
    return [[file.row_group(number).total_byte_size for number in range(file.num_row_groups)] for file in files]


def codecs(path: Address) -> set[str]:
    files = [pq.ParquetFile(file).metadata for file in DeltaTable(path.url).file_uris()]
    return {file.row_group(0).column(column).compression for file in files for column in range(file.num_columns)}


@pytest.mark.long
@pytest.mark.parametrize("write", [by_delta_rs, without_a_position, by_spark])
def test_files_have_small_row_groups_when_written_and_compacted(
    spark: SparkSession, tmp_path: Path, write: Callable[[SparkSession, Address], None]
) -> None:
    table = Address(str(tmp_path / "t"))
    write(spark, table)
    version, written = delta.version(table), groups(table)
    assert len(written) == 2
    assert codecs(table) == {"SNAPPY"}
    rows = Scan(table).arrow().sort_by("text")
    compact_table(table, None)
    [once] = groups(table)
    assert codecs(table) == {"ZSTD"}
    DeltaTable(table.url).restore(version)
    compact_by_spark(spark, table, TWICE[1])
    [again] = groups(table)
    with delta_writer.changing(table, TWICE[1].again()) as (current, properties):
        how: dict[str, Any] = {
            "writer_properties": delta_writer.writer_properties(current),
            "commit_properties": properties,
        }
        current.merge(rows.slice(0, 1), "t.n = s.n AND t.text = s.text", "s", "t", **how).when_matched_update(
            {"n": "s.n"}
        ).execute()
    [merged] = groups(table)
    assert codecs(table) == {"SNAPPY"}
    for sizes in (*written, once, again, merged):
        assert len(sizes) > 1
        assert max(sizes) <= 2 * cost.ROW_GROUP
    assert Scan(table).arrow().sort_by("text") == rows


def test_compaction_makes_small_row_groups_without_file_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "ROW_GROUP", 10_000)
    table = Address(str(tmp_path / "t"))
    for seed, position in enumerate(TWICE):
        delta_writer.write(table, texts(seed).slice(0, 1000), position)
    commit = tmp_path / "t/_delta_log/00000000000000000001.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    compact_table(table, None)
    [sizes] = groups(table)
    assert 8 < len(sizes) < 40


def test_row_group_above_the_memory_limit_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Address(str(tmp_path / "t"))
    write_deltalake(table.url, texts(1))
    monkeypatch.setattr(duck, "_LIMITS", {"memory_limit": "16MB", "max_temp_directory_size": "0B"})
    duckdb_tables._database.cache_clear()
    try:
        with pytest.raises(duckdb.OutOfMemoryException) as caught:
            duckdb_tables.rows(table, "SELECT text, count(*) FROM t GROUP BY 1 ORDER BY 2, 1")
    finally:
        duckdb_tables._database.cache_clear()
    told = as_fault(caught.value, settings=Settings(project=tmp_path, client_memory=64 << 20))
    assert told.what.startswith("client_memory, 67,108,864 bytes, is not enough here: ")
    assert (told.where, told.exit_code) == (f"{tmp_path}/pyproject.toml", 1)
    assert "LAKE_CLIENT_MEMORY" in told.fix


def test_file_of_large_rows_has_one_row_in_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ROW_GROUP", 1000)
    table = Address(str(tmp_path / "t"))
    delta_writer.write(table, pa.table({"text": ["a" * 3000, "b" * 3000]}), TWICE[0])
    assert len(groups(table)[0]) == 2
    delta_writer.write(table, pa.table({"text": pa.array([], pa.string())}), TWICE[1])
    compact_table(table, None)
    assert Scan(table).rows() == 2
