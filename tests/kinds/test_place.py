"""State keeps log order as tables have had it since before events had an arrival: none of them has to be rebuilt."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake import Aggregate, First, FirstValue, Fold, History, LastValue, Latest
from lake.kinds.columns import ORDER
from tests.kinds.events import batch

KINDS = {
    "latest": (Latest("k", sequence="at", partial="v", groups={"g": "w"}), ("_at", "_at_v", "_at_g")),
    "first": (First("k", deletes="v = 0"), ("_at", "_since")),
    "history": (History("k", sequence="at"), ("_at",)),
    "fold": (Fold("k", sequence="at", state="n int", step={"n": "event.v"}), ("_at",)),
    "values": (
        Aggregate("k", {"a": FirstValue("v", by="at"), "b": LastValue("v", by="at")}),
        ("_a_at", "_b_at"),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_type_of_state_is_what_it_was(spark: SparkSession, name: Any) -> None:
    kind, columns = KINDS[name]
    types = dict(kind.evaluate(batch(spark, 1, "k int, at int, v int, g int, w int", (1, 2, 3, 4, 5))).dtypes)
    assert [types[c] for c in columns if "struct<_batch:bigint,_bucket:int,_offset:bigint>" not in types[c]] == []


def test_an_event_without_an_arrival_is_kept_by_its_place(spark: SparkSession) -> None:
    rows = batch(spark, 1, "k int", (1,), (2,))
    old = F.col(ORDER).withField("_arrival", F.lit(None).cast("bigint"))
    kept = Latest("k").evaluate(rows.withColumn(ORDER, F.when(F.col("k") == 1, old).otherwise(F.col(ORDER))))
    assert {row["k"]: tuple(row["_at"][ORDER]) for row in kept.collect()} == {1: (1, 0, 0), 2: (1, None, 1)}
