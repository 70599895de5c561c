"""Histories as frames for a kind, and its tables as sets of rows for a model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lake.engine.stored_rows import event_order
from lake.kinds.kind import Kind
from lake.testing.laws import at_once, by_slices
from tests.laws.models.events import SCHEMA, Signed


def frames(spark: SparkSession, parts: list[list[Signed]]) -> list[DataFrame]:
    """Return the parts as the engine passes them to a kind."""
    signed = [spark.createDataFrame([event.row(sign) for event, sign in part], SCHEMA) for part in parts]
    return [event_order(rows, sign=rows["_sign"]) for rows in signed]


def remaining_rows(parts: list[list[tuple[Any, int]]]) -> list[Any]:
    """Return the rows of signed `parts` that are never removed."""
    gone = {row for part in parts for row, sign in part if sign < 0}
    return [row for part in parts for row, _ in part if row not in gone]


def rows(table: DataFrame, *columns: str) -> set[tuple[Any, ...]]:
    """Return the rows as distinct tuples of `columns`."""
    found = [tuple(row) for row in table.select(*columns).collect()]
    assert len(set(found)) == len(found)
    return set(found)


def table_by_slices(kind: Kind, parts: list[DataFrame], *columns: str) -> set[tuple[Any, ...]]:
    """Return the table by slices, after asserting that it equals the table at once, state included."""
    with ThreadPoolExecutor(2) as pool:
        slicing, evaluating = pool.submit(by_slices, kind, parts), pool.submit(at_once, kind, parts)
        sliced, whole = slicing.result(), evaluating.result()
    every = sorted(whole.columns)
    assert sorted(sliced.columns) == every
    assert rows(sliced, *every) == rows(whole, *every)
    return rows(sliced, *columns)
