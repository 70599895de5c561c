"""A stream of full dumps as changes and deletes: the set difference of each dump and the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lake.kinds.kind import ORDER, in_log_order
from lake.kinds.removal import GONE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBER: Final = "__dump"  # which dump, a value of the dump column
NEXT: Final = "__next_dump"  # the dump after it that counts


def differences(rows: DataFrame, key: Sequence[str], dump: str, marker: str | None = None) -> DataFrame:
    """The rows of the dumps that count, and for each key that the next of them lacks a row GONE, `dump` being that.

    `dump` names the column that tells dumps apart and orders them. `marker`: SQL over rows, which say that their dump
    is complete; then only such dumps count.
    """
    from pyspark.sql import functions as F

    markers = rows.where(marker) if marker else rows
    dumps = F.broadcast(_counting(markers, dump, marked=marker is not None))
    contents = rows.where(f"not coalesce({marker}, false)") if marker else rows
    contents = contents.join(dumps, F.expr(f"`{dump}` = {NUMBER}"))
    by = ", ".join(f"`{column}`" for column in key)
    then = contents.withColumn("__then", F.expr(f"lead(`{dump}`) over (partition by {by} order by `{dump}`, {ORDER})"))
    lacking = f"{NEXT} is not null and (__then is null or __then > {NEXT})"
    images = then.select("*", F.expr(f"explode(if({lacking}, array(false, true), array(false)))").alias(GONE))
    moved = images.withColumn(dump, F.expr(f"if({GONE}, {NEXT}, `{dump}`)"))
    return moved.drop(NUMBER, NEXT, "__then")


def _counting(rows: DataFrame, dump: str, *, marked: bool) -> DataFrame:
    """The dumps that `rows` speak of, but those older than one that came before; each with the NEXT.

    A dump has come with its marker, or with its first row. Those that came in one batch without arrivals came together:
    the rows are spread over buckets, whose order says nothing.
    """
    from pyspark.sql import functions as F

    came = "0"
    if in_log_order(rows):
        came = ORDER if marked else f"struct({ORDER}._batch, {ORDER}._arrival)"
    arrived = (
        rows.where(f"`{dump}` is not null")
        .groupBy(F.col(dump).alias(NUMBER))
        .agg(F.expr(f"min({came})").alias("__came"))
        .withColumn("__nth", F.expr("dense_rank() over (order by __came)"))
    )
    before = "over (order by __nth range between unbounded preceding and 1 preceding)"
    newest = arrived.withColumn("__newest", F.expr(f"max({NUMBER}) {before}"))
    counting = newest.where(f"__newest is null or {NUMBER} > __newest")
    return counting.selectExpr(NUMBER, f"lead({NUMBER}) over (order by {NUMBER}) as {NEXT}")
