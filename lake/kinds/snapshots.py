"""A stream of full dumps as changes and deletes: the set difference of each dump and the one before it.

A dump of which a record was refused is not whole: what it has counts, what it lacks may be what was refused, so it
closes nobody. Rows carry DELIVERED, a struct: `file` and, where the contract says what that is, `dump` as text; and of
rows that are no events `refusal` and `id` (see lake.store.log). A refused record is of the dump that it names; where
that cannot be read, or nothing else is of it, of every dump in its file; where nothing is known of these either (the
file is broken), of each dump in whose midst it came, and of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lake.kinds.columns import DELIVERED, ORDER
from lake.kinds.deletes import GONE
from lake.kinds.ordering import in_log_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBER: Final = "__dump"  # which dump, a value of the dump column
NEXT: Final = "__next_dump"  # the whole dump after it that counts
EVENT: Final = f"{DELIVERED}.refusal is null"
PLACE: Final = (f"{ORDER}._batch as batch", f"{DELIVERED}.file as file", f"{DELIVERED}.dump as own")


def differences(rows: DataFrame, key: Sequence[str], dump: str, marker: str | None = None) -> DataFrame:
    """The rows of the dumps that count, and for each key that the next whole one lacks a row GONE, `dump` being that.

    `dump` names the column that tells dumps apart and orders them. `marker`: SQL over rows, which say that their dump
    is complete; then only such dumps count.
    """
    from pyspark.sql import functions as F

    refusals = rows.where(f"not ({EVENT})") if DELIVERED in rows.columns else None
    rows = only_events(rows)
    markers = rows.where(marker) if marker else rows
    counting = _counting(markers, dump, marked=marker is not None)
    dumps = F.broadcast(
        _followed(counting, None if refusals is None else _partial(rows, refusals, dump, marker or "true"))
    )
    contents = rows.where(f"not coalesce({marker}, false)") if marker else rows
    contents = contents.join(dumps, F.expr(f"`{dump}` = {NUMBER}"))
    by = ", ".join(f"`{column}`" for column in key)
    then = contents.withColumn("__then", F.expr(f"lead(`{dump}`) over (partition by {by} order by `{dump}`, {ORDER})"))
    lacking = f"{NEXT} is not null and (__then is null or __then > {NEXT})"
    images = then.select("*", F.expr(f"explode(if({lacking}, array(false, true), array(false)))").alias(GONE))
    moved = images.withColumn(dump, F.expr(f"if({GONE}, {NEXT}, `{dump}`)"))
    return moved.drop(NUMBER, NEXT, "__then")


def only_events(rows: DataFrame) -> DataFrame:
    """`rows` without what is no event."""
    return rows.where(EVENT) if DELIVERED in rows.columns else rows


def _counting(rows: DataFrame, dump: str, *, marked: bool) -> DataFrame:
    """The dumps that `rows` speak of, but those older than one that came before.

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
    return newest.where(f"__newest is null or {NUMBER} > __newest").select(NUMBER)


def _followed(counting: DataFrame, partial: DataFrame | None) -> DataFrame:
    """Each of the `counting` dumps with the NEXT that is whole: that is none of those in `partial`."""
    from pyspark.sql import functions as F

    if partial is None:
        return counting.selectExpr(NUMBER, f"lead({NUMBER}) over (order by {NUMBER}) as {NEXT}")
    told = counting.join(partial.withColumn("__partial", F.lit(True)), NUMBER, "left")
    after = f"over (order by {NUMBER} rows between 1 following and unbounded following)"
    return told.selectExpr(NUMBER, f"min(if(__partial, null, {NUMBER})) {after} as {NEXT}")


def _partial(rows: DataFrame, refusals: DataFrame, dump: str, marker: str) -> DataFrame:
    """The dumps of which a record is refused: NUMBER, each once. `marker`: SQL of the rows by which a dump arrives."""
    from pyspark.sql import functions as F

    spans = (
        rows.where(f"`{dump}` is not null")
        .selectExpr(f"`{dump}` as {NUMBER}", *PLACE, f"{ORDER} as at", f"if({marker}, {ORDER}, null) as start")
        .groupBy(NUMBER, "batch", "file", "own")
        .agg(F.min("at").alias("first"), F.max("at").alias("last"), F.min("start").alias("start"))
    )
    told = _outstanding(refusals).selectExpr(*PLACE, f"{ORDER} as at").groupBy("batch", "file", "own")
    refused = told.agg(F.min("at").alias("at")).select(F.struct("batch", "file", "own", "at").alias("r"))
    of_record, of_dump = "over (partition by r)", f"over (partition by r, {NUMBER})"
    steps = {
        "named": "coalesce(own = r.own, false)",
        "shared": "batch = r.batch and file = r.file",
        "first": f"min(first) {of_dump}",
        "last": f"max(last) {of_dump}",
        "start": f"min(start) {of_dump}",
        "next": f"min(if(start > r.at, start, null)) {of_record}",
        "near": "r.at between first and last or coalesce(start = next, false)",
        "hit": f"case when max(named) {of_record} then named when max(shared) {of_record} then shared else near end",
    }
    pairs = refused.crossJoin(F.broadcast(spans))
    for column, sql in steps.items():
        pairs = pairs.withColumn(column, F.expr(sql))
    return pairs.where("hit").select(NUMBER).distinct()


def _outstanding(refusals: DataFrame) -> DataFrame:
    """The records that are refused still, as rows with `_id`: neither repaired since, nor accepted."""
    from pyspark.sql import functions as F

    told = refusals.withColumns({"_id": F.expr(f"{DELIVERED}.id"), "_what": F.expr(f"{DELIVERED}.refusal")})
    accepted = told.where("_what = 'accepted'").selectExpr(f"max({ORDER}) as _accepted")
    repaired = told.where("_what = 'repaired'").select("_id")
    refused = told.where("_what = 'refused'").join(repaired, "_id", "left_anti").crossJoin(F.broadcast(accepted))
    return refused.where(f"_accepted is null or {ORDER} > _accepted")
