"""Chains of selections, filters, joins, unions and groups give the same rows by DuckDB and by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import all_rows, comparable_column, in_process

Step = Callable[[DataFrame, DataFrame], DataFrame]
KEPT = ["id", "int", "long", "money", "text", "at", "part", "group"]


def _other(rows: DataFrame) -> DataFrame:
    return rows.where("id % 3 = 0").selectExpr("id", "group", "text as word", "at as since", "id + 5 as number")


STEPS: dict[str, Step] = {
    "where": lambda rows, _: rows.where("long > 0 or text is null"),
    "where by a column": lambda rows, _: rows.where(F.col("int").isNotNull() & ~(rows["id"] == 3)),
    "where among no values": lambda rows, _: rows.where(~F.col("text").isin() & ~F.col("int").isin([])),
    "groups by no column": lambda rows, _: rows.crossJoin(rows.groupBy().agg(F.sum("int").alias("_all"))),
    "order by no column": lambda rows, _: rows.orderBy([]),
    "window in no order": lambda rows, _: rows.withColumn(
        "_most", F.max("int").over(Window.partitionBy("group").orderBy())
    ),
    "with a column": lambda rows, _: rows.withColumn("long", F.expr("coalesce(int, id)")),
    "with columns": lambda rows, _: rows.withColumns({"a": F.lit(1), "text": F.concat(F.col("text"), F.lit("!"))}),
    "select all": lambda rows, _: rows.select("*", F.struct("id", F.col("at").alias("of")).alias("place")),
    "parts of a struct": lambda rows, _: rows.select(*KEPT, "part.*"),
    "rename": lambda rows, _: rows.withColumnRenamed("text", "TEXT2").withColumnRenamed("TEXT2", "text"),
    "drop": lambda rows, _: rows.drop("items", "missing", "money").withColumn(
        "money", F.lit(None).cast("decimal(12,2)")
    ),
    "distinct": lambda rows, _: rows.select(*KEPT).distinct(),
    "explode": lambda rows, _: rows.select(
        "*", F.expr("explode(if(id > 5, array(1, 2), array(3)))").alias("_each")
    ).drop("_each"),
    "union": lambda rows, _: rows.unionByName(rows.where("id < 4")),
    "union with missing": lambda rows, other: rows.unionByName(other, allowMissingColumns=True),
    "union of other types": lambda rows, _: rows.unionByName(rows.where("id < 4").withColumn("int", F.col("long"))),
    "join": lambda rows, other: rows.join(
        other.drop("group").withColumnRenamed("id", "same"), F.col("id") == F.col("same")
    ),
    "left join": lambda rows, other: (
        rows.alias("a").join(other.alias("b"), F.expr("a.id <=> b.number"), "left").select("a.*", "b.word")
    ),
    "join by name": lambda rows, other: rows.join(other.select("id", "word"), "id"),
    "left join by name": lambda rows, other: rows.join(other.select("id", "since"), ["id"], "left"),
    "semi join": lambda rows, other: rows.join(F.broadcast(other), ["group", "id"], "left_semi"),
    "anti join": lambda rows, other: rows.join(other, rows["id"].eqNullSafe(other["id"]), "left_anti"),
    "semi join with itself": lambda rows, _: _with_itself(rows),
    "cross join": lambda rows, other: (
        rows.crossJoin(other.selectExpr("max(number) as _most")).where("id < _most").drop("_most")
    ),
    "newest": lambda rows, _: _newest(rows),
    "last of a window": lambda rows, _: _last(rows),
    "groups": lambda rows, _: rows.join(_groups(rows), ["group"], "left"),
    "filled with a number": lambda rows, _: rows.fillna(7),
    "filled with a text": lambda rows, _: rows.fillna("none", ["text", "id"]),
    "filled by column": lambda rows, _: rows.fillna({"int": -1, "text": "?", "money": 2}),
    "without nulls": lambda rows, _: rows.dropna(),
    "without nulls in some": lambda rows, _: rows.dropna(subset=["text", "int"]),
    "without rows of nulls": lambda rows, _: rows.dropna("all", subset=["text", "int"]),
    "intersection": lambda rows, _: rows.select(*KEPT).intersect(rows.select(*KEPT).where("id > 3")),
    "intersection of all": lambda rows, _: rows.select(*KEPT).intersectAll(rows.select(*KEPT).where("id > 3")),
    "difference": lambda rows, _: rows.select(*KEPT).subtract(rows.select(*KEPT).where("id > 3")),
    "difference of all": lambda rows, _: rows.select(*KEPT).exceptAll(rows.select(*KEPT).where("id > 3")),
    "difference of other types": lambda rows, _: rows.select(*KEPT).subtract(
        rows.select(*KEPT).withColumn("int", F.col("long")).where("id > 3")
    ),
    "rows of a window": lambda rows, _: _rows_of_a_window(rows),
    "different values": lambda rows, _: _different_values(rows),
    "sorted": lambda rows, _: rows.sort(F.desc("id"), "text"),
}


def _with_itself(rows: DataFrame) -> DataFrame:
    few = rows.select("id", "text").distinct().where("id % 2 = 0")
    return rows.alias("x").join(few.alias("y"), F.expr("x.id <=> y.id and x.text <=> y.text"), "left_semi")


def _ordered(rows: DataFrame, *first: str) -> list[str]:
    """The columns of a total order: rows that differ in any column of one name have an order."""
    return [*first, *(name for name in rows.columns if name not in first and rows.columns.count(name) == 1)]


def _newest(rows: DataFrame) -> DataFrame:
    order = Window.partitionBy("group").orderBy(F.desc(F.struct(*_ordered(rows, "part", "long", "id", "text"))))
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth < 5").drop("_nth")


def _last(rows: DataFrame) -> DataFrame:
    order = Window.partitionBy("group").orderBy(*_ordered(rows, "id", "text", "part", "long"))
    upto = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.withColumn("text", F.last("text", ignorenulls=True).over(upto))


def _rows_of_a_window(rows: DataFrame) -> DataFrame:
    order = Window.partitionBy("group").orderBy(*_ordered(rows, "id", "text", "part", "long"))
    around, behind = order.rowsBetween(-1, 2), order.rowsBetween(1, Window.unboundedFollowing)
    return rows.withColumns({"_most": F.max("id").over(around), "_behind": F.count("*").over(behind)})


def _different_values(rows: DataFrame) -> DataFrame:
    counts = [F.countDistinct("text").alias("_texts"), F.sum_distinct("int").alias("_ints")]
    return rows.join(rows.groupBy(F.col("group")).agg(*counts, F.avg("money").alias("_money")), ["group"], "left")


def _groups(rows: DataFrame) -> DataFrame:
    counts = [F.count("*").alias("_rows"), F.max(F.struct("id", "text")).alias("_last"), F.sum("int").alias("_sum")]
    return rows.groupBy(F.col("group")).agg(*counts).select("group", "_last.text", "_rows", "_sum").drop("text")


def chains(count: int) -> list[tuple[str, ...]]:
    dice = Random(7)
    return [*((name,) for name in STEPS), *(tuple(dice.choices([*STEPS], k=dice.randint(2, 6))) for _ in range(count))]


def result(rows: DataFrame, chain: tuple[str, ...]) -> list[object]:
    other = _other(rows)
    for name in chain:
        rows = STEPS[name](rows, other)
    found = to_arrow(rows)
    assert found.schema.names == rows.columns
    columns = [comparable_column(found[n]) for n in range(found.num_columns)]
    return [found.schema.names, sorted(map(repr, zip(*columns, strict=True)))]


def tried(spark: SparkSession, some: Iterable[tuple[str, ...]]) -> int:
    rows, known = all_rows().select([*KEPT, "items"]), 0
    for chain in some:
        try:
            with by_duckdb():
                mine = result(to_frame(in_process(), rows), chain)
        except Unsupported:
            continue
        known += 1
        assert mine == result(to_frame(spark, rows), chain), chain
    return known


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_steps_give_the_rows_of_spark(spark: SparkSession, every: int) -> None:
    assert tried(spark, chains(15)[::every]) > len(STEPS) // every


@pytest.mark.long
def test_chains_of_steps_give_the_rows_of_spark(spark: SparkSession) -> None:
    assert tried(spark, chains(400)) > 300
