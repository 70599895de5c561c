"""Rows of a declared function in the order of a log, and the table that a kind makes of them in any slicing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lake.engine.stored_rows import event_order
from lake.kinds.columns import visible
from lake.kinds.kind import Kind
from lake.testing.laws import at_once, by_slices

PLACE = "_batch bigint, _arrival bigint, _bucket int, _offset bigint"


def batch(spark: SparkSession, number: int, schema: str, *rows: Sequence[Any]) -> DataFrame:
    """Return one batch of a log: `rows` in their order. A null in the first column broadcasts a row."""
    places = [(number, place, -1 if row[0] is None else 0, place) for place, row in enumerate(rows)]
    placed = [(*row, *at) for row, at in zip(rows, places, strict=True)]
    return event_order(spark.createDataFrame(placed, f"{schema}, {PLACE}"))


def batches(spark: SparkSession, schema: str, *parts: Sequence[Sequence[Any]]) -> list[DataFrame]:
    """Return a log of batches 1, 2, …."""
    return [batch(spark, number, schema, *rows) for number, rows in enumerate(parts, start=1)]


def table(kind: Kind, parts: Sequence[DataFrame], *columns: str) -> list[tuple[Any, ...]]:
    """Return the visible rows, sorted; assert that they are equal at once and batch by batch."""
    whole, sliced = at_once(kind, parts), by_slices(kind, parts)
    assert set(sliced.columns) == set(whole.columns)
    assert rows(sliced, *sorted(whole.columns)) == rows(whole, *sorted(whole.columns))
    return rows(whole, *(columns or visible(whole.columns)))


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    found = [tuple(row) for row in frame.select(*columns).collect()]
    return sorted(found, key=lambda row: [(value is not None, str(value)) for value in row])
