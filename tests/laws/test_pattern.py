"""Laws of Pattern: matches are equal in any slicing and equal to the model; each key is a separate history."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import Absent, Count, Either, FirstOf, In, LastOf, Max, Pattern, Step, Sum
from lake.kinds.columns import ORDER, TIME
from lake.kinds.steps import Condition
from lake.testing.laws import at_once, by_slices
from tests.laws import HISTORIES
from tests.laws.models import pattern as model
from tests.laws.models.pattern import Tick

PARTS = 4
LATENESS = 2
MEASURED = ("key", "rows", "first", "last", "total", "largest_b", "bs")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def letter_of(letters: str) -> Condition:
    return lambda event, _: event["letter"] in letters


# Each with an equivalent regular expression; letters can satisfy several steps.
PATTERNS: dict[str, tuple[list[Step | Either], str]] = {
    "greedy": (
        [
            Step("a", "letter = 'a'"),
            Step("b", "letter in ('a', 'b')", times="+"),
            Step("c", "letter <> 'a'", times="?"),
        ],
        "(?P<a>a)(?P<b>[ab]+)(?P<c>[^a]?)",
    ),
    "reluctant": (
        [
            Step("a", "letter in ('a', 'c')", times="*?"),
            Step("b", "letter <> 'c'", times="{2,3}?"),
            Step("c", times="??"),
            Step("d", lambda event, matched: event["letter"] != "b"),
        ],
        "(?P<a>[ac]*?)(?P<b>[^c]{2,3}?)(?P<c>.??)(?P<d>[^b])",
    ),
    "bounded": (
        [Step("a", "letter <> 'c'", times=(2, 4)), Step("b", times="*"), Step("c", "letter = 'c'", times="{2,}")],
        "(?P<a>[^c]{2,4})(?P<b>.*)(?P<c>c{2,})",
    ),
    "reluctant at the end": (
        [Step("a", "letter = 'a'", times="+?"), Step("b", times="{1,3}?"), Step("c", "letter <> 'b'", times="+?")],
        "(?P<a>a+?)(?P<b>.{1,3}?)(?P<c>[^b]+?)",
    ),
    "alternatives": (
        [
            Step("a", "letter <> 'c'", times="*"),
            Either(
                [Step("b", "letter <> 'a'", times="+?"), Step("c", "letter = 'a'")],
                Step("d", "letter = 'a'", times=2),
                Either(Step("e", "letter = 'c'"), [Step("f", "letter = 'b'", times="{1,2}"), Step("g", times="?")]),
            ),
            Step("h", "letter <> 'b'", times="?"),
        ],
        "(?P<a>[^c]*)(?:(?P<b>[^a]+?)(?P<c>a)|(?P<d>aa)|(?:(?P<e>c)|(?P<f>b{1,2})(?P<g>.?)))(?P<h>[^b]?)",
    ),
    "alternatives of functions": (
        [
            Either(Step("a", letter_of("ac"), times="??"), [Step("b", "letter = 'b'"), Step("c", times="*?")]),
            Either([Step("d", letter_of("a"), times="+"), Step("e", letter_of("c"))], Step("f", letter_of("ab"))),
        ],
        "(?:(?P<a>[ac]??)|(?P<b>b)(?P<c>.*?))(?:(?P<d>a+)(?P<e>c)|(?P<f>[ab]))",
    ),
    "absent": (
        [Step("a", "letter <> 'c'", times="+"), Step("b", "letter <> 'a'", times="?")],
        "(?P<a>[^c]+)(?P<b>[^a]?)",
    ),
    "absent after functions": ([Step("a", letter_of("ac")), Step("b", times="*?")], "(?P<a>[ac])(?P<b>.*?)"),
}
ABSENT = {"absent": ("c", 3), "absent after functions": ("b", 2)}
"""The letter that must not come for so many seconds after a match."""


def kind(name: str, *, to_next: bool, within: int | None = None, is_final: bool = False) -> Pattern:
    steps: list[Step | Either | Absent] = [*PATTERNS[name][0]]
    if name in ABSENT:
        letter, seconds = ABSENT[name]
        steps.append(Absent(f"letter = '{letter}'", within=timedelta(seconds=seconds)))
    return Pattern(
        "key",
        sequence="at",
        steps=steps,
        skip="to next" if to_next else "past last",
        within=None if within is None else timedelta(seconds=within),
        lateness=timedelta(seconds=LATENESS),
        is_final=is_final or name in ABSENT,
        measures={
            "rows": Count(),
            "first": FirstOf("place"),
            "last": LastOf("place"),
            "total": Sum("size"),
            "largest_b": In("b", Max("size")),
            "bs": In("b", Count()),
        },
    )


def histories(*, total: bool = False) -> list[list[tuple[Tick, int]]]:
    """Return the signed ticks of each part; times come late, and are distinct if the sequence is `total`. Half of the
    histories remove ticks, if not `total`.
    """
    chance = random.Random(HISTORIES + total)
    parts: list[list[tuple[Tick, int]]] = [[] for _ in range(PARTS)]
    for key in range(HISTORIES):
        times = chance.sample(range(24), 12) if total else [chance.randrange(8) for _ in range(12)]
        number = 0
        there: list[tuple[Tick, int]] = []
        for place in range(chance.randrange(1, 12)):
            number = min(PARTS - 1, number + chance.choice([0, 0, 1]))
            gone = [tick for tick, came in there if came < number]
            if key % 2 and gone and not total and chance.random() < 0.2:
                tick = chance.choice(gone)
                there = [(each, came) for each, came in there if each != tick]
                parts[number].append((tick, -1))
            tick = Tick(key, times[place], chance.choice("aabc"), chance.randrange(10), place)
            there.append((tick, number))
            parts[number].append((tick, 1))
    return parts


def frames(spark: SparkSession, parts: list[list[tuple[Tick, int]]]) -> list[DataFrame]:
    schema = "key int, at timestamp, letter string, size int, place int, _sign int"
    rows = [[(t.key, EPOCH + timedelta(seconds=t.at), t.letter, t.size, t.place, s) for t, s in part] for part in parts]
    made = [spark.createDataFrame(part, schema) for part in rows]
    return [part.withColumns({ORDER: F.struct("place"), TIME: F.col("at")}) for part in made]


def two_streams(spark: SparkSession, parts: list[list[tuple[Tick, int]]]) -> list[tuple[DataFrame, DataFrame]]:
    """Return the ticks as two logs: those with a `b` are of the second, which has no size."""
    made = [part.withColumn(ORDER, F.struct(F.col("place").alias("_batch"))) for part in frames(spark, parts)]
    return [(part.where("letter <> 'b'"), part.where("letter = 'b'").drop("size")) for part in made]


def expected(
    parts: list[list[tuple[Tick, int]]], name: str, *, to_next: bool, within: int | None
) -> set[tuple[Any, ...]]:
    gone = {tick for part in parts for tick, sign in part if sign < 0}
    keys = defaultdict(list)
    for part in parts:
        for tick, sign in part:
            if sign > 0 and tick not in gone:
                keys[tick.key].append(tick)
    found = set()
    for key, ticks in keys.items():
        for match in model.matches(
            model.in_order(ticks), PATTERNS[name][1], to_next=to_next, within=within, absent=ABSENT.get(name)
        ):
            rows, bs = [tick for tick, _ in match], [tick.size for tick, step in match if step == "b"]
            sizes = sum(tick.size for tick in rows)
            found.add((key, len(rows), rows[0].place, rows[-1].place, sizes, max(bs, default=None), len(bs)))
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "to_next"),
    [("absent", False), ("alternatives", False), ("reluctant", True), ("absent after functions", True)],
)
def test_final_match_stays_if_no_row_is_late(spark: SparkSession, name: str, to_next: bool) -> None:
    """Final matches are those of the matcher, which `tests/kinds/test_matcher.py` proves."""
    final = kind(name, to_next=to_next, is_final=True)
    parts = [[(tick, sign) for tick, sign in part if sign > 0] for part in histories(total=True)]
    on_time: list[list[tuple[Tick, int]]] = []
    for part in parts:
        latest = max((tick.at for earlier in on_time for tick, _ in earlier), default=0)
        moved = [(replace(tick, at=latest - LATENESS + tick.at // 3), sign) for tick, sign in part]
        on_time.append(moved)
    closed: set[tuple[Any, ...]] = set()
    for number in range(1, PARTS + 1):
        slices = frames(spark, on_time[:number])
        table, whole = by_slices(final, slices), at_once(final, slices)
        assert table.exceptAll(whole).isEmpty()
        assert whole.exceptAll(table).isEmpty()
        lasting = {tuple(row) for row in table.where("is_final").collect()}
        assert closed < lasting
        closed = lasting
    assert not table.where("not is_final").isEmpty()


@pytest.mark.long
@pytest.mark.parametrize(("name", "to_next"), [("alternatives", True), ("absent", False), ("reluctant", False)])
def test_pattern_over_two_streams_treats_them_as_one_sequence(spark: SparkSession, name: str, to_next: bool) -> None:
    """Rows of the first stream come before those of the second at equal times, in any order of arrival."""
    parts = histories()
    gone = {tick for part in parts for tick, sign in part if sign < 0}
    keys = defaultdict(list)
    for tick, sign in (each for part in parts for each in part):
        if sign > 0 and tick not in gone:
            keys[tick.key].append(tick)
    found = set()
    for key, ticks in keys.items():
        in_order = sorted(ticks, key=lambda tick: (tick.at, tick.letter == "b", tick.place))
        for match in model.matches(in_order, PATTERNS[name][1], to_next=to_next, absent=ABSENT.get(name)):
            rows = [tick for tick, _ in match]
            sizes = [tick.size for tick in rows if tick.letter != "b"]
            found.add((key, len(rows), rows[0].place, rows[-1].place, sum(sizes) if sizes else None))
    pattern, slices = kind(name, to_next=to_next, is_final=True), two_streams(spark, parts)
    whole, sliced = at_once(pattern, slices), by_slices(pattern, slices)
    assert whole.exceptAll(sliced).isEmpty()
    assert sliced.exceptAll(whole).isEmpty()
    assert {tuple(row) for row in whole.select(*MEASURED[:5]).collect()} == found


def visible(table: DataFrame) -> set[tuple[Any, ...]]:
    rows = table.select(*MEASURED).collect()
    assert len(set(rows)) == len(rows)
    return {tuple(row) for row in rows}


@pytest.mark.turns
@pytest.mark.parametrize(("to_next", "within"), [(False, None), (True, 4)], ids=["past last", "to next within"])
@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_matches_equal_those_of_a_regular_expression(
    spark: SparkSession, name: Any, to_next: bool, within: int | None
) -> None:
    parts = histories()
    table = at_once(kind(name, to_next=to_next, within=within), frames(spark, parts))
    assert visible(table) == expected(parts, name, to_next=to_next, within=within)


def test_pattern_is_equal_in_any_slicing(spark: SparkSession) -> None:
    greedy = kind("greedy", to_next=False, within=4)
    slices = frames(spark, histories())
    everything, sliced = at_once(greedy, slices), by_slices(greedy, slices)
    assert sliced.exceptAll(everything).isEmpty()
    assert everything.exceptAll(sliced).isEmpty()
    assert everything.select("key", "match_id").distinct().count() == everything.count()


@pytest.mark.long
def test_pattern_with_a_total_sequence_is_equal_in_any_order_of_arrival(spark: SparkSession) -> None:
    greedy = kind("greedy", to_next=True, within=None)
    parts = histories(total=True)
    ticks = [tick for part in parts for tick, _ in part]
    random.Random(7).shuffle(ticks)
    arrived = [(replace(tick, place=number), 1) for number, tick in enumerate(ticks)]
    size = len(arrived) // PARTS + 1
    shuffled = frames(spark, [arrived[i * size : (i + 1) * size] for i in range(PARTS)])
    everything = at_once(greedy, frames(spark, parts)).drop("first", "last").collect()
    sliced = by_slices(greedy, shuffled).drop("first", "last").collect()
    assert set(sliced) == set(everything)
    assert len(sliced) == len(everything)
