"""Laws of Aggregate: the table is equal in any slicing, for all windows and measures, and equals the model. Each key of
one frame is a separate random history, with late events and removed rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
    CountIf,
    Cumulative,
    FirstValue,
    Hopping,
    LastValue,
    Max,
    Min,
    Quantile,
    Session,
    Sliding,
    Stddev,
    Sum,
    Tumbling,
    Variance,
)
from lake.kinds.columns import AGAIN, ORDER
from lake.kinds.windows.window import Window
from lake.testing.laws import at_once, by_slices
from tests.laws import HISTORIES
from tests.laws.models import aggregate as model
from tests.laws.models.aggregate import Row

PARTS, MINUTES = 4, 40
EPOCH = datetime(2024, 3, 1, tzinfo=UTC)
SCHEMA = "key int, id int, t timestamp, value int, place int, _time timestamp, _watermark timestamp, _sign int"
EXACT = {
    "n": Count(),
    "positive": CountIf("value > 0"),
    "total": Sum("value"),
    "mean": Avg("value", scale=3),
    "least": Min("value"),
    "greatest": Max("value"),
    "different": CountDistinct("value"),
    "different_positive": CountDistinct("value", where="value > 0"),
    "opening": FirstValue("value", by="t"),
    "closing": LastValue("value", by="t"),
    "variance": Variance("value"),
    "deviation": Stddev("value", population=True),
}
ADDED = {
    "n": Count(),
    "total": Sum("value"),
    "mean": Avg("value"),
    "different": CountDistinct("value"),
    "spread": Variance("value"),
}
FEW = {"n": Count(), "greatest": Max("value"), "different": CountDistinct("value")}

Signed = list[tuple[Row, int]]
Content = dict[tuple[Any, ...], tuple[Any, ...]]


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


WINDOWS: dict[str, tuple[Window, Callable[..., Any]]] = {
    "tumbling": (Tumbling(length=minutes(10), on="t"), model.tumbling(10)),
    "hopping": (Hopping(length=minutes(15), every=minutes(5), on="t"), model.hopping(15, 5)),
    "cumulative": (Cumulative(length=minutes(20), step=minutes(5), on="t"), model.cumulative(20, 5)),
    "session": (Session(gap=minutes(4), on="t"), model.session(4)),
    "sliding": (Sliding(length=minutes(6), on="t", id="id"), model.sliding(6)),
}


def histories(seed: int) -> list[Signed]:
    """Return the signed rows of all histories for each part: late events, repeats, removed rows in every other."""
    chance = random.Random(seed)
    parts: list[Signed] = [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        there: list[Row] = []
        for place in range(chance.randrange(1, 14)):
            number = min(place * PARTS // 10, PARTS - 1)
            gone = chance.choice(there) if key % 2 and there and chance.random() < 0.25 else None
            if gone and all(gone != row for row, _ in parts[number]):
                there.remove(gone)
                parts[number].append((gone, -1))
                continue
            at = chance.randrange(MINUTES)
            watermark = number * 8 if number else None
            row = Row(key, place, at, chance.choice([None, *range(-3, 4)]), place, watermark)
            there.append(row)
            parts[number].append((row, 1))
    return parts


def frame(spark: SparkSession, rows: Signed) -> DataFrame:
    def instant(minute: int | None) -> datetime | None:
        return None if minute is None else EPOCH + minutes(minute)

    data = [(r.key, r.id, instant(r.at), r.value, r.place, instant(r.at), instant(r.watermark), s) for r, s in rows]
    return spark.createDataFrame(data, SCHEMA).withColumn(ORDER, F.struct("place")).drop("place")


def remaining_rows(parts: list[Signed]) -> list[Row]:
    gone = {row for part in parts for row, sign in part if sign < 0}
    return [row for part in parts for row, sign in part if sign > 0 and row not in gone]


def content(kind: Aggregate, table: DataFrame, shown: list[str]) -> Content:
    """Return {key and window: values}; windows as minutes since EPOCH."""

    def plain(value: object) -> object:
        return (value.replace(tzinfo=UTC) - EPOCH) // minutes(1) if isinstance(value, datetime) else value

    names = [*kind.by, *(kind.window.names if kind.window else ())]
    rows = [row.asDict() for row in table.collect()]
    found = {tuple(plain(row[n]) for n in names): tuple(row[n] for n in shown) for row in rows}
    assert len(found) == len(rows)
    return found


def check(
    spark: SparkSession,
    kind: Aggregate,
    parts: list[Signed],
    expected: dict[tuple[Any, ...], tuple[Any, ...]],
    shown: list[str],
) -> None:
    """Assert that the table at once equals the model, and that by slices the table at once, state included."""
    frames = [frame(spark, part) for part in parts]
    everything = at_once(kind, frames)
    assert content(kind, everything, shown) == expected
    sliced = by_slices(kind, frames).select(*everything.columns)
    assert sliced.exceptAll(everything).isEmpty()
    assert everything.exceptAll(sliced).isEmpty()


@pytest.mark.long
@pytest.mark.parametrize("name", WINDOWS)
def test_aggregate_over_windows_is_equal_in_any_slicing(spark: SparkSession, name: Any) -> None:
    window, assigned = WINDOWS[name]
    parts = histories(len(name))
    expected = model.aggregate(
        remaining_rows(parts), assigned, lambda rows: (model.exact(rows)[0], *model.exact(rows)[5:7])
    )
    check(spark, Aggregate("key", FEW, window=window), parts, expected, list(FEW))


@pytest.mark.long
def test_sessions_without_a_key_are_equal_in_any_slicing(spark: SparkSession) -> None:
    some = [[(r, sign) for r, sign in part if r.key in (1, 3, 5)] for part in histories(7)]
    parts = [[(replace(r, key=0, id=100 * r.key + r.id), sign) for r, sign in part] for part in some]
    found = model.aggregate(
        remaining_rows(parts), model.session(2), lambda rows: (model.exact(rows)[0], *model.exact(rows)[5:7])
    )
    expected = {(start, end): values for (_, start, end), values in found.items()}
    check(spark, Aggregate((), FEW, window=Session(gap=minutes(2), on="t")), parts, expected, list(FEW))


class Deaf(Aggregate):
    """Aggregate that ignores changes."""

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        return old.withColumn(AGAIN, F.lit(False))


@pytest.mark.long
@pytest.mark.parametrize(("key", "window"), [("key", None), ((), WINDOWS["session"][0])], ids=["key", "whole"])
def test_slicing_check_detects_a_kind_that_absorbs_nothing(spark: SparkSession, key: Any, window: Any) -> None:
    frames = [frame(spark, [(Row(1, n, n, n, n), 1)]) for n in range(3)]
    [row] = by_slices(Deaf(key, {"n": Count()}, window=window), frames).collect()
    assert row.n == 1


@pytest.mark.long
def test_aggregate_measures_are_equal_in_any_slicing(spark: SparkSession) -> None:
    parts = histories(1)
    expected = model.aggregate(remaining_rows(parts), model.whole, model.exact)
    check(spark, Aggregate("key", EXACT), parts, expected, list(EXACT))


def test_additive_measures_subtract_removed_rows(spark: SparkSession) -> None:
    parts = histories(2)
    kind = Aggregate("key", ADDED)
    frames = [frame(spark, part) for part in parts]
    assert kind.absorb(at_once(kind, frames[:1]), frames[1]).where("_again").isEmpty()
    picked = lambda rows: tuple(v for i, v in enumerate(model.exact(rows)) if i in (0, 2, 6, 10))  # noqa: E731  short, and used once
    expected = model.aggregate(remaining_rows(parts), model.whole, picked)
    check(spark, kind, parts, expected, ["n", "total", "different", "spread"])


@pytest.mark.long
def test_sketches_are_equal_by_slices_and_within_their_error(spark: SparkSession) -> None:
    parts = histories(3)
    kind = Aggregate(
        "key", {"about": ApproxDistinct("value"), "middle": Quantile("value"), "both": Quantile("value", (0.1, 1.0))}
    )
    frames = [frame(spark, part) for part in parts]
    everything = at_once(kind, frames)
    sliced = by_slices(kind, frames).select(*everything.columns)
    assert sliced.exceptAll(everything).isEmpty()
    assert everything.exceptAll(sliced).isEmpty()
    values = model.aggregate(
        remaining_rows(parts), model.whole, lambda rows: [r.value for r in rows if r.value is not None]
    )
    found = content(kind, everything, ["about", "middle", "both"])
    assert found.keys() == values.keys()
    for key, (about, middle, both) in found.items():
        assert about == len(set(values[key]))
        if not values[key]:
            assert (middle, both) == (None, None)
            continue
        for estimate, q in [(middle, 0.5), (both[0], 0.1), (both[1], 1.0)]:
            truth = model.quantile(values[key], q)
            assert abs(estimate - truth) <= 0.010001 * abs(truth)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hopping", "session"])
def test_aggregate_is_equal_in_any_order_of_arrival(spark: SparkSession, name: str) -> None:
    window, _ = WINDOWS[name]
    kind = Aggregate("key", FEW, window=window)
    rows = [replace(row, watermark=None) for row in remaining_rows(histories(4))]
    in_order = [frame(spark, [(row, 1) for row in rows])]
    chance = random.Random(4)
    mixed: list[Signed] = [[] for _ in range(PARTS)]
    for row in rows:
        chance.choice(mixed).append((row, 1))
    shown = list(FEW)
    assert content(kind, by_slices(kind, [frame(spark, part) for part in mixed]), shown) == content(
        kind, at_once(kind, in_order), shown
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["session", "tumbling"])
def test_late_rows_are_dropped_equally_in_any_slicing(spark: SparkSession, name: str) -> None:
    window, assigned = WINDOWS[name]
    parts = histories(5)
    kind = Aggregate("key", FEW, window=window, late="drop", lateness=minutes(5), is_final=True)
    counted = model.on_time(remaining_rows(parts), 5)
    horizon = max(row.at for part in parts for row, _ in part)
    few = model.aggregate(counted, assigned, lambda rows: (model.exact(rows)[0], *model.exact(rows)[5:7]))
    expected = {group: (*values, group[2] + 5 <= horizon) for group, values in few.items()}
    check(spark, kind, parts, expected, [*FEW, "is_final"])


@pytest.mark.long
def test_final_windows_never_change_if_late_rows_are_dropped(spark: SparkSession) -> None:
    kind = Aggregate("key", FEW, window=WINDOWS["hopping"][0], late="drop", lateness=minutes(3), is_final=True)
    frames: list[DataFrame] = []
    closed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    watermark = None
    for number, part in enumerate(histories(6), start=1):
        rows = [replace(row, watermark=watermark) for row, sign in part if sign > 0 and row.at < 8 * number]
        watermark = max(row.at for row in rows)
        frames.append(frame(spark, [(row, 1) for row in rows]))
        table = content(kind, at_once(kind, frames), [*FEW, "is_final"])
        assert {group: table[group] for group in closed} == closed
        closed |= {group: values for group, values in table.items() if values[-1]}
    assert closed
