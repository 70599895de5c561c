"""Enrich: each event with the version of a dimension that held at the event's time (an as-of join)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from attrs import field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import AGAIN, ORDER, SIGN, as_sql, in_log_order, names, newest, same, visible
from lake.kinds.finality import WithFinality, instant
from lake.kinds.kind import ROLE, newest_of
from lake.lazy import DataFrame, F, Window


@frozen(kw_only=True)
class AsOf:
    """Dimension whose version of equal `on` columns is found as of the event's time.

    time: start of a version, inclusive; of equal ones the last in the log counts
    until: its exclusive end, null if it still holds; without it a version holds until the next
    tolerance: a version that began longer than this before the event does not count
    """

    on: tuple[str, ...] = field(converter=names, kw_only=False)
    time: str = "valid_from"
    until: str | None = None
    tolerance: timedelta | None = None

    def __attrs_post_init__(self) -> None:
        if self.until is None and self.time == "valid_from":
            object.__setattr__(self, "until", "valid_to")
        if not self.on:
            raise DeclarationError("AsOf needs columns to find a version by", fix='name them: AsOf("tailnum")')
        if self.tolerance is not None and self.tolerance < timedelta(0):
            raise DeclarationError(
                f"invalid tolerance {self.tolerance}", fix="it is how old a version may be: use zero or more"
            )

    @property
    def own(self) -> tuple[str, ...]:
        return (*self.on, self.time, *([self.until] if self.until else []))


@frozen(init=False)
class Enrich(WithFinality):
    """One row per event, identified by `id`: the event's columns, then each dimension's, null if no version held.

    The function returns the frame of events and one for each dimension, in the order of the inputs. The last event of
    an id in the log counts.

    time: the event's column with its time
    how: "inner" leaves out events for which a dimension has no version
    is_final: adds a column, true if only versions later than `lateness` can still hold at the event's time. Each AsOf's
        time must be its log's event time, and an id belong to one event

    Example:
        Enrich("sale_id", AsOf("product"), time="sold_at")
        Enrich("invoice_id", AsOf("currency", time="since"), AsOf("customer"), time="at", how="inner")
        Enrich("sale_id", AsOf("product", time="since"), time="sold_at", lateness=timedelta(hours=1), is_final=True)
    """

    name: ClassVar[str] = "Enrich"
    version: ClassVar[int] = 2
    chooses: ClassVar[bool] = True

    id: tuple[str, ...] = field(converter=names)
    dimensions: tuple[AsOf, ...]
    time: str
    how: Literal["left", "inner"]

    def __init__(
        self,
        id: str | Sequence[str],
        *dimensions: AsOf,
        time: str,
        how: Literal["left", "inner"] = "left",
        lateness: timedelta = timedelta(0),
        is_final: bool = False,
    ) -> None:
        self.__attrs_init__(id, dimensions, time, how, lateness=lateness, is_final=is_final)
        hidden = [c for c in (*self.id, time, *(c for d in dimensions for c in d.on)) if c.startswith("_")]
        if hidden:
            raise DeclarationError(
                f"Enrich needs {hidden[0]!r} in its rows, but names with '_' are hidden", fix="rename it"
            )
        if not dimensions:
            raise DeclarationError("Enrich needs a dimension", fix='add AsOf("a_column") for each input but the first')
        if how not in ("left", "inner"):
            raise DeclarationError(
                f"unknown how={how!r}", fix='"left" keeps events without a version, "inner" leaves them out'
            )

    @property
    def key(self) -> tuple[str, ...]:
        return self.id

    @property
    def identity(self) -> tuple[str, ...]:
        return self.id

    @property
    def inputs(self) -> tuple[int, int]:
        return 1 + len(self.dimensions), 1 + len(self.dimensions)

    @property
    def absorbs(self) -> bool:
        """False for an inner join: the table does not hold the events that it left out."""
        return self.how == "left"

    @property
    def open_sides(self) -> Sequence[int]:
        return range(1, 1 + len(self.dimensions))

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        dimension = self.dimensions[side - 1]
        return [as_sql(*dimension.on, dimension.time) if side else as_sql(*self.id)]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        if side:
            return dict.fromkeys(self.dimensions[side - 1].own, "dimension")
        sought = [column for dimension in self.dimensions for column in dimension.on]
        return dict.fromkeys(sought, "to find a version by") | {self.time: "time"} | dict.fromkeys(self.id, "id")

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        return (self.dimensions[side - 1].time if side else self.time,)

    def names_key(self, side: int, /) -> bool:
        return side == 0

    def reaching(self, side: int, changes: DataFrame, /) -> DataFrame:
        """Return added and removed versions with their start and the last time at which they could hold."""
        dimension = self.dimensions[side - 1]
        began = F.col(dimension.time)
        no_end = F.lit(None).cast(changes.schema[dimension.time].dataType)
        # With a tolerance a timestamp, also for a date.
        last = no_end if dimension.tolerance is None else began + F.lit(dimension.tolerance)
        marks = [began.alias("_began"), last.alias("_last"), (F.col(SIGN) > 0).alias("_came")]
        return changes.select(*dimension.on, *marks)

    def reaches(self, side: int, quote: str, /) -> str:
        """An added version replaces an older one or none; a removed one may have hidden an older one that holds."""
        time, held = f"t.{quote}{self.time}{quote}", f"t.{_since(side)}"
        alike = " and ".join(f"k.{quote}{c}{quote} = t.{quote}{c}{quote}" for c in self.dimensions[side - 1].on)
        holds = f"k._began <= {time} and (k._last is null or {time} <= k._last)"
        if not self.absorbs:
            return f"{alike} and {holds}"
        decides = f"{held} is null or if(k._came, {held} <= k._began, {held} = k._began)"
        return f"{alike} and {holds} and ({decides})"

    def evaluate(self, events: DataFrame, *dimensions: DataFrame) -> DataFrame:
        rows = newest(events, self.id)
        rows = self._enrich(rows.select(*visible(rows.columns)), dimensions)
        if self.how == "inner":
            rows = rows.where(" and ".join(f"`{_since(side)}` is not null" for side in range(1, len(dimensions) + 1)))
        return rows

    def absorb(self, old: DataFrame, changes: DataFrame, *dimensions: DataFrame) -> DataFrame:
        """Evaluate the affected events. If a table's row changed, its id is marked: another row may be newest."""
        columns = visible(changes.columns)
        newer = f"{SIGN} > 0" if in_log_order(changes) else "false"
        added = newest(changes.where(newer), self.id).select(*columns)
        unchanged = old.join(changes, same(old, changes, self.id), "left_anti").select(*columns)
        events = unchanged.unionByName(added)
        versions = [
            rows.join(F.broadcast(events.select(*dimension.on).distinct()), list(dimension.on), "left_semi")
            for dimension, rows in zip(self.dimensions, dimensions, strict=True)
        ]
        rows = self._enrich(events, versions).withColumn(AGAIN, F.lit(False))
        changed_ids = changes.select(*self.id).distinct()
        removed = changed_ids.join(added, same(changed_ids, added, self.id), "left_anti").withColumn(AGAIN, F.lit(True))
        return rows.unionByName(removed, allowMissingColumns=True)

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        if not side:
            return super().traced(rows).withColumn(ROLE, F.expr(newest_of(self.id)))
        dimension = self.dimensions[side - 1]
        return rows.withColumn(ROLE, F.expr(newest_of((*dimension.on, dimension.time))))

    def lookup_values(self, row: Mapping[str, Any], side: int, /) -> dict[str, Any] | None:
        if not side:
            return super().lookup_values(row, side)
        dimension, began = self.dimensions[side - 1], row.get(_since(side))
        return None if began is None else {**{c: row[c] for c in dimension.on}, dimension.time: began}

    def _enrich(self, events: DataFrame, dimensions: Sequence[DataFrame]) -> DataFrame:
        for side, (dimension, rows) in enumerate(zip(self.dimensions, dimensions, strict=True), start=1):
            events = self._join_as_of(events, dimension, rows, side)
        columns = visible(events.columns)
        rows = events.select(*columns, *[_since(side) for side in range(1, len(dimensions) + 1)])
        if not self.is_final:
            return rows
        state = {}
        for side, dimension in enumerate(self.dimensions, start=1):
            instant(dimensions[side - 1], dimension.time)
            matched = " and ".join(f"`{column}` is not null" for column in dimension.on)
            state[side] = f"if({matched}, {instant(rows, self.time)}, null)"
        return rows.select("*", *self._final_columns(columns, state))

    def _join_as_of(self, events: DataFrame, dimension: AsOf, versions: DataFrame, side: int) -> DataFrame:
        """Add the columns of the version that held, in one pass over both in the order of time."""
        added = [column for column in visible(versions.columns) if column not in dimension.own]
        twice = sorted(set(added) & set(events.columns))
        if twice:
            raise DeclarationError(f"{twice[0]!r} is a column of two inputs", fix=f"rename one: {twice[0]} as …")
        held = [F.col(dimension.time).alias("_from"), *([F.col(dimension.until)] if dimension.until else [])]
        began = versions.where(" and ".join(f"`{c}` is not null" for c in (*dimension.on, dimension.time))).select(
            *dimension.on,
            F.col(dimension.time).alias("_at"),
            F.lit(0).alias("_event_after_version"),
            F.struct(ORDER, *held, *added).alias("_version"),
        )
        looking = events.select(
            *dimension.on,
            F.col(self.time).alias("_at"),
            F.lit(1).alias("_event_after_version"),
            F.struct(*events.columns).alias("_event"),
        )
        both = began.unionByName(looking, allowMissingColumns=True)
        order = Window.partitionBy(*dimension.on).orderBy("_at", "_event_after_version", f"_version.{ORDER}")
        last = F.last("_version", ignorenulls=True).over(order.rowsBetween(Window.unboundedPreceding, 0))
        matched = both.withColumn("_last", last).where("_event is not null")
        holds = F.col("_last").isNotNull()
        if dimension.until is not None:
            until = F.col(f"_last.`{dimension.until}`")
            holds = holds & (until.isNull() | (F.col("_at") < until))
        if dimension.tolerance is not None:
            holds = holds & (F.col("_at") - F.lit(dimension.tolerance) <= F.col("_last._from"))
        shown = {"_from": _since(side)} | {column: column for column in added}
        return matched.select("_event.*", *[F.when(holds, F.col(f"_last.`{c}`")).alias(n) for c, n in shown.items()])


def _since(side: int) -> str:
    """Name the state column with the start of the version that held, for input number `side`."""
    return f"_from_{side}"
