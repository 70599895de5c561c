"""Laws of Join: the pairs of two sides are equal in any order of arrival; each key is a separate history."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import date, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import Join
from lake.kinds.columns import ORDER, TIME
from lake.testing.laws import at_once, by_slices
from tests.laws import HISTORIES
from tests.laws.frames import remaining_rows
from tests.laws.models.join import Side, final, join

PARTS, WITHIN, EPOCH = 4, 2, date(2020, 1, 1)

Parts = list[list[tuple[Side, int]]]


def histories(seed: int) -> tuple[Parts, Parts]:
    """Return signed rows of the left and the right side in each part, in either order of arrival; some are removed."""
    chance = random.Random(seed)
    sides: tuple[Parts, Parts] = [[] for _ in range(PARTS)], [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        for parts in sides:
            for number in range(chance.randrange(4)):
                row = Side(key if chance.random() < 0.95 else None, key * 10 + number, chance.randrange(8))
                came = chance.randrange(PARTS)
                parts[came].append((row, 1))
                if came < PARTS - 1 and chance.random() < 0.25:
                    parts[chance.randrange(came + 1, PARTS)].append((row, -1))
    return sides


def frame(spark: SparkSession, rows: list[tuple[Side, int]], name: str) -> DataFrame:
    data = [(r.key, r.id, EPOCH + timedelta(days=r.at), s) for r, s in rows]
    named = spark.createDataFrame(data, f"key int, {name} int, {name}_at date, _sign int")
    return named.withColumn(ORDER, F.struct(name))


@pytest.mark.parametrize(
    "how", [*(pytest.param(n, marks=pytest.mark.long) for n in ("inner", "left", "right")), "full"]
)
@pytest.mark.parametrize(
    "within",
    [pytest.param(WITHIN, id="stream-stream"), pytest.param(None, id="table-table", marks=pytest.mark.long)],
)
def test_join_is_equal_in_any_slicing(spark: SparkSession, how: Any, within: Any) -> None:
    span = None if within is None else timedelta(days=within)
    times = None if within is None else ("order_at", "payment_at")
    kind = Join("key", left="order", right="payment", how=how, within=span, times=times)
    left, right = histories(seed=len(how))
    parts = [
        (frame(spark, ours, "order"), frame(spark, theirs, "payment")) for ours, theirs in zip(left, right, strict=True)
    ]
    model = join(remaining_rows(left), remaining_rows(right), how=how, within=within)
    for table in (at_once(kind, parts), by_slices(kind, parts)):
        rows = [(row["key"], row["order"], row["payment"]) for row in table.collect()]
        assert len(set(rows)) == len(rows)
        assert set(rows) == model


@pytest.mark.long
@pytest.mark.parametrize(("within", "lateness"), [(WITHIN, 1), (WITHIN, 0), (None, 0)])
def test_unmatched_row_is_final_when_no_timely_partner_can_come(
    spark: SparkSession, within: Any, lateness: int
) -> None:
    kind = Join(
        "key",
        left="order",
        right="payment",
        how="full",
        within=None if within is None else timedelta(days=within),
        times=None if within is None else ("order_at", "payment_at"),
        lateness=timedelta(days=lateness),
        is_final=True,
    )
    sides = histories(seed=9)
    for side in sides:
        side[0] = [row for row in side[0] if row[0].at < 4]
    for number in (1, PARTS):
        left, right = (side[:number] for side in sides)
        parts = [
            (timed(frame(spark, ours, "order"), "order"), timed(frame(spark, theirs, "payment"), "payment"))
            for ours, theirs in zip(left, right, strict=True)
        ]
        left_at, right_at = ({row.id: row.at for part in side for row, _ in part} for side in (left, right))
        horizons = (max(left_at.values()), max(right_at.values()))
        expected = set()
        for key, order, payment in join(remaining_rows(left), remaining_rows(right), how="full", within=within):
            ours = None if order is None else left_at[order]
            theirs = None if payment is None else right_at[payment]
            never = final(ours, theirs, within=within, lateness=lateness, horizons=horizons)
            expected.add((key, order, payment, key is None or never))
        assert {row[3] for row in expected} == {False, True}
        for table in (at_once(kind, parts), by_slices(kind, parts)):
            rows = [(row["key"], row["order"], row["payment"], row["is_final"]) for row in table.collect()]
            assert len(set(rows)) == len(rows)
            assert set(rows) == expected


def timed(rows: DataFrame, name: str) -> DataFrame:
    """Return `rows` with the log's columns of their time."""
    return rows.withColumn(TIME, F.col(f"{name}_at").cast("timestamp"))


@pytest.mark.long
def test_inner_join_is_part_of_left_join_and_full_join(spark: SparkSession) -> None:
    left, right = histories(seed=3)
    parts = [(frame(spark, left[0], "order"), frame(spark, right[0], "payment"))]
    found = defaultdict(set)
    for how in ("inner", "left", "full"):
        table = at_once(Join("key", left="order", right="payment", how=how), parts)
        found[how] = {(row["key"], row["order"], row["payment"]) for row in table.collect()}
    assert found["inner"] < found["left"] < found["full"]
