"""Role that each kind traces for a row: decides, superseded, dropped, refused …."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import Aggregate, AsOf, Count, Enrich, First, Fold, History, Join, Latest, Pattern, Session, Step
from lake.kinds.columns import ORDER
from lake.kinds.kind import INTO, ROLE, Kind
from lake.kinds.measures.measure import Measure
from tests.kinds.events import batch, batches
from tests.kinds.test_latest import CHANGES, TRUNCATE, USERS

ORDERS = "k int, at int, v string"


def traced_roles(kind: Kind, frame: Any, side: int = 0) -> list[tuple[Any, ...]]:
    """Return for each row, in log order, the identity of its result row and its role."""
    rows = kind.traced(kind.keeping_late.prepare(frame, side), side).orderBy(ORDER)
    return [(*(row[INTO] if INTO in rows.columns else ()), row[ROLE]) for row in rows.collect()]


def test_latest_trace_has_one_deciding_row_or_a_delete(spark: SparkSession) -> None:
    kind = Latest("id", sequence="_number", deletes="_operation = 'DELETE'", truncate="_operation = 'TRUNCATE'")
    assert traced_roles(kind, batch(spark, 1, USERS, *CHANGES)) == [
        (124, "decides"),
        (123, "deleted"),
        (125, "superseded"),
        (126, "decides"),
        (123, "deletes"),
        (125, "decides"),
        (125, "superseded"),
        (123, "deleted"),
    ]
    truncated = dict(traced_roles(kind, batch(spark, 1, USERS, *CHANGES[:4], TRUNCATE)))
    assert truncated == {None: "truncates", 124: "deleted", 123: "deleted", 125: "deleted", 126: "deleted"}


@pytest.mark.long
def test_partial_latest_trace_has_a_deciding_row_per_column(spark: SparkSession) -> None:
    rows = [(1, "23.0", 10, None), (1, None, None, "a book"), (1, "25.2", None, None)]
    frame = batch(spark, 1, "k int, price string, stock int, note string", *rows)
    assert traced_roles(Latest("k", partial=True), frame) == [(1, "decides stock"), (1, "decides note"), (1, "decides")]


@pytest.mark.long
def test_first_trace_has_the_oldest_row_after_the_delete_as_deciding(spark: SparkSession) -> None:
    rows = [(1, 5, "e"), (1, 2, "b"), (1, 3, None), (1, 4, "d")]
    assert traced_roles(First("k", sequence="at", deletes="v is null"), batch(spark, 1, ORDERS, *rows)) == [
        (1, "superseded"),
        (1, "deleted"),
        (1, "deletes"),
        (1, "decides"),
    ]


def test_history_trace_has_one_row_that_begins_each_version(spark: SparkSession) -> None:
    rows = [(1, 1, "a"), (1, 4, "b"), (1, 2, "a"), (1, 3, "x"), (1, 3, "a"), (1, 5, None), (1, None, "c"), (1, 7, "b")]
    kind = History("k", sequence="at", track="v", deletes="v is null")
    assert traced_roles(kind, batch(spark, 1, ORDERS, *rows)) == [
        (1, 1, "begins a version"),
        (1, 4, "begins a version"),
        (1, 1, "continues a version"),
        (1, 1, "superseded"),
        (1, 1, "continues a version"),
        (1, 4, "deletes"),
        (1, None, "has no time"),
        (1, 7, "begins a version"),
    ]


@pytest.mark.long
def test_history_trace_with_dated_column_uses_the_greatest_time_so_far(spark: SparkSession) -> None:
    rows = [(1, 9, None, "z"), (1, 1, 10, "a"), (1, 2, 30, "a"), (1, 3, 20, "b"), (1, 5, 40, None), (1, 4, None, "c")]
    kind = History("k", sequence="_at", dated="_dated", track="v", deletes="v is null")
    assert traced_roles(kind, batch(spark, 1, "k int, _at int, _dated int, v string", *rows)) == [
        (1, 40, "begins a version"),
        (1, 10, "begins a version"),
        (1, 30, "superseded"),
        (1, 30, "superseded"),
        (1, 40, "superseded"),
        (1, 30, "begins a version"),
    ]


def test_aggregate_trace_counts_rows_in_their_session(spark: SparkSession) -> None:
    kind = Aggregate("k", {"n": Count()}, window=Session(gap=timedelta(hours=1), on="at"))
    rows = [(1, "2024-03-01 10:00"), (1, "2024-03-01 10:59"), (1, "2024-03-01 12:00")]
    frame = batch(spark, 1, "k int, at string", *rows).selectExpr("k", "timestamp(at) as at", ORDER, "_sign")
    assert [(start.hour, role) for _, start, role in traced_roles(kind, frame)] == [
        (10, "counts"),
        (10, "counts"),
        (12, "counts"),
    ]


def test_fold_trace_has_applied_and_refused_events(spark: SparkSession) -> None:
    kind = Fold(
        "k",
        state="total int",
        start={"total": 0},
        step={"total": "state.total + event.at"},
        refuse="if(state.total + event.at < 0, 'overdrawn', null)",
    )
    rows = [(1, 5, "x"), (1, -9, "x"), (1, -5, "x")]
    assert traced_roles(kind, batch(spark, 1, ORDERS, *rows)) == [
        (1, "applied"),
        (1, "refused: overdrawn"),
        (1, "applied"),
    ]


@pytest.mark.long
def test_pattern_trace_has_the_step_of_each_row(spark: SparkSession) -> None:
    measures: dict[str, Measure] = {"n": Count()}
    kind = Pattern("k", sequence="at", steps=[Step("low", "v = 'l'"), Step("high", "v = 'h'")], measures=measures)
    frame = batch(spark, 1, ORDERS, (1, 1, "h"), (1, 2, "l"), (1, 3, "h"), (1, 4, "h"))
    [row] = kind.evaluate(frame).collect()
    assert traced_roles(kind, frame) == [(1, row["match_id"], "step low"), (1, row["match_id"], "step high")]


@pytest.mark.long
def test_pattern_trace_over_two_logs_has_rows_of_both(spark: SparkSession) -> None:
    kind = Pattern("k", sequence="at", steps=[Step("low", "v = 'l'"), Step("high", "w > 0")], measures={"n": Count()})
    lows, highs = batch(spark, 1, ORDERS, (1, 1, "l"), (1, 2, "l")), batch(spark, 1, "k int, at int, w int", (1, 2, 5))
    [row] = kind.evaluate(lows, highs).collect()
    told = []
    for side, columns in enumerate((lows.columns, highs.columns)):
        traced = kind.traced_among([lows, highs], side)
        assert traced.select(f"{ORDER}.*").columns == lows.select(f"{ORDER}.*").columns
        assert set(columns) <= set(traced.columns)
        told += [(side, each["at"], each[INTO]["match_id"] == row["match_id"], each[ROLE]) for each in traced.collect()]
    assert told == [(0, 2, True, "step low"), (1, 2, True, "step high")]


def test_join_and_enrich_trace_have_the_last_row_of_an_id_as_deciding(spark: SparkSession) -> None:
    one, other = batches(spark, ORDERS, [(1, 1, "a"), (1, 1, "b")], [(1, 2, "c")])
    assert traced_roles(Join("k", left="at"), one) == [(1, 1, "superseded"), (1, 1, "decides")]
    kind = Enrich("v", AsOf("k", time="at"), time="at")
    assert traced_roles(kind, one) == [("a", "decides"), ("b", "decides")]
    assert traced_roles(kind, one.unionByName(other), 1) == [("superseded",), ("decides",), ("decides",)]
    assert kind.lookup_values({"v": "a", "k": 1, "at": 5, "_from_1": 2}, 1) == {"k": 1, "at": 2}
    assert kind.lookup_values({"v": "a", "k": 1, "at": 5, "_from_1": None}, 1) is None
