"""Measures with a state per value, or class of values, are the same by DuckDB and by Spark, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake import Aggregate, ApproxDistinct, Count, CountDistinct, Quantile, Tumbling
from lake.engine.engines import duckdb_may_refuse
from lake.engine.inputs import Evaluation
from lake.kinds.columns import ORDER, TIME
from lake.session.in_process.mode import by_duckdb
from lake.store.scan import to_arrow, to_frame
from lake.store.table_head import DUCKDB, SPARK
from lake.testing import laws
from tests.in_process.rows import comparable_column, in_process

EPOCH = datetime(2024, 3, 1, tzinfo=UTC)
MEASURES = {
    "n": Count(),
    "texts": CountDistinct("text"),
    "amounts": CountDistinct("amount", where="number > 0"),
    "days": CountDistinct("cast(at as date)"),
    "about": ApproxDistinct("text"),
    "about_few": ApproxDistinct("place", 4),
    "median": Quantile("number"),
    "some": Quantile("amount", (0.0, 0.1, 0.5, 0.999, 1.0), error=0.001),
    "places": Quantile("place", 0.9, where="place > 3"),
}
WINDOWS = {
    "none": None,
    "tumbling": Tumbling(length=timedelta(minutes=20), on="at"),
}
NUMBERS = [None, 0.0, 5e-324, 1.7976931348623157e308, -1e-300, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.5]


def parts(seed: int, slices: int) -> list[pa.Table]:
    """Return slices of rows of a few keys: repeated values, extremes, and rows that are removed later."""
    dice, standing, made = Random(seed), list[dict[str, Any]](), list[pa.Table]()
    for _ in range(slices):
        rows = [new_row(dice, len(standing) + n) for n in range(dice.randint(1, 150))]
        gone = [standing.pop(dice.randrange(len(standing))) for _ in range(min(len(standing), dice.randint(0, 20)))]
        standing += rows
        made.append(pa.Table.from_pylist([*rows, *({**row, "_sign": -1} for row in gone)], SCHEMA))
    return made


SCHEMA = pa.schema(
    {
        "key": pa.int32(),
        "text": pa.string(),
        "number": pa.float64(),
        "amount": pa.decimal128(20, 2),
        "place": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        TIME: pa.timestamp("us", "UTC"),
        "_watermark": pa.timestamp("us", "UTC"),
        ORDER: pa.struct({"place": pa.int64()}),
        "_sign": pa.int8(),
    }
)


def new_row(dice: Random, place: int) -> dict[str, Any]:
    at = EPOCH + timedelta(minutes=dice.randrange(60))
    return {
        "key": dice.choice([None, *range(6)]),
        "text": dice.choice([None, "", "añ😀", *(f"t{n}" for n in range(40))]),
        "number": dice.choice([*NUMBERS, dice.uniform(-1e3, 1e3), 10 ** dice.uniform(-300, 300)]),
        "amount": dice.choice([None, Decimal(10**20 - 1) / 100, Decimal(dice.randrange(-(10**6), 10**6)) / 100]),
        "place": dice.choice([None, place % 11, -(2**63), 2**63 - 1]),
        "at": at,
        TIME: at,
        ORDER: {"place": place},
        "_sign": 1,
    }


def state(table: Any) -> list[str]:
    """Return all columns of all rows, in the order of the keys."""
    rows = to_arrow(table)
    columns = [comparable_column(rows[name]) for name in sorted(rows.column_names)]
    return sorted(map(repr, zip(*columns, strict=True)))


def by_rows_without_fallback(evaluation: Evaluation, rows: int, find: Any) -> Any:
    """Do as `by_rows`, but raise Unsupported if DuckDB refuses."""
    if rows:
        return find(evaluation), SPARK, None
    with duckdb_may_refuse():
        return find(evaluation.in_process), DUCKDB, None


@pytest.mark.long
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_sketches_are_the_same_by_either_engine(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, window: str, share: float
) -> None:
    kind = Aggregate("key", MEASURES, window=WINDOWS[window])
    slices = [to_frame(spark, part) for part in parts(len(window), 4)]
    whole = state(laws.at_once(kind, slices))
    monkeypatch.setattr(laws, "by_rows", by_rows_without_fallback)
    monkeypatch.setattr(laws, "SHARE_OF_DUCKDB", share)
    assert state(laws.by_slices(kind, slices)) == whole


def arguments() -> Iterator[tuple[float, float]]:
    """Yield numbers around the boundary of every class, and of all exponents, with exponents for their power."""
    dice, base = Random(11), (1 + 0.01) / (1 - 0.01)
    for number in range(-37_230, 35_486):
        boundary = math.exp(number * math.log(base))
        for value in (math.nextafter(boundary, 0), boundary, math.nextafter(boundary, math.inf)):
            yield value, float(number)
    for exponent in range(-1074, 1024):
        for _ in range(20):
            yield math.ldexp(dice.uniform(0.5, 1), exponent + 1), dice.uniform(-3, 3) * dice.choice((1, 300))


@pytest.mark.turns
@pytest.mark.parametrize("every", [11, 1])
def test_logarithms_and_powers_are_those_of_spark(spark: SparkSession, every: int) -> None:
    x, y = zip(*islice(arguments(), 0, None, every), strict=True)
    rows = pa.table({"id": range(len(x)), "x": x, "y": y})
    base = (1 + 0.01) / (1 - 0.01)
    texts = ["id", "ln(x) as l", f"power({base!r}d, y) as p", "if(x between 1e-300 and 1e300, power(x, y), 0d) as q"]
    with by_duckdb():
        mine = to_arrow(to_frame(in_process(), rows).selectExpr(*texts)).sort_by("id")
    theirs = to_arrow(to_frame(spark, rows).selectExpr(*texts)).sort_by("id")
    for name in ("l", "p", "q"):
        assert mine[name].to_pylist() == theirs[name].to_pylist()
