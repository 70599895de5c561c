"""Joins of frames that have a column in common are answered as by Spark, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import in_process

ROWS = pa.table({"id": [1, 2, 3, 4, 5], "x": [1, 2, 3, 4, None], "k": [1, 1, 2, 2, None]})
Frames = tuple[DataFrame, DataFrame]
PAIRS: dict[str, Callable[[DataFrame], Frames]] = {
    "itself": lambda rows: (rows, rows),
    "a part": lambda rows: (rows, rows.where("x < 4")),
    "of a part": lambda rows: (rows.where("x > 1"), rows),
    "two parts": lambda rows: (rows.where("x > 1"), rows.where("x < 4")),
    "a part of a part": lambda rows: (rows.where("x > 1"), rows.where("x > 1").where("x < 4")),
    "its sums": lambda rows: (rows, rows.groupBy("k").agg(F.max("x").alias("x"), F.min("id").alias("id"))),
    "some columns": lambda rows: (rows, rows.select("k", "id", F.col("x").alias("x"))),
    "others": lambda rows: (rows, rows.select(*((F.col(name) + 0).alias(name) for name in rows.columns))),
    "two with new columns": lambda rows: (rows.withColumn("x", F.col("x") + 1), rows.withColumn("y", F.col("x"))),
    "distinct rows": lambda rows: (rows, rows.distinct()),
    "a join before": lambda rows: (rows, rows.join(rows.select(F.col("k"), F.col("x").alias("y")), "k")),
}
CONDITIONS: dict[str, Callable[[DataFrame, DataFrame], object]] = {
    "equal": lambda a, b: a.k == b.k,
    "exchanged": lambda a, b: b.k == a.k,
    "equal nulls": lambda a, b: a.k.eqNullSafe(b.k),
    "two equal": lambda a, b: (a.k == b.k) & (a.id == b.id),
    "equal and less": lambda a, b: (a.k == b.k) & (a.x < b.x),
    "equal and of one": lambda a, b: (a.k == b.k) & (b.x > 1),
    "equal or equal": lambda a, b: (a.k == b.k) | (a.id == b.id),
    "others": lambda a, b: a.id == b.k,
    "of functions": lambda a, b: F.abs(a.k) == F.abs(b.k),
    "negated": lambda a, b: ~(a.k == b.k),
    "by name": lambda a, b: "k",
    "by names": lambda a, b: ["k", "id"],
}
RESULTS: dict[str, Callable[[DataFrame, DataFrame, DataFrame], DataFrame]] = {
    "all": lambda joined, a, b: joined,
    "of the first": lambda joined, a, b: joined.select(a.id, a.x),
    "of the second": lambda joined, a, b: joined.select(b.id),
    "of both": lambda joined, a, b: joined.select(a.id, b.x),
    "without the second's": lambda joined, a, b: joined.drop(b.k),
    "filtered": lambda joined, a, b: joined.where(a.id > 1),
}


KINDS = ("inner", "left", "full", "left_semi", "left_anti")
OFTEN = {("two parts", "left")}


@pytest.mark.parametrize(
    ("pair", "kind"),
    [pytest.param(*case, marks=() if case in OFTEN else pytest.mark.long) for case in product(PAIRS, KINDS)],
)
def test_join_of_frames_with_a_common_column(spark: SparkSession, pair: str, kind: str) -> None:
    answered = 0
    for condition in CONDITIONS:
        for result in RESULTS:
            texts = (pair, condition, kind, result)
            with by_duckdb():
                try:
                    mine = rows_of(made(to_frame(in_process(), ROWS), *texts))
                except (Unsupported, AnalysisException, AttributeError):
                    continue
            answered += 1
            assert mine == rows_of(made(to_frame(spark, ROWS), *texts)), texts
    assert answered


def made(rows: DataFrame, pair: str, condition: str, kind: str, result: str) -> DataFrame:
    first, second = PAIRS[pair](rows)
    return RESULTS[result](first.join(second, CONDITIONS[condition](first, second), kind), first, second)  # type: ignore[arg-type]


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(str, zip(*(column.to_pylist() for column in to_arrow(frame).columns), strict=True)))
