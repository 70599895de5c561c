"""Laws of Latest and First: equal in any slicing and equal to the model; each key is a separate history."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import First, Latest, cost
from lake.testing.laws import by_slices
from tests.laws.frames import frames, rows, table_by_slices
from tests.laws.models import latest as model
from tests.laws.models.events import histories, remaining_events, shuffled, truncated, untimed

COLUMNS = ("key", "at", "a", "b", "g", "c")
REMOVED: dict[str, Any] = {"deletes": "op = 'delete'", "truncate": "op = 'truncate'"}
COMBINED: dict[str, Any] = {"partial": "a", "groups": {"g": "c"}}
KINDS = {
    "latest": (Latest("key", sequence="at", **REMOVED), model.latest),
    "first": (First("key", sequence="at", **REMOVED), model.first),
    "combined": (Latest("key", sequence="at", **REMOVED, **COMBINED), model.combined),
}
IN_LOG_ORDER = {
    "latest": (Latest("key", **REMOVED), model.latest),
    "first": (First("key", **REMOVED), model.first),
    "combined": (Latest("key", **REMOVED, **COMBINED), model.combined),
}


@pytest.mark.parametrize("name", ["combined", *(pytest.param(n, marks=pytest.mark.long) for n in ("latest", "first"))])
def test_latest_and_first_are_equal_in_any_slicing(spark: SparkSession, name: Any) -> None:
    kind, of = KINDS[name]
    parts = histories(seed=len(name))
    assert table_by_slices(kind, frames(spark, parts), *COLUMNS) == model.table(remaining_events(parts), of)


@pytest.mark.long
def test_latest_is_equal_in_any_slicing_when_spark_compares(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "COMPARE_ROWS", 1)
    parts = histories(seed=40)
    assert table_by_slices(KINDS["combined"][0], frames(spark, parts), *COLUMNS) == model.table(
        remaining_events(parts), model.combined
    )


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_truncate_keeps_rows_newer_by_sequence(spark: SparkSession, name: Any) -> None:
    kind, of = KINDS[name]
    parts = truncated(histories(seed=10 + len(name)), at=3, part=2)
    assert table_by_slices(kind, frames(spark, parts), *COLUMNS) == model.table(remaining_events(parts), of)


@pytest.mark.long
@pytest.mark.parametrize("name", IN_LOG_ORDER)
def test_latest_without_a_sequence_follows_the_log_order(spark: SparkSession, name: Any) -> None:
    kind, of = IN_LOG_ORDER[name]
    parts = untimed(truncated(histories(seed=20 + len(name)), at=3, part=1))
    assert table_by_slices(kind, frames(spark, parts), *COLUMNS) == model.table(remaining_events(parts), of)


@pytest.mark.long
@pytest.mark.parametrize("name", ["latest", "first", "partial"])
def test_latest_with_a_total_sequence_is_equal_in_any_order_of_arrival(spark: SparkSession, name: Any) -> None:
    kind, of = (KINDS | {"partial": (Latest("key", sequence="at", partial=True, **REMOVED), model.partial)})[name]
    parts = histories(seed=30 + len(name), total=True, voids=False)
    mixed = by_slices(kind, frames(spark, shuffled(parts, seed=len(name))))
    assert rows(mixed, *COLUMNS) == model.table(remaining_events(parts), of)
