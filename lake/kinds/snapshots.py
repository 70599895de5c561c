"""Full dumps as changes and deletes: the set difference of each dump and the one before it.

A dump older than one that arrived before it is ignored. A dump with a refused record is partial: its rows count, but it
deletes nothing. Rows carry DELIVERED, a struct: `file`, `dump` as text if the contract declares it, and for rows that
are not events `refusal` and `id` (see lake.store.log). A refused record belongs to the dump that it names; else to
every dump in its file; if the file is broken, to each dump around it in log order, and to the next one.

A dump may cover a partition: one value of some columns, such as a region. It is compared with the one before of its
partition, and a key that moved to another partition is not deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import DELIVERED, ORDER, in_log_order, names, partition_by, same
from lake.kinds.deletes import GONE, KeyedRows
from lake.lazy import Column, DataFrame, F

DUMP: Final = "__dump"  # a value of the dump column
PARTITION_VALUE: Final = "__part"  # with a number: a value of a partition column
NEXT_DUMP: Final = "__next_dump"  # the next whole dump
EVENT: Final = f"{DELIVERED}.refusal is null"
PLACE: Final = (f"{ORDER}._batch as batch", f"{DELIVERED}.file as file", f"{DELIVERED}.dump as own")


@frozen(kw_only=True)
class DumpedRows(KeyedRows):
    """Kind that reads changes, or with `snapshots` full dumps, named by the first sequence column.

    marker: SQL over rows, true if they declare their dump complete; then only such dumps count
    partition: columns; a dump has all rows of one value of them
    """

    former: Mapping[str, str] | None = None
    snapshots: bool = False
    marker: str | None = None
    partition: tuple[str, ...] = field(converter=names, default=())

    @property
    def key(self) -> tuple[str, ...]:
        return () if self.snapshots else self.by

    @property
    def broadcast(self) -> str | None:
        return self.marker or self.truncate

    @property
    def absorbs(self) -> bool:
        return not self.snapshots

    @property
    def needs_refusals(self) -> bool:
        return self.snapshots

    def requires(self, side: int = 0, /) -> dict[str, str]:
        return dict.fromkeys(self.partition, "partition") | super().requires(side)

    def differences(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the dumps that count, and a row GONE for each key that the next whole dump lacks."""
        dump = self.sequence[0]
        parts = {f"{PARTITION_VALUE}{number}": column for number, column in enumerate(self.partition)}
        refusals = rows.where(f"not ({EVENT})") if DELIVERED in rows.columns else None
        rows = only_events(rows)
        markers = rows.where(self.marker) if self.marker else rows
        counting = _dumps_in_order(markers, dump, parts)
        partial = None if refusals is None else _partial_dumps(rows, refusals, dump, parts, self.marker or "true")
        dumps = F.broadcast(_with_next_dump(counting, partial, parts))
        contents = rows.where(f"not coalesce({self.marker}, false)") if self.marker else rows
        of = [f"`{dump}` = {DUMP}", *(f"`{column}` <=> {part}" for part, column in parts.items())]
        contents = contents.join(dumps, F.expr(" and ".join(of)))
        following = f"lead(`{dump}`) over ({self._partition} order by `{dump}`, {ORDER})"
        then = contents.withColumn("__then", F.expr(following))
        lacking = f"{NEXT_DUMP} is not null and (__then is null or __then > {NEXT_DUMP})"
        images = then.select("*", F.expr(f"explode(if({lacking}, array(false, true), array(false)))").alias(GONE))
        moved = images.withColumn(dump, F.expr(f"if({GONE}, {NEXT_DUMP}, `{dump}`)"))
        return moved.drop(DUMP, NEXT_DUMP, "__then", *parts)

    def check_options(self) -> None:
        for column in self.former or ():
            if column not in self.by:
                raise DeclarationError(f"former: {column!r} is not a key column", fix=did_you_mean(column, self.by))
        if not self.snapshots:
            for option, value in (("marker", self.marker), ("partition", self.partition)):
                if value:
                    raise DeclarationError(f"{option} needs snapshots=True", fix="add snapshots=True")
            return
        if self.deletes_by_key or self.truncate is not None:
            raise DeclarationError(
                "snapshots cannot have deletes, truncates or former keys",
                fix="leave them out: what is missing from a dump counts as deleted; an empty dump needs a marker",
            )
        if not self.sequence:
            raise DeclarationError("snapshots need a sequence", fix="name the column that says of which dump a row is")
        if self.sequence[0] in self.partition:
            raise DeclarationError(
                f"partition names {self.sequence[0]!r}, by which dumps are ordered",
                fix="leave it out: dumps follow each other within a partition",
            )


def only_events(rows: DataFrame) -> DataFrame:
    return rows.where(EVENT) if DELIVERED in rows.columns else rows


def _dumps_in_order(rows: DataFrame, dump: str, parts: Mapping[str, str]) -> DataFrame:
    """Return the dumps of `rows`, but those older than one of the same partition that arrived before.

    A dump arrives with its marker, or with its first row.
    """
    arrival = ORDER if in_log_order(rows) else "0"
    arrived = (
        rows.where(f"`{dump}` is not null")
        .groupBy(F.col(dump).alias(DUMP), *_part_columns(parts))
        .agg(F.expr(f"min({arrival})").alias("__came"))
        .withColumn("__nth", F.expr(f"dense_rank() over ({partition_by(parts)} order by __came)"))
    )
    before = f"over ({partition_by(parts)} order by __nth range between unbounded preceding and 1 preceding)"
    newest = arrived.withColumn("__newest", F.expr(f"max({DUMP}) {before}"))
    return newest.where(f"__newest is null or {DUMP} > __newest").select(DUMP, *parts)


def _with_next_dump(counting: DataFrame, partial: DataFrame | None, parts: Mapping[str, str]) -> DataFrame:
    """Add to each of the `counting` dumps NEXT_DUMP, the next of its partition that is not in `partial`."""
    if partial is None:
        following = f"lead({DUMP}) over ({partition_by(parts)} order by {DUMP}) as {NEXT_DUMP}"
        return counting.selectExpr(DUMP, *parts, following)
    held_back = partial.withColumn("__partial", F.lit(True))
    joined = counting.join(held_back, same(counting, held_back, [DUMP, *parts]), "left")
    of = joined.select(*(counting[column] for column in (DUMP, *parts)), "__partial")
    after = f"over ({partition_by(parts)} order by {DUMP} rows between 1 following and unbounded following)"
    return of.selectExpr(DUMP, *parts, f"min(if(__partial, null, {DUMP})) {after} as {NEXT_DUMP}")


def _part_columns(parts: Mapping[str, str]) -> list[Column]:
    return [F.col(column).alias(part) for part, column in parts.items()]


def _partial_dumps(rows: DataFrame, refusals: DataFrame, dump: str, parts: Mapping[str, str], marker: str) -> DataFrame:
    """Return DUMP and `parts` of dumps with a refused record; `marker` is SQL, true of rows that announce a dump."""
    spans = (
        rows.where(f"`{dump}` is not null")
        .select(
            F.col(dump).alias(DUMP),
            *_part_columns(parts),
            *map(F.expr, (*PLACE, f"{ORDER} as at", f"if({marker}, {ORDER}, null) as start")),
        )
        .groupBy(DUMP, *parts, "batch", "file", "own")
        .agg(F.min("at").alias("first"), F.max("at").alias("last"), F.min("start").alias("start"))
    )
    outstanding = _outstanding(refusals).selectExpr(*PLACE, f"{ORDER} as at").groupBy("batch", "file", "own")
    refused = outstanding.agg(F.min("at").alias("at")).select(F.struct("batch", "file", "own", "at").alias("r"))
    of_record, of_dump = "over (partition by r)", f"over (partition by {', '.join(['r', DUMP, *parts])})"
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
    return pairs.where("hit").select(DUMP, *parts).distinct()


def _outstanding(refusals: DataFrame) -> DataFrame:
    """Return the refused records that are neither repaired since nor accepted."""
    events = refusals.withColumns({"_id": F.expr(f"{DELIVERED}.id"), "_what": F.expr(f"{DELIVERED}.refusal")})
    accepted = events.where("_what = 'accepted'").selectExpr(f"max({ORDER}) as _accepted")
    repaired = events.where("_what = 'repaired'").select("_id")
    refused = events.where("_what = 'refused'").join(repaired, "_id", "left_anti").crossJoin(F.broadcast(accepted))
    return refused.where(f"_accepted is null or {ORDER} > _accepted")
