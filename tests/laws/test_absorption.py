"""Absorption: slice by slice, a kind makes the table that it makes of everything at once, and that the model makes.

Kinds are local to keys, so each key of one frame is a random history of its own: thousands run in a few jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import Aggregate, Avg, Count, CountIf, First, Latest, Max, Min, Sum
from lake.kinds.kind import ORDER, SIGN, Kind
from lake.laws import at_once, by_slices
from tests.laws import model
from tests.laws.model import Row

HISTORIES, SLICES = 2000, 4
SCHEMA = "key int, at int, value int, place int, _sign int"

KINDS: dict[str, tuple[Kind, Callable]] = {
    "latest": (Latest("key", sequence="at"), model.latest),
    "first": (First("key", sequence="at"), model.first),
    "aggregate": (
        Aggregate(
            ("key", "part"),
            {
                "n": Count(),
                "positive": CountIf("value > 0"),
                "total": Sum("value"),
                "mean": Avg("value", scale=3),
                "least": Min("value"),
                "greatest": Max("value"),
            },
        ),
        model.aggregate,
    ),
}


def histories(seed: int, *, deletes: bool) -> list[list[tuple[Row, int]]]:
    """For each slice the signed rows of all histories: inserts in any order of `at`, and rows that go again."""
    chance = random.Random(seed)
    slices: list[list[tuple[Row, int]]] = [[] for _ in range(SLICES)]
    for key in range(HISTORIES):
        there: list[Row] = []
        for place in range(chance.randrange(1, 12)):
            number = min(place * SLICES // 8, SLICES - 1)
            if deletes and there and chance.random() < 0.3:
                gone = there.pop(chance.randrange(len(there)))
                if not any(gone == row for row, _ in slices[number]):
                    slices[number].append((gone, -1))
                    continue
                there.append(gone)
            row = Row(key, chance.choice([None, *range(6)]), chance.choice([None, *range(-4, 5)]), place)
            there.append(row)
            slices[number].append((row, 1))
    return slices


def frame(spark: SparkSession, rows: list[tuple[Row, int]]) -> DataFrame:
    data = [(r.key, r.at, r.value, r.place, sign) for r, sign in rows]
    named = spark.createDataFrame(data, SCHEMA).withColumn(ORDER, F.struct("place")).drop("place")
    return named.withColumn("part", F.expr("cast(floor(coalesce(at, 0) / 3) as int)"))


def kept(slices: list[list[tuple[Row, int]]]) -> list[Row]:
    gone = {row for part in slices for row, sign in part if sign < 0}
    return [row for part in slices for row, sign in part if sign > 0 and row not in gone]


def content(kind: Kind, table: DataFrame) -> dict:
    visible = [c for c in table.columns if not c.startswith("_") and c not in kind.identity]
    found = {}
    for row in table.collect():
        key = tuple(row[k] for k in kind.identity)
        assert key not in found
        found[key if len(key) > 1 else key[0]] = tuple(row[c] for c in visible)
    return found


@pytest.mark.parametrize("deletes", [False, True], ids=["inserts", "deletes"])
@pytest.mark.parametrize("name", KINDS)
def test_any_slicing_makes_the_table_of_one_evaluation(spark, name, deletes):
    kind, expected = KINDS[name]
    slices = histories(seed=len(name) + deletes, deletes=deletes)
    columns = ["key", "part", "value"] if name == "aggregate" else ["key", "at", "value"]
    parts = [frame(spark, part).select(*columns, ORDER, SIGN) for part in slices]
    everything, sliced = at_once(kind, parts), by_slices(kind, parts)
    assert content(kind, everything) == expected(kept(slices))
    assert content(kind, sliced) == content(kind, everything)
    state = sorted(everything.columns)
    assert sliced.select(*state).exceptAll(everything.select(*state)).isEmpty()
