"""What differs between a table's rows and the rows it should have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lake.store.commit import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows to insert, update and delete so that `old` becomes `rows`: the columns of `rows`, and CHANGE.

    Both sides have the same columns and at most one row per `identity`. A deleted row shows its old values.
    """
    from pyspark.sql import functions as F

    # Renamed, because `rows` may descend from `old`, and then the two sides' columns are one to Spark.
    was = {column: f"_was_{column}" for column in rows.columns}
    there = old.select(*[F.col(column).alias(name) for column, name in was.items()], F.lit(True).alias("_there"))
    key = " and ".join(f"`{column}` <=> `{was[column]}`" for column in identity)
    joined = rows.withColumn("_new", F.lit(True)).join(there, F.expr(key), "full_outer")
    others = [column for column in rows.columns if column not in identity]
    differs = " or ".join(f"not (`{column}` <=> `{was[column]}`)" for column in others) or "false"
    change = f"case when _new is null then 'delete' when _there is null then 'insert' when {differs} then 'update' end"
    images = [f"if(_new is null, `{was[column]}`, `{column}`) as `{column}`" for column in rows.columns]
    return joined.selectExpr(*images, f"{change} as {CHANGE}").where(f"{CHANGE} is not null")
