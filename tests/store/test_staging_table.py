"""Staging tables: rows committed there by Spark are in the table after this process commits them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from pyspark.sql import SparkSession

from lake.store import delta, delta_writer
from lake.store.delta import Position
from lake.store.positioned_commit import StagingTable, as_lines, commit_actions, commit_staged, stage
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_log import commit_file, delta_table
from lake.store.upkeep import vacuum

APP = "table:t"
ROWS = pa.table({"k": pa.array([1, 2, 3, 4], pa.int64()), "_bucket": pa.array([0, 0, 1, 1], pa.int32())})


def table(path: Path) -> Address:
    """Make a table of two partitions, whose rows are at transaction 1."""
    at = Address(str(path))
    feed = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "false"}
    delta_writer.create(
        at, Schema.from_arrow(ROWS.schema), feed, partition_by=["_bucket"], name="t", description="Rows."
    )
    delta_writer.write(at, ROWS, Position(APP, 1))
    return at


def keys(at: Address) -> list[int]:
    return sorted(Scan(at).arrow().column("k").to_pylist())


def stage_append(spark: SparkSession, at: Address, values: Sequence[int]) -> StagingTable:
    staging = stage(at)
    rows = spark.createDataFrame([(value, 1) for value in values], "k long, _bucket int")
    rows.write.format("delta").mode("append").partitionBy("_bucket").save(staging.path.url)
    return staging


def stage_merge(spark: SparkSession, at: Address) -> StagingTable:
    staging = stage(at, with_files=True)
    spark.sql(
        f"""MERGE INTO {staging.sql} t USING (SELECT explode(array(1, 4, 9)) AS k) s ON t.k = s.k
            WHEN MATCHED AND s.k = 1 THEN DELETE
            WHEN MATCHED THEN UPDATE SET k = 40
            WHEN NOT MATCHED THEN INSERT (k, _bucket) VALUES (s.k, 7)"""
    ).collect()
    return staging


def changes(spark: SparkSession, at: Address, version: int) -> list[tuple[int, str]]:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    rows = reader.options(startingVersion=version, endingVersion=version).load(at.url)
    return sorted((row["k"], row["_change_type"]) for row in rows.collect())


@pytest.mark.turns
@pytest.mark.parametrize("name", ["t", "a b%ü {x}; --", "_bucket=7"])
def test_staged_merge_changes_rows_and_feed_like_a_merge(spark: SparkSession, tmp_path: Path, name: str) -> None:
    at = table(tmp_path / name)
    commit_staged(stage_append(spark, at, [5, 6]), Position(APP, 2))
    staging = stage_merge(spark, at)
    assert keys(at) == [1, 2, 3, 4, 5, 6]
    commit_staged(staging, Position(APP, 3))
    assert keys(at) == [2, 3, 5, 6, 9, 40]
    assert sorted(row["k"] for row in spark.read.format("delta").load(at.url).collect()) == keys(at)
    assert changes(spark, at, 3) == [
        (1, "delete"), (4, "update_preimage"), (9, "insert"), (40, "update_postimage")
    ]  # fmt: skip
    head = delta.head(at, APP)
    assert head is not None
    assert (head.txn, head.version) == (3, 3)
    assert delta_table(at).metadata().name == "t"
    assert not any("staging" in path.parent.parent.name for path in tmp_path.rglob("_delta_log/*.json"))


@pytest.mark.long
def test_staged_rows_of_a_job_that_outlives_its_writer_are_never_read(spark: SparkSession, tmp_path: Path) -> None:
    at = table(tmp_path / "t")
    late = stage_merge(spark, at)
    commit_staged(stage_append(spark, at, [7]), Position(APP, 2))
    with pytest.raises(delta_writer.Beaten, match="is there already"):
        commit_staged(late, Position(APP, 2))
    assert keys(at) == [1, 2, 3, 4, 7]
    stale = vacuum.unneeded(at, keep=[2], since=2, unnamed=timedelta(0))
    assert {file.url for file in stale} >= {str(file) for file in (tmp_path / "t" / late.path.name).rglob("*.parquet")}
    for file in stale:
        file.delete()
    assert keys(at) == [1, 2, 3, 4, 7]


def test_staged_overwrite_replaces_columns_and_keeps_the_table_identity(spark: SparkSession, tmp_path: Path) -> None:
    at = table(tmp_path / "t")
    before = delta_table(at).metadata()
    staging = stage(at)
    rows = spark.createDataFrame([(1, "x", 3)], "k long, other string, _bucket int")
    writer = rows.write.format("delta").mode("overwrite").partitionBy("_bucket").option("overwriteSchema", "true")
    writer.save(staging.path.url)
    commit_staged(staging, Position(APP, 2), overwrites=True)
    after = delta_table(at).metadata()
    assert (after.id, after.name, after.description) == (before.id, before.name, before.description)
    assert Scan(at).arrow().to_pylist() == [{"k": 1, "other": "x", "_bucket": 3}]


@pytest.mark.parametrize("order", [*permutations(("metaData", "add", "remove"))], ids=str)
def test_staged_actions_are_committed_in_any_order(tmp_path: Path, order: Sequence[str]) -> None:
    at = table(tmp_path / "t")
    staging = stage(at)
    own = delta_table(at).get_add_actions().column("path").to_pylist()[0]
    schema = delta_table(at).schema().to_json()
    staged: dict[str, dict[str, Any]] = {
        "metaData": {"schemaString": schema, "configuration": {"a": "b"}},
        "add": {"path": "new.parquet"},
        "remove": {"path": f"{at.uri}/{own}"},
    }
    commit_file(staging.path, 1).put_if_absent(as_lines([{kind: staged[kind]} for kind in order]))
    changed = {kind: fields for action in staging.changes()[1] for kind, fields in action.items()}
    assert (changed["metaData"]["name"], changed["metaData"]["configuration"]) == ("t", {"a": "b"})
    assert (changed["add"]["path"], changed["remove"]["path"]) == (f"{staging.path.name}/new.parquet", own)


@pytest.mark.parametrize("information", ["", '{ "commitInfo": {"operation": "WRITE"} }\n', '{"commitInfo":{}}\n'])
def test_commit_follows_one_of_another_tool_without_a_time(tmp_path: Path, information: str) -> None:
    at = table(tmp_path / "t")
    before = datetime.now(UTC) - timedelta(seconds=2)
    commit_file(at, 2).put_if_absent(f'{information}{{"txn":{{"appId":"other","version":1}}}}\n'.encode())
    assert vacuum.seen_at(at, before + vacuum.GRACE) < 2
    assert vacuum.seen_at(at, datetime.now(UTC) + 2 * vacuum.GRACE) == 2
    commit_actions(at, Position(APP, 2), [], version=3, info={})
    head = delta.head(at, APP)
    assert head is not None
    assert (head.txn, head.version) == (2, 3)


def test_commit_of_actions_gets_its_number_or_fails(tmp_path: Path) -> None:
    at = table(tmp_path / "t")
    commit_actions(at, Position(APP, 2), [], version=2, info={"operation": "SKIP"})
    with pytest.raises(delta_writer.Beaten):
        commit_actions(at, Position(APP, 3), [], version=2, info={"operation": "SKIP"})
    assert [position.txn for position in delta.positions(at, APP)] == [2, 1]
    for number in range(3, 25):
        commit_actions(at, Position(APP, number), [], version=number, info={"operation": "SKIP"})
    assert delta.newest_checkpoint(at) == 19
    assert keys(at) == [1, 2, 3, 4]
