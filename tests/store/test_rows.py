"""`Rows`: equal answers from Arrow and from Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from lake.store.rows import Rows
from lake.store.scan import to_frame

TABLE: Final = pa.table({"k": [1, 1, None, 2], "kind": ["insert", "insert", "update", "delete"]})


def row_list(rows: Rows) -> list[str]:
    return sorted(map(str, rows.arrow().to_pylist()))


def test_rows_are_equal_in_memory_and_in_spark(spark: SparkSession) -> None:
    here, there = Rows(TABLE), Rows(to_frame(spark, TABLE))
    assert here.columns == there.columns == ["k", "kind"]
    answers: tuple[Callable[[Rows], Rows], ...] = (
        lambda rows: rows.where("kind", "insert", "update"),
        lambda rows: rows.select(["kind"]).distinct(),
        lambda rows: rows.select(["kind", "k"]).union(here, there),
    )
    for answer in answers:
        assert row_list(answer(here)) == row_list(answer(there))
    keys = here.where("kind", "update", "delete").select(["k"])
    expected = ["{'k': 2, 'kind': 'delete'}", "{'k': None, 'kind': 'update'}"]
    assert row_list(Rows(keys.matching(there.frame(spark)))) == sorted(expected)
    assert (here.in_memory, there.in_memory, there.within(3).in_memory) == (TABLE, None, None)
    assert there.within(4).in_memory == there.arrow()
    assert [rows.is_empty for rows in (here.where("kind", "other"), here, there)] == [True, False, False]
