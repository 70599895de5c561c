"""SQL expressions of decimals, exact or rejected: every combination of two, compared with Python's numbers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lake.kinds.sql.rounding import faults

DIGITS: Final = {
    "wide": (38, 10),
    "places": (38, 30),
    "all_places": (38, 38),
    "whole": (38, 0),
    "narrow": (20, 10),
    "money": (18, 4),
}
EXACT: Final = Context(prec=200)
Number = Decimal | None


def lifted(function: Callable[[Decimal, Decimal], Any]) -> Callable[[Number, Number], Any]:
    """Return null if either argument is null."""
    return lambda a, b: None if a is None or b is None else function(a, b)


def either(a: Number, b: Number) -> Number:
    return b if a is None else a


def one_of(function: Callable[[list[Decimal]], Decimal]) -> Callable[[Number, Number], Any]:
    return lambda a, b: function([each for each in (a, b) if each is not None])


def same(a: Number, b: Number) -> bool:
    return a == b


WAYS: Final[dict[str, Callable[[Number, Number], Any]]] = {
    "a + b": lifted(lambda a, b: a + b),
    "a - -b": lifted(lambda a, b: a + b),
    "a * b": lifted(lambda a, b: a * b),
    "a % b": lifted(lambda a, b: a % b),
    "try_add(a, b)": lifted(lambda a, b: a + b),
    "try_subtract(a, b)": lifted(lambda a, b: a - b),
    "try_multiply(a, b)": lifted(lambda a, b: a * b),
    "-a": lifted(lambda a, b: -a),
    "negative(b)": lambda a, b: None if b is None else -b,
    "abs(a - b - b)": lifted(lambda a, b: abs(a - b - b)),
    "pmod(b, a)": lifted(lambda a, b: b % a),
    "coalesce(a, b)": either,
    "coalesce(a, b /* or */) -- at last": either,
    "`coalesce`(a, 7)": lambda a, b: either(a, Decimal(7)),
    "nvl(a, b)": either,
    "IfNull(a, b)": either,
    "nvl2(a, b, 0)": lambda a, b: Decimal(0) if a is None else b,
    "if(a is null, b, a)": either,
    "case when a is null then b else a end": either,
    "case b when a then 'one' else 'two' end": lambda a, b: "one" if a == b else "two",
    "greatest(a, b)": one_of(max),
    "least(a, 0, b)": one_of(lambda given: min(*given, Decimal(0))),
    "nullif(a, b)": lambda a, b: None if a == b else a,
    "zeroifnull(a)": lambda a, b: either(a, Decimal(0)),
    "decode(b, a, 'one', 'two')": lambda a, b: "one" if a == b else "two",
    "decode(1, 2, a, 1, b)": lambda a, b: b,
    "a = b": lifted(same),
    "a <> b": lifted(lambda a, b: a != b),
    "a <=> b": same,
    "a is not distinct from b": same,
    "equal_null(a, b)": same,
    "a >= b and true": lifted(lambda a, b: a >= b),
    "a > 1": lifted(lambda a, b: a > 1),
    "b not in (a, -b)": lifted(lambda a, b: a != b),
    "b in (0, 1)": lambda a, b: b in (0, 1),
    "b between a and a": lifted(same),
    "array(a, b)": lambda a, b: [a, b],
    "array_append(array(a), b)": lambda a, b: [a, b],
    "concat(array(a), array(b))": lambda a, b: [a, b],
    "array_union(array(a), array(b))": lambda a, b: [a] if a == b else [a, b],
    "array_contains(array(b), a)": lifted(same),
    "array_max(array(a, b))": one_of(max),
    "element_at(array(a, b), 2)": lambda a, b: b,
    "named_struct('x', a, 'y', b).y": lambda a, b: b,
    "struct(a as x, b).x": lambda a, b: a,
    "array(struct(a as x), struct(b as x))[1].x": lambda a, b: b,
    "map_values(map(1, a, 2, b))[1]": lambda a, b: b,
    "map(b, 1)[coalesce(a, b)]": lambda a, b: 1 if a is None or a == b else None,
    "map_contains_key(map(b, 1), coalesce(a, a, 1BD))": lambda a, b: b == (Decimal(1) if a is None else a),
    "transform(array(b), x -> x + a)": lambda a, b: [None if a is None or b is None else a + b],
    "transform(array(b), (x, i) -> if(i = 0, x, a))[0]": lambda a, b: b,
    "exists(array(b), x -> x = a)": lifted(same),
    "filter(array(b), wide -> not wide <=> a)": lambda a, b: [] if a == b else [b],
    "zip_with(array(b), array(a), (x, y) -> coalesce(y, x))[0]": either,
    "aggregate(array(a), b, (s, x) -> greatest(s, x))": one_of(max),
    "map_values(map_zip_with(map(1, a), map(1, b), (k, x, y) -> nvl(x, y)))[0]": either,
    "a * 3": lifted(lambda a, b: a * 3),
}
RIGHT: Final = (
    "event.narrow + event.money * 2",
    "coalesce(state.total, 0BD) + coalesce(event.narrow, 0BD)",
    "coalesce(state.total, 0) + coalesce(event.money, 0)",
    "coalesce(event.wide, state.widest, 0BD)",
    "if(event.wide > 0 and event.places <> 1, event.wide, state.widest)",
    "case when event.places between -1 and 1 then event.wide else null end",
    "nvl2(event.places, event.wide, cast(null as decimal(38, 10)))",
    "cast(event.places as decimal(18, 4)) + event.money",
    "event.places::decimal(18, 4) + event.money",
    "round(event.places, 2) * event.money",
    "event.money / 3 * 2",
    "cast(event.wide as decimal(30, 4)) % event.money",
    "cast(event.wide as decimal(30, 2)) + 1",
    "event.n div 2 + state.n * event.n - length('a + b')",
    "sign(event.places) * 2",
    "struct(event.places, event.wide, event.n)",
    "array_sort(event.several, (x, y) -> case when x < y then -1 when x > y then 1 else 0 end)",
    "aggregate(event.several, cast(0 as decimal(28, 4)), (s, x) -> cast(s + x as decimal(28, 4)))",
    "concat(state.text, '*', event.places, ' + ', event.wide) || extract(day from event.at)",
    "coalesce(event.score, 0.5) * 0.9 + event.money",
    "event.at + interval '1' day * event.n > date '2024-01-01'",
)


def sql_type(name: str) -> str:
    return "decimal({}, {})".format(*DIGITS[name])


def full(name: str) -> Decimal:
    """Return a number that has all digits of its type."""
    digits, places = DIGITS[name]
    return Decimal(("123456789" * 5)[:digits]).scaleb(-places, EXACT)


def like(number: Decimal, name: str) -> Decimal:
    """Return the number of another type that equals `number` after rounding; else one of all digits."""
    digits, places = DIGITS[name]
    near = number.quantize(Decimal(1).scaleb(-places), context=EXACT)
    return near if near and near.adjusted() < digits - places else full(name)


def pair(spark: SparkSession, one: str, other: str) -> tuple[DataFrame, list[tuple[Number, Number]]]:
    """Return columns a and b of two types: numbers of all digits, null in the first, and two nearly equal."""
    values: list[tuple[Number, Number]] = [
        (full(one), full(other)),
        (None, full(other)),
        (full(one), like(full(one), other)),
    ]
    frame = spark.createDataFrame(values, f"a {sql_type(one)}, b {sql_type(other)}").coalesce(1)
    return frame, values


def evaluate_texts(frame: DataFrame, texts: list[str]) -> list[list[Any]]:
    """Return Spark's values of each expression; an empty list for one that fails."""
    try:
        rows = frame.selectExpr(*(f"{text}\n as value" for text in texts)).collect()
        return [list(values) for values in zip(*rows, strict=True)]
    except PySparkException:
        return [[]] if len(texts) == 1 else [values for text in texts for values in evaluate_texts(frame, [text])]


@pytest.mark.long
@pytest.mark.parametrize("one", DIGITS)
def test_expression_of_two_decimals_is_exact_or_rejected(spark: SparkSession, one: str) -> None:
    wrong = []
    for other in DIGITS:
        frame, values = pair(spark, one, other)
        taken = [way for way in WAYS if not [*faults("total", way, frame)]]
        for way, found in zip(taken, evaluate_texts(frame, taken), strict=True):
            with localcontext(EXACT):
                exact = [WAYS[way](*row) for row in values]
            if way.startswith("try_"):  # Null if the result does not fit
                exact = [None if made is None else each for each, made in zip(exact, found, strict=False)]
            if found and found != exact:
                wrong.append(f"{way} of {one} and {other}: {found}, not {exact}")
    assert wrong == []


def test_expression_exact_by_type_or_explicitly_rounded_is_accepted(spark: SparkSession) -> None:
    event = [*(f"{name} {sql_type(name)}" for name in DIGITS), "n bigint", "score double", "text string"]
    fields = ", ".join([*event, "at timestamp", "several array<decimal(18, 4)>"])
    state = "total decimal(28, 10), widest decimal(38, 10), n bigint, text string"
    rows = spark.createDataFrame([], f"event struct<{fields}>, state struct<{state}>")
    refused = {sql: [*map(str, faults("total", sql, rows))] for sql in RIGHT}
    assert {sql: told for sql, told in refused.items() if told} == {}
    assert all(field is not None for field in rows.selectExpr(*RIGHT).schema)
