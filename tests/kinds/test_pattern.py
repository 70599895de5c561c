"""Matches against published rows, and each quantifier against rows small enough to follow by hand. Source of the V
shape and of the running average: Flink, MATCH_RECOGNIZE (C9; the averages recomputed).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import (
    Absent,
    Aggregate,
    Avg,
    Count,
    CountDistinct,
    CountIf,
    DeclarationError,
    Either,
    FirstOf,
    FirstValue,
    In,
    LastOf,
    LastValue,
    Max,
    Min,
    Pattern,
    Step,
    Sum,
)
from lake.kinds.columns import ORDER, SIGN, visible
from lake.kinds.grouped_map import fault_of
from lake.kinds.measures.measure import Measure
from lake.kinds.steps import Condition
from tests.checks import present

NO_STEP: Any = "b"
WIDE = "cast(at as decimal(38, 10))"
TEN = datetime(2024, 1, 1, 10, tzinfo=UTC)


def rows(spark: SparkSession, data: list[tuple[Any, ...]], schema: str) -> DataFrame:
    frame = spark.createDataFrame([(*row, i) for i, row in enumerate(data)], f"{schema}, place int")
    return frame.withColumns({ORDER: F.struct("place"), SIGN: F.lit(1)}).drop("place")


def ticker(spark: SparkSession, prices: list[int]) -> DataFrame:
    ticks = [("ACME", TEN + timedelta(seconds=second), price) for second, price in enumerate(prices)]
    return rows(spark, ticks, "symbol string, at timestamp, price int")


def seconds(*times: datetime) -> tuple[int, ...]:
    return tuple(time.second for time in times)


@pytest.mark.long
def test_pattern_matches_a_v_shape_as_in_flink(spark: SparkSession) -> None:
    v_shape = Pattern(
        "symbol",
        sequence="at",
        steps=[
            Step("start"),
            Step("down", "price < prev.price", times="+"),
            Step("up", "price > prev.price"),
        ],
        measures={"start_at": FirstOf("at"), "bottom_at": In("down", LastOf("at")), "end_at": LastOf("at")},
    )
    [match] = v_shape.evaluate(ticker(spark, [12, 17, 19, 21, 25, 18, 15, 14, 24, 25, 19])).collect()
    assert seconds(match.start_at, match.bottom_at, match.end_at) == (4, 7, 8)


def cheap_so_far(event: dict[str, Any], matched: Mapping[str, list[dict[str, Any]]]) -> bool:
    prices = [each["price"] for each in matched["a"]] + [event["price"]]
    return bool(sum(prices) < 15 * len(prices))


@pytest.mark.long
def test_pattern_condition_reads_the_running_match_as_in_flink(spark: SparkSession) -> None:
    cheap = Pattern(
        "symbol",
        sequence="at",
        steps=[Step("a", cheap_so_far, times="+"), Step("b")],
        measures={"start_at": In("a", FirstOf("at")), "end_at": In("a", LastOf("at")), "mean": In("a", Avg("price"))},
    )
    table = cheap.evaluate(ticker(spark, [12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 30])).orderBy("start_at")
    assert [(*seconds(m.start_at, m.end_at), m.mean) for m in table.collect()] == [
        (0, 3, Decimal("14.5")),
        (5, 10, Decimal("13.5")),
    ]


@pytest.mark.long
def test_first_of_returns_null_of_the_first_row_and_first_value_skips_null(spark: SparkSession) -> None:
    measures: dict[str, Measure] = {
        "first_row": FirstOf("v"),
        "last_row": LastOf("v"),
        "first_value": FirstValue("v", by="at"),
        "last_value": LastValue("v", by="at"),
    }
    kind = Pattern("k", sequence="at", steps=[Step("any", times="+")], measures=measures)
    frame = rows(spark, [(1, 1, None), (1, 2, 20), (1, 3, 30), (1, 4, None)], "k int, at int, v int")
    assert [tuple(row)[2:] for row in kind.evaluate(frame).collect()] == [(None, None, 20, 30)]


def one_of(accepted: str) -> Condition:
    return lambda event, _: event["letter"] in accepted


@pytest.mark.turns
@pytest.mark.parametrize(
    ("letters", "steps", "skip", "expected"),
    [
        ("xaay", [("a", 1)], "past last", ["a", "a"]),
        ("aaaa", [("a", 2)], "past last", ["aa", "aa"]),
        ("aaa", [("a", 2)], "to next", ["aa", "aa"]),
        ("axb", [("a", 1), ("x", "?"), ("b", 1)], "past last", ["axb"]),
        ("ab", [("a", 1), ("x", "?"), ("b", 1)], "past last", ["ab"]),
        ("aab", [("a", "+"), ("ab", 1)], "past last", ["aab"]),
        ("aab", [("a", "+?"), ("ab", 1)], "past last", ["aa"]),
        ("baab", [("b", 1), ("ab", "*")], "past last", ["baab"]),
        ("baab", [("b", 1), ("ab", "*?")], "past last", ["b", "b"]),
        ("ba", [("b", 1), ("a", "?")], "past last", ["ba"]),
        ("ba", [("b", 1), ("a", "??")], "past last", ["b"]),
        ("aaaaa", [("a", (2, 3))], "past last", ["aaa", "aa"]),
        ("aaaaa", [("a", "{2,3}?")], "past last", ["aa", "aa"]),
        ("aaaaa", [("a", "{4,}")], "past last", ["aaaaa"]),
        ("aaaaa", [("a", "{4}")], "past last", ["aaaa"]),
        ("aab", [("a", "+"), ("b", 1)], "to next", ["aab", "ab"]),
        ("abab", [("ab", "+"), ("b", 1)], "past last", ["abab"]),
        ("aaac", [("a", "+"), ("b", 1)], "past last", []),
    ],
)
def test_pattern_quantifiers_are_greedy_or_reluctant(
    spark: SparkSession, letters: str, steps: Any, skip: Literal["past last", "to next"], expected: Any
) -> None:
    data = [(1, i, letter) for i, letter in enumerate(letters)]
    frame = rows(spark, data, "key int, at int, letter string")
    for in_python in (False, True):
        made = [
            Step(
                f"s{i}",
                one_of(accepted) if in_python else f"letter in ({', '.join(map(repr, accepted))})",
                times=times,
            )
            for i, (accepted, times) in enumerate(steps)
        ]
        pattern = Pattern(
            "key", sequence="at", steps=made, skip=skip, measures={"start": FirstOf("at"), "rows": Count()}
        )
        found = pattern.evaluate(frame).orderBy("start").collect()
        assert [letters[m.start : m.start + m.rows] for m in found] == expected


@pytest.mark.long
@pytest.mark.parametrize("in_python", [False, True])
def test_pattern_prefers_the_first_alternative_over_a_longer_match(spark: SparkSession, in_python: bool) -> None:
    """SQL's `x (a | a b) c?`: the leftmost alternative that leaves the rest possible."""

    def step(name: str, letter: str, times: str = "{1}") -> Step:
        return Step(name, one_of(letter) if in_python else f"letter = '{letter}'", times=times)

    def found(letters: str, *steps: Step | Either) -> list[str]:
        data = [(1, i, letter) for i, letter in enumerate(letters)]
        kind = Pattern("key", sequence="at", steps=steps, measures={"start": FirstOf("at"), "rows": Count()})
        table = kind.evaluate(rows(spark, data, "key int, at int, letter string")).orderBy("start")
        return [letters[m.start : m.start + m.rows] for m in table.collect()]

    short_first = Either(step("a", "a"), [step("a2", "a"), step("b", "b")])
    long_first = Either([step("a2", "a"), step("b", "b")], step("a", "a"))
    assert found("xab", step("x", "x"), short_first) == ["xa"]
    assert found("xab", step("x", "x"), long_first) == ["xab"]
    assert found("xabc", step("x", "x"), short_first, step("c", "c")) == ["xabc"]
    assert found("xaby", step("x", "x"), long_first, step("y", "y", "?")) == ["xaby"]


def test_pattern_match_ends_before_its_within_time(spark: SparkSession) -> None:
    burst = Pattern(
        "symbol",
        sequence="at",
        within=timedelta(seconds=3),
        steps=[Step("any", times="{2,}")],
        measures={"start_at": FirstOf("at"), "rows": Count()},
    )
    found = burst.evaluate(ticker(spark, [1, 1, 1, 1, 1])).orderBy("start_at").collect()
    assert [(*seconds(m.start_at), m.rows) for m in found] == [(0, 3), (3, 2)]


DELAY_STREAK = Pattern(
    "tailnum",
    sequence=("departs_at", "carrier", "flight"),
    steps=[Step("late", "arrival_delay > 30", times="{3,}")],
    measures={
        "start_at": FirstOf("departs_at"),
        "end_at": LastOf("departs_at"),
        "legs": Count(),
        "worst": Max("arrival_delay"),
        "minutes": Sum("arrival_delay"),
    },
)
LEG = "tailnum string, departs_at timestamp, carrier string, flight int, arrival_delay int"


def legs(spark: SparkSession, *delays: tuple[int, int | None]) -> DataFrame:
    return rows(spark, [("N1", TEN + timedelta(hours=hour), "UA", hour, delay) for hour, delay in delays], LEG)


def test_pattern_measures_start_end_and_worst_leg_of_a_delay_streak(spark: SparkSession) -> None:
    table = DELAY_STREAK.evaluate(legs(spark, (0, 45), (1, 31), (2, 90), (3, 30), (4, 99), (5, 99), (6, None)))
    [streak] = table.collect()
    assert (streak.start_at.hour, streak.end_at.hour) == (10, 12)
    assert (streak.legs, streak.worst, streak.minutes) == (3, 90, 166)


def test_pattern_late_event_corrects_its_match(spark: SparkSession) -> None:
    first = [(0, 45), (1, 50), (3, 60), (4, 70)]
    [before] = DELAY_STREAK.evaluate(legs(spark, *first)).collect()
    assert DELAY_STREAK.evaluate(legs(spark, *first, (2, 5))).isEmpty()
    [after] = DELAY_STREAK.evaluate(legs(spark, *first, (2, 95))).collect()
    assert (before.worst, after.worst, after.legs) == (70, 95, 5)
    assert before.match_id == after.match_id


@pytest.mark.long
def test_pattern_matches_rows_of_equal_sequence_separately(spark: SparkSession) -> None:
    each = Pattern((), sequence="at", steps=[Step("one")], measures={"n": Count()})
    table = each.evaluate(rows(spark, [(1,), (1,), (None,), (None,), (2,)], "at int"))
    assert visible(table.columns) == ["match_id", "n"]
    assert table.distinct().count() == 5


def test_pattern_condition_error_is_reported_in_one_line(spark: SparkSession) -> None:
    def fails(event: dict[str, Any], _: object) -> bool:
        return bool(event["price"] / 0 > 1)

    pattern = Pattern("symbol", sequence="at", steps=[Step("bad", fails)], measures={})
    with pytest.raises(PythonException) as caught:
        pattern.evaluate(ticker(spark, [1])).collect()
    fault, _, place = present(fault_of(caught.value))
    assert place == {"place": "0"}
    assert fault.what.startswith("step bad: ZeroDivisionError")
    assert fault.where.startswith("test_pattern.py:")


def pattern(**options: object) -> Pattern:
    usual: dict[str, Any] = {"sequence": "at", "steps": [Step("a")], "measures": {"n": Count()}}
    return Pattern("key", **(usual | options))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: pattern(steps=[]), "match no rows"),
        (lambda: pattern(steps=[Step("a", times="*"), Step("b", times="?")]), "match no rows"),
        (lambda: pattern(steps=[Step("a"), Step("a")]), "two steps are named 'a'"),
        (lambda: pattern(steps=[Either(Step("a"), [Step("b"), Step("a")])]), "two steps are named 'a'"),
        (lambda: pattern(steps=[Either(Step("a"), Step("b", times="*"))]), "match no rows"),
        (lambda: Either(Step("a")), "Either needs alternatives"),
        (lambda: Either(Step("a"), []), "neither a step nor a list"),
        (lambda: Either(Step("a"), NO_STEP), "neither a step nor a list"),
        (lambda: pattern(steps=[Step("a"), Absent(within=timedelta(1))]), "declare is_final=True"),
        (lambda: pattern(steps=[Absent(within=timedelta(1)), Step("a")], is_final=True), "only the last step"),
        (lambda: pattern(steps=[Step("a"), *[Absent(within=timedelta(1))] * 2], is_final=True), "only the last step"),
        (lambda: pattern(steps=[Absent(within=timedelta(1))], is_final=True), "match no rows"),
        (lambda: Absent("v < prev.v", within=timedelta(1)), "asks for prev"),
        (lambda: Absent(within=timedelta(0)), "invalid within of Absent"),
        (lambda: pattern(steps=[Step("a", times=(3, 2))]), "from 3 to 2 rows"),
        (lambda: pattern(steps=[Step("a", times=0)]), "from 0 to 0 rows"),
        (lambda: pattern(steps=[Step("a", times="++")]), "times="),
        (lambda: pattern(measures={"x": In("b", Min("v"))}), "over the unknown step 'b'"),
        (lambda: pattern(measures={"x": CountDistinct("v")}), "cannot be a measure of a match"),
        (lambda: Aggregate("key", {"x": FirstOf("v")}), "x is a measure of a match: FirstOf"),
        (lambda: pattern(measures={"key": Count()}), "'key' is already a column"),
        (lambda: pattern(within=timedelta(0)), "invalid within"),
        (lambda: pattern(within=timedelta(1), sequence=()), "invalid within"),
        (lambda: pattern(skip="nowhere"), "unknown skip"),
    ],
)
def test_pattern_rejects_invalid_options_at_declaration(wrong: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        wrong()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"within": timedelta(1)}, "within needs a time, but 'at' is of type int"),
        ({"is_final": True}, "is_final needs a time, but 'at' is of type int"),
        ({"measures": {"x": Sum("cast(at as double)")}}, "x adds up a double"),
        *(
            ({"measures": {"x": measure}}, "x would lose decimal places")
            for measure in (
                Max("at", where=f"{WIDE} * {WIDE} > 0"),
                In("a", Max("at", where=f"{WIDE} * {WIDE} > 0")),
                In("a", Max(f"{WIDE} * {WIDE}")),
                In("a", CountIf(f"{WIDE} * {WIDE} > 0")),
            )
        ),
    ],
)
def test_pattern_rejects_invalid_types_before_reading_data(
    spark: SparkSession, options: dict[str, dict[str, Any]] | dict[str, timedelta], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        checked_matches(pattern(**options), rows(spark, [(1, 1)], "key int, at int"))


def checked_matches(kind: Pattern, events: DataFrame) -> DataFrame:
    DeclarationError.raise_any(kind.faults(events))
    return kind.evaluate(events)
