"""Doubles and JSON as text are the same by either engine, or DuckDB refuses them."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.session.in_process.mode import by_duckdb
from lake.session.in_process.texts import OTHER_LOWER, OTHER_UPPER
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import answered, by_spark, in_process
from tests.in_process.test_functions import differing

LARGEST = 2**53


def doubles() -> Iterator[float]:
    dice = Random(3)
    for exponent in range(-1074, 1024):
        power = math.ldexp(1, exponent)
        yield from (power, -math.nextafter(power, 0), math.nextafter(power, math.inf))
    for _ in range(20_000):
        digits = dice.randrange(1, 18)
        yield float(f"{dice.randrange(10**digits)}e{dice.randrange(-digits - 6, 4)}")
        yield dice.uniform(-1000, 1000)
        yield round(dice.uniform(0, 1000), 2) * round(dice.uniform(0, 10), 1)
        yield float(dice.randrange(LARGEST))
        yield struct.unpack("<d", dice.randbytes(8))[0]
    yield from (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-3, 1e7, math.nextafter(1e-3, 0), math.nextafter(1e7, 0))


def test_texts_of_doubles_are_those_of_spark(spark: SparkSession) -> None:
    numbers = [x for x in doubles() if not math.isfinite(x) or x == 0 or 1e-3 <= abs(x) < LARGEST]
    assert_same(spark, pa.table({"id": range(len(numbers) + 1), "x": [*numbers, None]}), "cast(x as string)")


@pytest.mark.long
def test_doubles_of_another_text_in_some_java_are_refused(spark: SparkSession) -> None:
    small = [x for x in doubles() if 0 < abs(x) < 1e-3][::160]
    rows = pa.table({"id": range(len(small) + 3), "x": [*small, 2.0**53, 2e23, 1.1e-310]})
    answers = answered(rows, ["cast(x as string)"])
    assert 25 < len(answers["cast(x as string)"]) < len(small)
    assert not {len(small) + n for n in range(3)} & answers["cast(x as string)"].keys()
    assert differing(answers, by_spark(spark, rows, answers)) == {}


def test_json_of_every_sign_is_that_of_spark(spark: SparkSession) -> None:
    signs = [chr(n) for n in range(0x10000) if not 0xD800 <= n < 0xE000] + ["😀", "a\x1fb", '"\\/']
    rows = pa.table({"id": range(len(signs)), "x": signs})
    assert_same(spark, rows, "to_json(array(x))", "to_json(named_struct('ñ\"{}', x, 'd', array(x, null)))")


def test_json_of_maps_is_that_of_spark(spark: SparkSession) -> None:
    """In the order of their entries, with null values."""
    texts = [{}, {"b": "1", "a": None}, {'"\\/ñ😀\n': 'x"', "": ""}, None]
    nested = [{"x": {"l": [1, None], "m": {"k": 1.5}}, "y": None}, {}, None, {"z": {"l": None, "m": None}}]
    part = pa.struct([("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.float64()))])
    made = {"x": pa.array(texts, pa.map_(pa.string(), pa.string())), "y": pa.array(nested, pa.map_(pa.string(), part))}
    of_struct = "to_json(named_struct('x', x, 'items', array(y)))"
    assert_same(spark, pa.table({"id": range(4)} | made), "to_json(x)", "to_json(y)", of_struct)
    assert not answered(
        pa.table({"id": [1], "x": pa.array([{1: "a"}], pa.map_(pa.int64(), pa.string()))}), ["to_json(x)"]
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "other"), [("lower", OTHER_LOWER), ("upper", OTHER_UPPER)], ids=["lower", "upper"]
)
def test_letters_of_the_other_case_are_those_of_spark(spark: SparkSession, function: str, other: str) -> None:
    """Alone, within a word and at its end: all letters with two cases but some that are refused."""
    refused = re.compile(f"[{re.sub(r'.x{{(.+?)}}', lambda found: chr(int(found[1], 16)), other)}]")
    signs = [*map(chr, (*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 997)))]
    known = [sign for sign in signs if not refused.fullmatch(sign)]
    assert 0 < len(signs) - len(known) < 500
    assert not [sign for sign in map(chr, range(0x20000, 0x110000)) if sign.lower() != sign or sign.upper() != sign]
    rows = pa.table({"id": range(len(known)), "x": known})
    assert_same(spark, rows, f"{function}(x)", f"{function}(concat('a', x, 'b'))", f"{function}(concat('a', x))")
    assert not answered(pa.table({"id": [1], "x": ["İß"]}), [f"{function}(concat('a', x))"])


def assert_same(spark: SparkSession, rows: pa.Table, *texts: str) -> None:
    """Compare all rows: DuckDB has to answer."""
    columns = ["id", *(f"{text} as x{n}" for n, text in enumerate(texts))]
    with by_duckdb():
        mine = to_arrow(to_frame(in_process(), rows).selectExpr(*columns)).sort_by("id")
    assert mine.to_pylist() == to_arrow(to_frame(spark, rows).selectExpr(*columns)).sort_by("id").to_pylist()
