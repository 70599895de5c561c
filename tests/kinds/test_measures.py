"""Measures against published rows, and what they refuse.

Source of the moving weights: Kafka Streams, KTable aggregation (C10).
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Count,
    CountDistinct,
    DeclarationError,
    FirstValue,
    LastValue,
    Max,
    Quantile,
    Stddev,
    Sum,
    Variance,
)
from lake.kinds.kind import ORDER, SIGN
from lake.laws import at_once, by_slices


def signed(spark: SparkSession, rows: list[tuple], schema: str) -> DataFrame:
    """Rows whose last field is the sign, in an order by their first."""
    return spark.createDataFrame(rows, f"{schema}, {SIGN} int").withColumn(ORDER, F.expr("struct(*)").dropFields(SIGN))


def measured(spark: SparkSession, measures: dict, rows: list[tuple], schema: str) -> dict:
    table = Aggregate((), measures).evaluate(signed(spark, [(*row, 1) for row in rows], schema))
    return {name: value for name, value in table.head().asDict().items() if name in measures}


def test_a_row_that_moves_between_groups_takes_its_weight_along(spark):
    """As Kafka's; but a group without rows has no row, where Kafka keeps a zero."""
    alice, bob, charlie = ("alice", "E"), ("bob", "A"), ("charlie", "A")
    steps = [
        ([(*alice, 1)], {"E": 5}),
        ([(*bob, 1)], {"E": 5, "A": 3}),
        ([(*charlie, 1)], {"E": 5, "A": 10}),
        ([(*alice, -1), ("alice", "A", 1)], {"A": 15}),
        ([(*charlie, -1)], {"A": 8}),
        ([(*bob, -1), ("bob", "E", 1)], {"A": 5, "E": 3}),
    ]
    kind = Aggregate(
        "region", {"weight": Sum("length(user)"), "longest": Max("length(user)"), "n": CountDistinct("user")}
    )
    parts = [signed(spark, rows, "user string, region string") for rows, _ in steps]
    for number, (_, expected) in enumerate(steps, start=1):
        assert {row.region: row.weight for row in at_once(kind, parts[:number]).collect()} == expected
    found = {(row.region, row.weight, row.longest, row.n) for row in by_slices(kind, parts).collect()}
    assert found == {("A", 5, 5, 1), ("E", 3, 3, 1)}


def test_first_and_last_go_by_all_columns_named_and_then_by_the_log(spark):
    rows = [(1, 5, "b", "one"), (2, 5, "a", "two"), (3, 5, "b", "three"), (4, 9, "z", None), (5, None, "a", "five")]
    measures = {
        "first": FirstValue("name", by=("at", "code")),
        "last": LastValue("name", by=("at", "code")),
        "last_a": LastValue("name", by="at", where="code = 'a'"),
        "none": LastValue("name", by="at", where="code = 'q'"),
    }
    found = measured(spark, measures, rows, "n int, at int, code string, name string")
    assert found == {"first": "five", "last": "three", "last_a": "two", "none": None}


@pytest.mark.parametrize("type_", ["tinyint", "int", "bigint", "decimal(9, 3)", "decimal(18, 2)"])
def test_variance_is_exact(spark, type_):
    big = 10**9 if type_ in ("int", "bigint", "decimal(18, 2)") else 100
    rows = [(n, big + n) for n in range(5)]
    table = {"v": Variance("x"), "p": Variance("x", population=True), "s": Stddev("x", scale=3)}
    frame = signed(spark, [(*row, 1) for row in rows], "n int, raw bigint").withColumn(
        "x", F.expr(f"cast(raw as {type_})")
    )
    found = Aggregate((), table).evaluate(frame).head()
    assert (found.v, found.p, found.s) == (Decimal("2.500000"), Decimal("2.000000"), Decimal("1.581"))


def test_what_is_not_there_does_not_count(spark):
    measures = {
        "n": Count(),
        "sum": Sum("x", where="x > 10"),
        "mean": Avg("x", where="x > 10"),
        "different": CountDistinct("x", where="x > 10"),
        "about": ApproxDistinct("x", where="x > 10"),
        "middle": Quantile("x", where="x > 10"),
        "some": Quantile("x", (0.5, 0.9), where="x > 10"),
        "variance": Variance("x"),
    }
    found = measured(spark, measures, [(1, 5), (2, None)], "n int, x int")
    assert list(found.values()) == [2, None, None, 0, 0, None, None, None]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: ApproxDistinct("x", precision=3), "a precision of 3"),
        (lambda: ApproxDistinct("x", precision=17), "a precision of 17"),
        (lambda: Quantile("x", 1.5), "unknown quantile"),
        (lambda: Quantile("x", (0.5, -1)), "unknown quantile"),
        (lambda: Quantile("x", ()), "unknown quantile"),
        (lambda: Quantile("x", 0.5, error=0), "relative error"),
        (lambda: Variance("x", scale=7), "a scale of 7"),
        (lambda: FirstValue("x", by=()), "needs an order"),
    ],
)
def test_what_could_never_be_measured_is_refused(wrong, told):
    with pytest.raises(DeclarationError, match=told):
        wrong()
