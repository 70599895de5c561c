"""The parts of a file that are read apart are small, whoever writes it: a reader holds the whole of one a thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake import cost
from lake.store import delta
from lake.store.delta import Position
from lake.store.scan import Scan, to_frame
from lake.store.storage import Address
from lake.store.upkeep.compaction import compact_by_spark, compact_table

ROWS: Final = 200_000
TWICE: Final = [Position("app", number, {"n": number}) for number in (1, 2)]


def texts(seed: int) -> pa.Table:
    """24 MB that no compression makes smaller than 14."""
    chance = random.Random(seed)
    return pa.table({"n": range(ROWS), "text": [chance.randbytes(50).hex() for _ in range(ROWS)]})


def by_delta_rs(spark: SparkSession, to: Address) -> None:
    del spark
    for seed, position in enumerate(TWICE):
        delta.write(to, texts(seed), position)


def without_a_position(spark: SparkSession, to: Address) -> None:
    del spark
    for seed in range(2):
        delta.add(to, texts(seed))


def by_spark(spark: SparkSession, to: Address) -> None:
    for seed, position in enumerate(TWICE):
        rows = to_frame(spark, texts(seed)).coalesce(1).write.format("delta").mode("append")
        rows.options(**position.writer_options).save(to.spark)


def groups(path: Address) -> list[list[int]]:
    """How many bytes each group of each file takes."""
    files = [pq.ParquetFile(file).metadata for file in DeltaTable(path.url).file_uris()]
    return [[file.row_group(number).total_byte_size for number in range(file.num_row_groups)] for file in files]


def codecs(path: Address) -> set[str]:
    files = [pq.ParquetFile(file).metadata for file in DeltaTable(path.url).file_uris()]
    return {file.row_group(0).column(column).compression for file in files for column in range(file.num_columns)}


@pytest.mark.turns
@pytest.mark.parametrize("write", [by_delta_rs, without_a_position, by_spark])
def test_a_file_is_in_small_groups_as_it_is_written_and_once_it_is_compacted(
    spark: SparkSession, tmp_path: Path, write: Callable[[SparkSession, Address], None]
) -> None:
    table = Address(str(tmp_path / "t"))
    write(spark, table)
    written = groups(table)
    assert len(written) == 2
    assert codecs(table) == {"SNAPPY"}
    rows = Scan(table).arrow().sort_by("text")
    compact_table(table, None)
    [once] = groups(table)
    assert codecs(table) == {"ZSTD"}
    DeltaTable(table.url).restore(1)
    compact_by_spark(spark, table, TWICE[1])
    [again] = groups(table)
    for sizes in (*written, once, again):
        assert len(sizes) > 1
        assert max(sizes) <= 2 * cost.ROW_GROUP
    assert Scan(table).arrow().sort_by("text") == rows


def test_a_file_of_large_rows_has_one_in_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ROW_GROUP", 1000)
    table = Address(str(tmp_path / "t"))
    delta.write(table, pa.table({"text": ["a" * 3000, "b" * 3000]}), TWICE[0])
    assert len(groups(table)[0]) == 2
    delta.write(table, pa.table({"text": pa.array([], pa.string())}), TWICE[1])
    compact_table(table, None)
    assert Scan(table).rows() == 2
