"""Determinism of the analysed plan: nondeterministic plans are rejected before any data is read, others accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import Aggregate, Avg, Count, Latest, Max, Sum, View
from lake.engine import analysis
from lake.engine.carrying_frame import CarryingFrame, unwrapped
from lake.errors import DeclarationError
from lake.kinds.columns import CARRIED, ORDER, SIGN
from lake.kinds.kind import Kind
from lake.project.declaration import Declaration, log

SCHEMA = "id bigint, size double, price decimal(9,2), at timestamp"


def events(spark: SparkSession) -> DataFrame:
    empty = spark.createDataFrame([], SCHEMA)
    return empty.withColumns({ORDER: F.struct(F.lit(1)), SIGN: F.lit(1)})


def checked(spark: SparkSession, kind: Kind, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    declaration = Declaration("t", kind, (log("things"),), function)
    frame = events(spark)
    rows = unwrapped(function(CarryingFrame(frame))) if kind.row_by_row else function(frame.drop(*CARRIED))
    analysis.check_sides(declaration, [rows], [frame])
    return rows


def recursive(things: DataFrame) -> DataFrame:
    return things.sparkSession.sql(
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select n from r"
    )


SUBQUERIES = (
    "select * from {things} where id in (select id from {things})",
    "select * from {things} where id not in (select id from {things} where size > 1)",
    "select * from {things} a where exists (select 1 from {things} b where b.id = a.id)",
    "select *, (select id from {things}) as other from {things}",
    "select a.*, other from {things} a, lateral (select b.id as other from {things} b where b.size = a.size)",
)


def selecting(sql: str) -> Callable[[DataFrame], DataFrame]:
    return lambda things: things.sparkSession.sql(sql, things=things)


@pytest.mark.parametrize(
    ("kind", "function", "told"),
    [
        (Aggregate("id", {"size": Sum("size")}), lambda t: t.select("id", "size"), "size adds up a double"),
        (Aggregate("id", {"mean": Avg("size * 2")}), lambda t: t.select("id", "size"), "mean adds up a double"),
        (View("id"), lambda t: t.groupBy("id").agg(F.sum("size").alias("s")), "sum of floats"),
        (View("id"), lambda t: t.groupBy("id").agg(F.expr("avg(price * size) as s")), "avg of floats"),
        (View("id"), lambda t: t.groupBy("id").agg(F.stddev("price").alias("s")), "of floats"),
        (View("id"), lambda t: t.withColumn("r", F.rand()), "rand is not deterministic"),
        (View("id"), lambda t: t.withColumn("r", F.expr("uuid()")), "uuid is not deterministic"),
        (View("id"), lambda t: t.orderBy("at").limit(3), "depends on the rows of all keys"),
        (View((), identity="n"), recursive, "the query is recursive"),
        (Latest("id"), lambda t: t.dropDuplicates(["id"]), "must map each row on its own"),
        (Latest("id"), lambda t: t.orderBy("at").limit(3), "must map each row on its own"),
        (Latest("id"), lambda t: t.join(t.select("id"), "id"), "must map each row on its own"),
        (Latest("id"), lambda t: t.withColumn("n", F.expr("row_number() over (order by at)")), "each row on its own"),
        *((Latest("id"), selecting(sql), "each row on its own, found a subquery") for sql in SUBQUERIES),
    ],
)
def test_nondeterministic_plan_is_rejected(spark: SparkSession, kind: Any, function: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told) as error:
        checked(spark, kind, function)
    assert "fix: " in str(error.value)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (View((), identity="n", recursive=True), recursive),
        (Aggregate("id", {"n": Count(), "most": Max("size"), "price": Sum("price")}), lambda t: t),
        (Latest("id"), selecting("select t.*, n from {things} t, lateral explode(sequence(1, t.id)) as each(n)")),
        (Latest("id"), lambda t: t.where("size > 1").withColumn("half", F.col("size") / 2).select("id", "half")),
        (View("id"), lambda t: t.groupBy("id").agg(F.sum("price").alias("s"), F.max("size").alias("m"))),
    ],
)
def test_deterministic_plan_is_accepted(spark: SparkSession, kind: Any, function: Any) -> None:
    checked(spark, kind, function)


def test_select_keeps_the_columns_of_the_kind(spark: SparkSession) -> None:
    rows = checked(spark, Latest("id"), lambda t: t.filter(t.id > 1).select("id").selectExpr("id + 1 as id"))
    assert rows.columns == ["id", ORDER, SIGN]


def test_carrying_frame_behaves_like_a_dataframe(spark: SparkSession) -> None:
    frame = CarryingFrame(events(spark))
    assert isinstance(frame, DataFrame)
    assert frame.columns[:2] == ["id", "size"]
    assert unwrapped(frame.unionByName(frame).select(["id"])).columns == ["id", ORDER, SIGN]
    assert unwrapped(frame.sparkSession.sql("select * from {t} where id > 1", t=frame)).columns == frame.columns
    assert unwrapped(frame.transform(lambda rows, *names: rows.select(*names), "id")).columns == ["id", ORDER, SIGN]
    assert frame.count() == 0
