"""Measures against published rows, and their rejected arguments. Source of the moving weights: Kafka Streams, KTable
aggregation (C10).
"""

from __future__ import annotations

import random
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Any

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
    Session,
    Stddev,
    Sum,
    Variance,
)
from lake.kinds.columns import ORDER, SIGN
from lake.kinds.measures.decimals import mean as quotient
from lake.testing.laws import at_once, by_slices
from tests.checks import present


def signed(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return rows whose last field is the sign, ordered by their first."""
    return spark.createDataFrame(rows, f"{schema}, {SIGN} int").withColumn(ORDER, F.expr("struct(*)").dropFields(SIGN))


def measured(spark: SparkSession, measures: dict[str, Any], rows: list[tuple[Any, ...]], schema: str) -> dict[str, Any]:
    table = Aggregate((), measures).evaluate(signed(spark, [(*row, 1) for row in rows], schema))
    return {name: value for name, value in present(table.head()).asDict().items() if name in measures}


@pytest.mark.long
def test_sum_subtracts_removed_rows_to_the_last_digit(spark: SparkSession) -> None:
    """Spark rounds -x to 34 digits."""
    number, kind = "12345678912345678912345678912345678912", Aggregate("k", {"total": Sum("cast(x as decimal(38, 0))")})
    first = signed(spark, [(number, 7, 1), ("1", 7, 1)], "x string, k int")
    [left] = by_slices(kind, [first, signed(spark, [(number, 7, -1)], "x string, k int")]).collect()
    assert left["total"] == 1


@pytest.mark.long
def test_aggregate_moves_the_weight_of_a_row_between_groups(spark: SparkSession) -> None:
    """As in Kafka, except that a group without rows has no row; Kafka keeps a zero."""
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


def test_first_and_last_value_sort_by_the_named_columns_then_the_log(spark: SparkSession) -> None:
    rows = [(1, 5, "b", "one"), (2, 5, "a", "two"), (3, 5, "b", "three"), (4, 9, "z", None), (5, None, "a", "five")]
    measures = {
        "first": FirstValue("name", by=("at", "code")),
        "last": LastValue("name", by=("at", "code")),
        "last_a": LastValue("name", by="at", where="code = 'a'"),
        "none": LastValue("name", by="at", where="code = 'q'"),
    }
    found = measured(spark, measures, rows, "n int, at int, code string, name string")
    assert found == {"first": "five", "last": "three", "last_a": "two", "none": None}


@pytest.mark.turns
@pytest.mark.parametrize("type_", ["tinyint", "int", "bigint", "decimal(9, 3)", "decimal(18, 2)"])
def test_variance_is_exact(spark: SparkSession, type_: str) -> None:
    big = 10**9 if type_ in ("int", "bigint", "decimal(18, 2)") else 100
    rows = [(n, big + n) for n in range(5)]
    table = {"v": Variance("x"), "p": Variance("x", population=True), "s": Stddev("x", scale=3)}
    frame = signed(spark, [(*row, 1) for row in rows], "n int, raw bigint").withColumn(
        "x", F.expr(f"cast(raw as {type_})")
    )
    found = Aggregate((), table).evaluate(frame).head()
    assert (present(found).v, present(found).p, present(found).s) == (
        Decimal("2.500000"),
        Decimal("2.000000"),
        Decimal("1.581"),
    )


@pytest.mark.long
def test_stddev_is_not_the_root_of_a_rounded_variance(spark: SparkSession) -> None:
    frame = signed(spark, [(1, "0.001", 1), (2, "0.002", 1)], "n int, text string")
    frame = frame.withColumn("x", F.expr("cast(text as decimal(9, 3))"))
    found = Aggregate((), {"s": Stddev("x"), "p": Stddev("x", population=True)}).evaluate(frame).head()
    assert found is not None
    assert (found.s, found.p) == (Decimal("0.000707"), Decimal("0.000500"))
    assert (Aggregate("k", {"s": Stddev("x")}).revision, Aggregate("k", {"v": Variance("x")}).revision) == (5, 4)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("type_", "values", "measure", "expected"),
    [
        ("int", [1] * 6 + [0] * 5, Avg("x", scale=5), "0.54545"),  # 0.545454…, to six places 0.545455
        ("int", [1] + [0] * 10, Variance("x", scale=5, population=True), "0.08264"),  # 0.0826446…
        ("decimal(2, 1)", ["1.4", "1.5"], Avg("x", scale=0), "1"),
        ("decimal(2, 1)", ["-1.4", "-1.5"], Avg("x", scale=0), "-1"),
        ("int", [1, 2], Avg("x", scale=0), "2"),
        ("int", [-1, -2], Avg("x", scale=0), "-2"),
        ("bigint", [2**62, 2**62 - 1, -(2**62)], Avg("x", scale=2), "1537228672809129301.00"),
        ("decimal(38, 18)", ["0.000000499999999999", "0.0000005"], Avg("x"), "0.000000"),
        ("decimal(38, 18)", ["0.00000000499999999", "0.000000005"], Avg("x", scale=8), "0.00000000"),
        ("decimal(38, 18)", ["0.000000005000000001"], Avg("x", scale=8), "0.00000001"),
        ("decimal(38, 0)", ["1" * 30, "1" * 30], Avg("x", scale=7), "1" * 30 + ".0000000"),
        ("decimal(38, 20)", ["0.5", "1"], Avg("x", scale=20), "0.75" + "0" * 18),
    ],
)
def test_quotient_is_rounded_half_up_once(
    spark: SparkSession, type_: str, values: Any, measure: Any, expected: Any
) -> None:
    frame = signed(spark, [(n, str(value), 1) for n, value in enumerate(values)], "n int, text string")
    table = Aggregate((), {"q": measure}).evaluate(frame.withColumn("x", F.expr(f"cast(text as {type_})")))
    assert present(table.head()).q == Decimal(expected)
    assert dict(table.dtypes)["q"] == f"decimal(38,{measure.scale})"


@pytest.mark.turns
@pytest.mark.parametrize("places", [0, 4, 9, 18])
def test_quotient_equals_that_of_fractions(spark: SparkSession, places: int) -> None:
    """Sums of any number of decimal places; every other one lies at half a unit, or next to it."""
    chance, scales = random.Random(places), (0, 3, 6, 8, 16)
    data = []
    for _ in range(400):
        by, near = chance.randrange(1, 50), chance.choice([0, 1, 3, 5, 7])
        half = Fraction(2 * chance.randrange(1000) + 1, 2 * 10**near) * by
        whole = chance.choice([int(half * 10**places) + chance.randrange(-1, 2), chance.randrange(10**19)])
        data.append((Decimal(chance.choice([whole, -whole])).scaleb(-places), by))
    frame = spark.createDataFrame(data, f"s decimal(38, {places}), n bigint")
    found = frame.select("*", *[F.expr(quotient("s", "n", scale)).alias(str(scale)) for scale in scales]).collect()
    for total, by, *quotients in found:
        for scale, value in zip(scales, quotients, strict=True):
            units = abs(Fraction(total) / by) * 10**scale
            nearest = floor(units + Fraction(1, 2)) * (-1 if total < 0 else 1)
            assert (total, by, Fraction(value)) == (total, by, Fraction(nearest, 10**scale))


@pytest.mark.long
@pytest.mark.parametrize("window", [None, Session(gap=timedelta(days=2), on="t")], ids=["whole", "session"])
def test_sum_of_sums_loses_no_decimal_place(spark: SparkSession, window: Any) -> None:
    """Spark's + of two decimal(38, 9) has eight places."""
    types = {"a": (38, 9), "b": (28, 7), "c": (38, 37), "d": (38, 2), "e": (10, 0)}
    digits = [[(3, 1), (-8, 1)], [(4, 1)], [(2, 1), (-9, 1)]] + ([[(4, -1)], [(-9, -1), (2, -1)]] if not window else [])
    values = {x: F.expr(f"cast(concat(n, 'e-{places}') as decimal({d}, {places}))") for x, (d, places) in types.items()}
    values["t"] = F.expr("timestamp '2024-01-01'")
    parts = [signed(spark, [("k", *row) for row in part], "key string, n int").withColumns(values) for part in digits]
    measures = {f"{each.__name__}_{x}": each(x) for x in types for each in (Sum, Avg, Variance)}
    found = same_by_slices(Aggregate("key", measures, window=window), parts)
    last = sum(digit * sign for part in digits for digit, sign in part)
    assert {x: found[f"Sum_{x}"] for x in types} == {
        x: Decimal(last).scaleb(-places) for x, (_, places) in types.items()
    }


@pytest.mark.long
def test_sum_and_avg_remove_the_least_integer_of_a_type(spark: SparkSession) -> None:
    least = -(2**63)
    steps = [[(least, 1)], [(least, -1), (0, 1)], [(0, -1), (least, 1), (1, 1)], [(least, -1)], [(1, -1), (2, 1)]]
    types = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
    values = {t: F.expr(f"cast(if(n < 0, {-(2 ** (bits - 1))}, n) as {t})") for t, bits in types.items()}
    parts = [signed(spark, [(1, *row) for row in step], "key int, n bigint").withColumns(values) for step in steps]
    measures = {f"{each.__name__}_{t}": each(t) for t in types for each in (Sum, Avg)}
    found = same_by_slices(Aggregate("key", {**measures, "above": Sum("int", where="int > 0")}), parts)
    assert {*found.values()} == {2}


def same_by_slices(kind: Aggregate, parts: list[DataFrame]) -> dict[str, Any]:
    """Return the measures of the only row; assert that types, state and values are equal by slices."""
    whole, sliced = at_once(kind, parts), by_slices(kind, parts)
    assert sliced.select(*whole.columns).dtypes == whole.dtypes
    (row,), (other,) = whole.collect(), sliced.select(*whole.columns).collect()
    assert row == other
    return {name: value for name, value in row.asDict().items() if name in kind.measures}


def test_measures_ignore_null_values(spark: SparkSession) -> None:
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
        (lambda: ApproxDistinct("x", precision=3), "invalid precision 3"),
        (lambda: ApproxDistinct("x", precision=17), "invalid precision 17"),
        (lambda: Quantile("x", 1.5), "invalid quantile"),
        (lambda: Quantile("x", (0.5, -1)), "invalid quantile"),
        (lambda: Quantile("x", ()), "invalid quantile"),
        (lambda: Quantile("x", 0.5, error=0), "relative error"),
        (lambda: Variance("x", scale=7), "invalid scale 7"),
        (lambda: FirstValue("x", by=()), "needs an order"),
    ],
)
def test_measures_reject_invalid_arguments(wrong: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        wrong()
