"""Latest and First by slices are those of everything are the model; each key is a history of its own."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import First, Latest, cost
from lake.testing.laws import by_slices
from tests.laws.frames import frames, rows, tried
from tests.laws.models import latest as model
from tests.laws.models.events import histories, kept, shuffled, truncated, untimed

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
def test_slices_make_the_table_of_everything(spark: SparkSession, name: Any) -> None:
    kind, of = KINDS[name]
    parts = histories(seed=len(name))
    assert tried(kind, frames(spark, parts), *COLUMNS) == model.table(kept(parts), of)


@pytest.mark.long
def test_slices_make_the_table_of_everything_where_spark_compares(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "COMPARE_ROWS", 1)
    parts = histories(seed=40)
    assert tried(KINDS["combined"][0], frames(spark, parts), *COLUMNS) == model.table(kept(parts), model.combined)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_truncate_leaves_what_is_newer_by_sequence(spark: SparkSession, name: Any) -> None:
    kind, of = KINDS[name]
    parts = truncated(histories(seed=10 + len(name)), at=3, part=2)
    assert tried(kind, frames(spark, parts), *COLUMNS) == model.table(kept(parts), of)


@pytest.mark.long
@pytest.mark.parametrize("name", IN_LOG_ORDER)
def test_without_a_sequence_log_order_decides(spark: SparkSession, name: Any) -> None:
    kind, of = IN_LOG_ORDER[name]
    parts = untimed(truncated(histories(seed=20 + len(name)), at=3, part=1))
    assert tried(kind, frames(spark, parts), *COLUMNS) == model.table(kept(parts), of)


@pytest.mark.long
@pytest.mark.parametrize("name", ["latest", "first", "partial"])
def test_the_order_of_arrival_does_not_matter_where_the_sequence_is_total(spark: SparkSession, name: Any) -> None:
    kind, of = (KINDS | {"partial": (Latest("key", sequence="at", partial=True, **REMOVED), model.partial)})[name]
    parts = histories(seed=30 + len(name), total=True, voids=False)
    mixed = by_slices(kind, frames(spark, shuffled(parts, seed=len(name))))
    assert rows(mixed, *COLUMNS) == model.table(kept(parts), of)
