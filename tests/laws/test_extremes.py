"""Measures at the ends of every type: right, or one fault with the key, in any order and slicing, by Python's
fractions. Each key of one frame is a separate random history, with removed rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Count,
    CountDistinct,
    FirstValue,
    LastValue,
    Max,
    Min,
    Quantile,
    Sum,
    Variance,
)
from lake.kinds.columns import ORDER, SIGN
from lake.kinds.measures.measure import OfValues
from lake.kinds.sql_errors import no_room
from lake.testing.laws import at_once, by_slices
from tests.laws.models import numbers
from tests.laws.models.numbers import TOO_LARGE

PARTS: Final = 3
KEYS: Final = 150
TYPES: Final = (
    *("bigint", "decimal(38,10)", "int", "smallint", "tinyint", "decimal(9,2)", "decimal(18,3)", "decimal(24,0)"),
    *("decimal(25,3)", "decimal(28,6)", "decimal(38,0)", "decimal(38,38)"),
)

Values = list[Any]
History = list[list[tuple[int, Any, int]]]
"""For each part, rows (number, value, sign)."""
Fits = Mapping[int, Mapping[str, bool]]


def history(chance: random.Random, values: Sequence[Any]) -> History:
    """Return a history in which every third row is removed."""
    parts: History = [[] for _ in range(PARTS)]
    there: list[tuple[int, Any]] = []
    for number in range(chance.randrange(1, 9)):
        part = min(number * PARTS // 6, PARTS - 1)
        if there and chance.random() < 0.3 and (gone := chance.choice(there)) not in [r[:2] for r in parts[part]]:
            there.remove(gone)
            parts[part].append((*gone, -1))
        else:
            there.append((number, chance.choice(values)))
            parts[part].append((*there[-1], 1))
    return parts


def remaining_values(parts: History, cut: int) -> Values:
    """Return the values of the rows that remain after some parts, in order."""
    rows = [row for part in parts[:cut] for row in part]
    gone = {number for number, _, sign in rows if sign < 0}
    return [value for number, value, _ in rows if number not in gone]


def frames(
    spark: SparkSession, histories: Mapping[int, History], type_: str, fits: Fits | None = None
) -> list[DataFrame]:
    """Return rows of all histories, with a column for each measure: whether it fits for that history."""
    fits = fits or {key: {} for key in histories}
    flags = list(next(iter(fits.values())))
    schema = ", ".join([f"k int, n int, x {type_}, {SIGN} int", *(f"fits_{name} boolean" for name in flags)])
    parts = []
    for number in range(PARTS):
        rows = [
            (key, n, x, sign, *fits[key].values()) for key, slices in histories.items() for n, x, sign in slices[number]
        ]
        parts.append(spark.createDataFrame(rows, schema).withColumn(ORDER, F.struct("n")))
    return parts


def measures(type_: str) -> dict[str, tuple[OfValues, Callable[[Values], Any]]]:
    """Return measures of exact numbers, each with its model over non-null values."""
    found: dict[str, tuple[OfValues, Callable[[Values], Any]]] = {
        "total": (Sum("x"), lambda values: numbers.total(values, type_) if values else None),
        "least": (Min("x"), lambda values: min(values, default=None)),
        "greatest": (Max("x"), lambda values: max(values, default=None)),
        "different": (CountDistinct("x"), lambda values: len(set(values))),
        "first": (FirstValue("x", by="n"), lambda values: values[0] if values else None),
        "last": (LastValue("x", by="n"), lambda values: values[-1] if values else None),
    }
    for name, scale in {"mean": 6, "whole_mean": 0, "long_mean": 20}.items():
        found[name] = Avg("x", scale=scale), partial(numbers.mean, type_=type_, scale=scale)
    if numbers.digits(type_)[1] <= 3:
        for name, scale, population in (("spread", 6, False), ("spread_of_all", 0, True)):
            model = partial(numbers.variance, type_=type_, scale=scale, population=population)
            found[name] = Variance("x", scale=scale, population=population), model
    return found


def plain(value: Any) -> Any:
    return None if value is None else Fraction(value)


@dataclass(frozen=True)
class Trial:
    """Random histories of one type, and the value of each measure after each part."""

    type: str

    @cached_property
    def histories(self) -> dict[int, History]:
        chance, values = random.Random(self.type), numbers.extremes(self.type)
        return {key: history(chance, values) for key in range(KEYS)}

    @cached_property
    def expected(self) -> dict[tuple[int, int], dict[str, Any]]:
        models = {name: model for name, (_, model) in measures(self.type).items()}
        present = {
            (key, cut): [value for value in remaining_values(parts, cut) if value is not None]
            for key, parts in self.histories.items()
            for cut in range(1, PARTS + 1)
        }
        return {at: {name: model(values) for name, model in models.items()} for at, values in present.items()}

    @cached_property
    def fits(self) -> dict[int, dict[str, bool]]:
        """Return {history: {measure: whether it fits after each part}}."""
        cuts = range(1, PARTS + 1)
        return {
            key: {name: all(self.expected[key, cut][name] != TOO_LARGE for cut in cuts) for name in measures(self.type)}
            for key in self.histories
        }


@pytest.mark.long
@pytest.mark.parametrize("type_", TYPES)
def test_measures_of_extreme_values_equal_those_of_fractions_in_any_slicing(spark: SparkSession, type_: str) -> None:
    trial = Trial(type_)
    shown = {name: replace(measure, where=f"fits_{name}") for name, (measure, _) in measures(type_).items()}
    kind = Aggregate("k", {"n": Count(), **shown})
    parts = frames(spark, trial.histories, type_, trial.fits)
    empty = {**dict.fromkeys(shown), "different": 0}
    expected = {
        key: {name: plain(trial.expected[key, PARTS][name] if trial.fits[key][name] else empty[name]) for name in shown}
        for key, slices in trial.histories.items()
        if remaining_values(slices, PARTS)
    }
    whole, sliced = at_once(kind, parts), by_slices(kind, parts)
    assert {row.k: {name: plain(row[name]) for name in shown} for row in whole.collect()} == expected
    assert sliced.select(*whole.columns).exceptAll(whole).isEmpty()
    assert whole.exceptAll(sliced.select(*whole.columns)).isEmpty()


FAULTS: Final = [
    ("bigint", "total"),
    ("decimal(38,0)", "mean"),
    ("bigint", "spread"),
    ("decimal(38,0)", "total"),
    ("decimal(38,10)", "long_mean"),
    ("decimal(38,0)", "spread_of_all"),
]


@pytest.mark.long
@pytest.mark.parametrize(("type_", "name"), FAULTS)
def test_value_too_large_is_one_fault_with_its_key_in_any_slicing(spark: SparkSession, type_: str, name: str) -> None:
    trial, (measure, _) = Trial(type_), measures(type_)[name]
    last = {key: [trial.expected[key, cut][name] == TOO_LARGE for cut in range(1, PARTS + 1)] for key in trial.fits}
    key = next(key for key, faults in last.items() if faults[-1] and not any(faults[:-1]))
    right = {other: trial.histories[other] for other, faults in last.items() if not any(faults)}
    parts = frames(spark, right | {key: trial.histories[key]}, type_)
    faults = []
    for tried in (at_once, by_slices):
        with pytest.raises(Exception, match="no room") as caught:
            tried(Aggregate("k", {"value": measure}), parts)
        faults.append(no_room(caught.value))
    assert faults[0] == faults[1]
    assert faults[0] is not None
    assert (faults[0].measure, faults[0].key) == ("value", {"k": key})


FLOATS: Final = (None, -0.0, 0.0, math.nan, math.inf, -math.inf, 1.5, -1.5, 1.7976931348623157e308, 5e-324, -5e-324)


@pytest.mark.long
def test_measures_of_floats_have_one_zero_in_any_slicing(spark: SparkSession) -> None:
    chance = random.Random(0)
    histories = {key: history(chance, FLOATS) for key in range(KEYS)}
    histories |= {KEYS: [[(0, -0.0, 1)], [(1, 0.0, 1)], []], KEYS + 1: [[(0, 0.0, 1), (1, -0.0, 1)], [], []]}
    shown = {
        "least": Min("x"),
        "greatest": Max("x"),
        "negated": Max("-x"),
        "first": FirstValue("x", by="-x"),
        "last": LastValue("-x", by="x"),
        "different": CountDistinct("x"),
        "about": ApproxDistinct("x"),
        "middle": Quantile("x"),
    }
    kind, parts = Aggregate("k", shown), frames(spark, histories, "double")
    whole, sliced = (
        {row.k: {name: row[name] for name in shown} for row in table.collect()}
        for table in (at_once(kind, parts), by_slices(kind, parts))
    )
    assert repr(sorted(sliced.items())) == repr(sorted(whole.items()))
    assert "-0.0" not in repr(whole)
    for key, row in whole.items():
        values = [value + 0.0 for value in remaining_values(histories[key], PARTS) if value is not None]
        by_size = sorted(values, key=lambda value: (math.isnan(value), value))
        assert repr((row["least"], row["greatest"])) == repr((by_size[0], by_size[-1]) if values else (None, None))
        assert row["different"] == row["about"] == len({repr(value) for value in values})
        finite = [value for value in by_size if math.isfinite(value)]
        middle = finite[(len(finite) - 1) // 2] if finite else None
        assert row["middle"] == middle if not middle else math.isclose(row["middle"], middle, rel_tol=0.010001)
