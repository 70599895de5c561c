"""Kinds over dates and wall-clock times: the same rows as over their instants in UTC, in any slicing."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lake import AsOf, Count, Enrich, History, Join, LastOf, Latest, Pattern, Step
from lake.kinds.kind import Kind
from lake.testing.laws import at_once, by_slices

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DST = datetime(2024, 3, 9, 12)  # the day before a clock change in the Americas
TYPES = ("date", "timestamp_ntz", "timestamp")
ONE: dict[str, Kind] = {
    "pattern": Pattern(
        "k", sequence=("t", "i"), steps=[Step("a", times="{2,}")], measures={"n": Count(), "last": LastOf("t")},
        within=2 * DAY, lateness=HOUR, is_final=True,
    ),
    "history": History("k", sequence=("t", "i"), track="v"),
    "latest": Latest("k", sequence=("t", "i")),
}  # fmt: skip
TWO: dict[str, Kind] = {
    "join": Join("k", left="i", right="j", how="full", within=DAY, times=("t", "u"), lateness=HOUR, is_final=True),
    "enrich": Enrich("i", AsOf("k", time="u", tolerance=DAY), time="t", lateness=HOUR, is_final=True),
    "enrich_until": Enrich("i", AsOf("k", time="u", until="w"), time="t", how="inner", is_final=True),
}
CASES = [
    *((name, (type_,)) for name, type_ in product(ONE, TYPES[:2])),
    *((name, types) for name, types in product(TWO, product(TYPES, TYPES)) if types != ("timestamp", "timestamp")),
]


def parts(spark: SparkSession, types: tuple[str, ...], as_types: tuple[str, ...]) -> list[list[DataFrame]]:
    """Return three slices of one or two logs with times of `types`, cast to `as_types`."""
    chance = random.Random(5)
    found = []
    for part in range(3):
        frames = []
        for side, (type_, as_type) in enumerate(zip(types, as_types, strict=True)):
            rows = [
                (chance.choice("pq"), part * 100 + n, DST + chance.randint(-72, 72) * HOUR, chance.randint(1, 3))
                for n in range(12)
            ]
            frame = spark.createDataFrame(rows, "k string, n int, at timestamp, value int").coalesce(1)
            own = [f"cast(cast(at as {type_}) as {as_type})"] * 2
            columns = ["n as i", f"{own[0]} as t", "value as v"]
            if side:
                columns = ["n as j", f"{own[0]} as u", f"{own[1]} + interval 1 day as w", "value as x"]
            order = f"'_batch', {part}L, '_arrival', cast(n as bigint), '_bucket', 0, '_offset', cast(n as bigint)"
            carried = [
                f"named_struct({order}) as _order",
                "1 as _sign",
                f"cast(cast(at as {type_}) as timestamp) as _time",
            ]
            frames.append(frame.selectExpr("k", *columns, *carried))
        found.append(frames)
    return found


def rows(table: DataFrame) -> list[list[Any]]:
    """Return the visible rows, their times as instants."""
    shown = [name for name in table.columns if not name.startswith("_") and name not in ("match_id", "version_id")]
    types = dict(table.dtypes)
    columns = [f"cast({name} as timestamp) as {name}" if types[name] in TYPES else name for name in shown]
    return sorted(([*row] for row in table.selectExpr(*columns).collect()), key=str)


@pytest.mark.long
@pytest.mark.parametrize(("name", "types"), CASES)
def test_kind_over_times_without_zone_equals_kind_over_instants(
    spark: SparkSession, name: str, types: tuple[str, ...]
) -> None:
    kind = (ONE | TWO)[name]
    own, instants = parts(spark, types, types), parts(spark, types, ("timestamp",) * len(types))
    wanted = rows(at_once(kind, instants))
    assert rows(at_once(kind, own)) == wanted
    assert rows(by_slices(kind, own)) == wanted
    assert len(wanted) > 1
