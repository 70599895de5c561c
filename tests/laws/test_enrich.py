"""Laws of Enrich: each event has the version of its time, in any order of arrival; each key is a separate history.
Times are days, so that the laws also try tolerances.
"""

from __future__ import annotations

import random
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import AsOf, Enrich
from lake.kinds.columns import ORDER, TIME, visible
from lake.testing.laws import at_once, by_slices
from tests.laws import HISTORIES
from tests.laws.frames import remaining_rows
from tests.laws.models.enrich import Event, Version, enrich

PARTS, EPOCH = 4, date(2020, 1, 1)
EVENTS = "id int, key int, part int, at date, place int, _sign int"
VERSIONS = "key int, part int, begins date, until date, value int, place int, _sign int"
TOLERANCE = 3


def day(number: int | None) -> date | None:
    return None if number is None else EPOCH + timedelta(days=number)


def kind(*, history: bool, tolerance: int | None, how: Literal["left", "inner"] = "left") -> Enrich:
    dimension = AsOf(
        ("key", "part"),
        time="begins",
        until="until" if history else None,
        tolerance=None if tolerance is None else timedelta(days=tolerance),
    )
    return Enrich("id", dimension, time="at", how=how)


def histories(seed: int, *, history: bool) -> tuple[list[list[tuple[Any, int]]], list[list[tuple[Any, int]]]]:
    """Return signed events and versions of each part. Versions of a history change their end; each may be removed."""
    chance = random.Random(seed)
    events: list[list[tuple[Any, int]]] = [[] for _ in range(PARTS)]
    versions: list[list[tuple[Any, int]]] = [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        for number in range(chance.randrange(1, 6)):
            at, part = chance.choice([None, *range(10)]), chance.choice([None, 0, 0, 0, 1])
            event = Event(key * 10 + number, key, part, at, number)
            _comes(chance, events, event)
        ends = sorted(chance.sample(range(12), chance.randrange(2, 6)))
        for place, (begins, end) in enumerate(pairwise(ends)):
            until = chance.choice([end, begins + 1, None]) if history else None
            begin = begins if history else chance.choice([None, *range(10)])
            _comes(chance, versions, Version(key, chance.choice([0, 0, 0, 1]), begin, until, place * 7, place))
    return events, versions


def _comes(chance: random.Random, parts: list[list[tuple[Any, int]]], row: Any) -> None:
    came = chance.randrange(PARTS)
    parts[came].append((row, 1))
    if came < PARTS - 1 and chance.random() < 0.2:
        parts[chance.randrange(came + 1, PARTS)].append((row, -1))


def frames(spark: SparkSession, events: list[Any], versions: list[Any]) -> tuple[DataFrame, DataFrame]:
    ours = [(e.id, e.key, e.on, day(e.at), e.place, s) for e, s in events]
    theirs = [(v.key, v.on, day(v.begins), day(v.until), v.value, v.place, s) for v, s in versions]
    return tuple(
        spark.createDataFrame(rows, schema).withColumn(ORDER, F.struct(F.col("place").alias("_batch"))).drop("place")
        for rows, schema in ((ours, EVENTS), (theirs, VERSIONS))
    )  # type: ignore[return-value]


def content(table: DataFrame) -> dict[int, tuple[Any, ...]]:
    rows = [row.asDict() for row in table.select(*visible(table.columns)).collect()]
    found = {row["id"]: (row["key"], row["part"], row["at"], row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(
    ("history", "tolerance", "how"),
    [
        pytest.param(False, None, "left", marks=pytest.mark.long),
        pytest.param(False, TOLERANCE, "left", marks=pytest.mark.long),
        pytest.param(True, None, "left", marks=pytest.mark.long),
        (True, TOLERANCE, "inner"),
    ],
    ids=["log", "log-tolerance", "history", "history-inner"],
)
def test_enrich_uses_the_version_of_the_event_time_in_any_slicing(
    spark: SparkSession, history: bool, tolerance: Any, how: Literal["left", "inner"]
) -> None:
    enriched = kind(history=history, tolerance=tolerance, how=how)
    events, versions = histories(seed=7 + history + (tolerance or 0), history=history)
    parts = [frames(spark, *part) for part in zip(events, versions, strict=True)]
    model = {
        id: (key, on, day(at), value)
        for id, (key, on, at, value) in enrich(
            remaining_rows(events), remaining_rows(versions), tolerance=tolerance
        ).items()
        if how == "left" or value is not None
    }
    whole, sliced = at_once(enriched, parts), by_slices(enriched, parts)
    assert content(whole) == model
    assert content(sliced) == model
    assert sliced.select(*whole.columns).exceptAll(whole).isEmpty()


@pytest.mark.long
@pytest.mark.parametrize("lateness", [2, 0])
@pytest.mark.parametrize("how", ["left", "inner"])
def test_enriched_event_is_final_when_no_timely_version_can_change_it(
    spark: SparkSession, how: Literal["left", "inner"], lateness: int
) -> None:
    dimension = AsOf(("key", "part"), time="begins")
    kind = Enrich("id", dimension, time="at", how=how, lateness=timedelta(days=lateness), is_final=True)
    events, versions = histories(seed=5, history=False)
    versions[0] = [
        (version, sign) for version, sign in versions[0] if version.begins is not None and version.begins < 5
    ]
    for number in (1, PARTS):
        sides = [frames(spark, *part) for part in zip(events[:number], versions[:number], strict=True)]
        parts = [(timed(ours, "at"), timed(theirs, "begins")) for ours, theirs in sides]
        begun = [v.begins for part in versions[:number] for v, _ in part if v.begins is not None]
        rows = enrich(remaining_rows(events[:number]), remaining_rows(versions[:number]), tolerance=None)
        expected = {
            id: (day(at), value, on is None or at is None or at < max(begun) - lateness)
            for id, (_, on, at, value) in rows.items()
            if how == "left" or value is not None
        }
        assert {final for *_, final in expected.values()} == {False, True}
        for table in (at_once(kind, parts), by_slices(kind, parts)):
            found = {row["id"]: (row["at"], row["value"], row["is_final"]) for row in table.collect()}
            assert found == expected


def timed(rows: DataFrame, at: str) -> DataFrame:
    """Return `rows` with the log's columns of their time."""
    return rows.withColumn(TIME, F.col(at).cast("timestamp"))
