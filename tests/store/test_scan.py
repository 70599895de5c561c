"""Transfer of rows between this process and Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.finalizer import ThreadSafeFinalizer
from pyspark.sql import DataFrame, SparkSession

from lake import cost
from lake.session.spark_session import COLLECT_BYTES, free_jvm_objects, hand_over
from lake.store import delta_writer
from lake.store.duckdb_tables import connection
from lake.store.scan import Scan, spooled, to_arrow, to_frame
from lake.store.storage import Address


def test_hand_over_releases_jvm_objects_that_python_needs_no_more(spark: SparkSession) -> None:
    free_jvm_objects()
    held = len(ThreadSafeFinalizer.finalizers)
    gc.disable()
    try:
        for _ in range(3):
            assert spark.range(10).count() == 10
        assert len(ThreadSafeFinalizer.finalizers) > held
        hand_over(1)
        assert len(ThreadSafeFinalizer.finalizers) > held
        hand_over(COLLECT_BYTES)
        assert len(ThreadSafeFinalizer.finalizers) <= held
    finally:
        gc.enable()


@pytest.mark.parametrize("sizes", [[0], [3], [3, 0], [2, 3, 1], [30_000, 5, 30_000]])
def test_spooled_parts_equal_one_table_and_are_read_at_most_two_ahead(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    rows = pa.table({"n": range(sum(sizes)), "key": [b"%d" % n for n in range(sum(sizes))]})
    given, handed = 0, 0

    def parts() -> Iterator[pa.Table]:
        nonlocal given
        at = 0
        for size in sizes:
            assert given - handed < 2
            given += 1
            yield rows.slice(at, size)
            at += size

    def counted(spark: SparkSession, part: pa.Table) -> DataFrame:
        nonlocal handed
        handed += 1
        return to_frame(spark, part)

    monkeypatch.setattr("lake.store.scan.to_frame", counted)
    frame = spooled(spark, parts())
    assert given == handed == len(sizes)
    assert to_arrow(frame.orderBy("n")) == to_arrow(to_frame(spark, rows))


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("limits", "by_spark"),
    [
        ({}, False),
        ({"HANDED_ROWS": 90}, False),
        ({"HANDED_ROWS": 89}, True),
        ({"HANDED_BYTES": 89}, True),
        ({"SCAN_ROWS": 10}, False),
    ],
)
def test_small_table_is_handed_to_spark_with_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], *, by_spark: bool
) -> None:
    """Limit rows and bytes. The table has three files, one without a column of the others."""
    for name, limit in limits.items():
        monkeypatch.setattr(cost, name, limit)
    table, at = Address(str(tmp_path / "t")), datetime(2026, 10, 25, tzinfo=UTC)
    for part in range(3):
        rows: list[dict[str, Any]] = [
            {"n": part * 30 + n, "word": None if n % 7 else f"w{n}", "at": at + timedelta(minutes=n)} for n in range(30)
        ]
        if part:
            rows = [row | {"more": row["n"] / 4} for row in rows]
        delta_writer.add(table, pa.Table.from_pylist(rows), schema_mode="merge")
    scan = Scan(table, bounds={"n": (5, 70)})
    frame = scan.frame(spark)
    assert bool(frame.inputFiles()) == by_spark
    found = to_arrow(frame.select("n", "word", "at", "more").orderBy("n"))
    assert found.to_pylist() == scan.arrow(["n", "word", "at", "more"]).sort_by("n").to_pylist()
    assert found["n"].to_pylist() == [*range(5, 71)]


def test_versions_of_one_table_are_read_in_one_connection(tmp_path: Path) -> None:
    """The versions have no file, one file, and two files with different columns."""
    table = Address(str(tmp_path / "t"))
    delta_writer.add(table, pa.table({"n": pa.array([], pa.int64()), "word": pa.array([], pa.string())}))
    delta_writer.add(table, pa.table({"n": [1, 2, None], "word": ["a", None, "c"]}))
    delta_writer.add(table, pa.table({"n": [3, 4], "word": ["d", "e"], "more": [0.5, None]}), schema_mode="merge")
    first, *_, last = scans = [Scan(table, version) for version in range(3)]
    assert [scan.arrow().num_rows for scan in scans] == [0, 3, 5]
    for scan in scans:
        columns = scan.schema().names
        with (
            connection() as con,
            first.registered(con, "had", ["n"], "true"),
            scan.registered(con, "now", [*columns, *columns], "word IS DISTINCT FROM 'a'"),
        ):
            found = con.sql("FROM now WHERE n NOT IN (SELECT n FROM had) OR n IS NULL").fetchall()
        expected = scan.arrow(where="word IS DISTINCT FROM 'a'").to_pylist()
        assert sorted(map(str, found)) == sorted(str(tuple(row.values())) for row in expected)
    with connection() as con, last.registered(con, "now", ["more", "n"], "n > 1"):
        assert con.sql("FROM now ORDER BY n").fetchall() == [(None, 2), (0.5, 3), (None, 4)]
