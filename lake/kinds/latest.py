"""Latest and First: the newest, or oldest, of each key's rows by a sequence.

A row's place is (`sequence`, log order): a total order, in which a null in the sequence is older than any value. Rows
older than the newest delete of their key, or than the newest truncate, do not count, whenever they arrive. There are no
tombstones: the log holds the deletes of keys that are not in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, Literal

from attrs import field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import AGAIN, AT, SIGN, as_sql, in_log_order, names, place, visible, with_stored_order
from lake.kinds.deletes import GONE, KeyedRows
from lake.kinds.kind import DECIDES, DELETED, DELETES, ROLE, SUPERSEDED, TRUNCATES, Kind
from lake.kinds.snapshots import DumpedRows, only_events
from lake.lazy import DataFrame, F

SINCE: Final = "_since"  # state: the place of the key's newest delete
HELD: Final = "_held"  # true of a row of the table
LIVE: Final = "_live"  # true of a row newer than its deletes
TRUNCATED: Final = "_truncated"  # the place of the newest truncate


class FirstOrLatest(KeyedRows):
    """One row per `key`: the row at one end of the order of places."""

    name: ClassVar[str]
    newest: ClassVar[bool]
    version: ClassVar[int] = 2
    chooses: ClassVar[bool] = True

    @property
    def identity(self) -> tuple[str, ...]:
        return self.by

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return [as_sql(*self.by, *self.sequence)]

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """State: the places of the winner and its column groups, and of the newest delete."""
        return self._winners(self._with_places(rows)).drop(AGAIN)

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """Mark a key as AGAIN if it lost a row, or if the log may have a delete that the table does not show."""
        news = self._with_places(changes)
        held = old.withColumns({HELD: F.lit(True), GONE: F.lit(False), SIGN: F.lit(1)})
        if self.truncate:  # rows of the table are newer than every truncate
            held = held.withColumn(TRUNCATED, F.lit(None).cast(news.schema[TRUNCATED].dataType))
        again = [f"min({SIGN}) over ({self._partition}) < 0"]
        if self._needs_newest_delete:
            again.append(f"max({GONE}) over ({self._partition})")
        if self._needs_newest_delete or (self.deletes_by_key and (self.sequence or not in_log_order(changes))):
            again.append(f"({LIVE} and not max({HELD}) over ({self._partition}))")
        return self._winners(held.unionByName(news), again=" or ".join(again))

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        gone = f"{self.kept} and {self.gone}"
        placed = rows.withColumns({AT: F.expr(place(*self.sequence)), GONE: F.expr(gone)})
        since = f"max(if({GONE}, {AT}, null)) over ({self._partition})"
        live = [self.kept, f"not {GONE}", f"coalesce({AT} > {since}, true)"]
        if self.truncate:
            truncates = placed.where(self.truncate).selectExpr(f"max({AT}) as {TRUNCATED}")
            placed = placed.crossJoin(F.broadcast(truncates))
            live.append(f"coalesce({AT} > {TRUNCATED}, true)")
        traced = super().traced(placed.withColumn(LIVE, F.expr(" and ".join(live))))
        return traced.withColumn(ROLE, F.expr(self._role_sql(visible(rows.columns))))

    def _role_sql(self, columns: Iterable[str]) -> str:
        end, over = "max" if self.newest else "min", f"over ({self._partition})"
        decides = f"{AT} = {end}(if({LIVE}, {AT}, null)) {over}"
        parts = [
            f"if({LIVE} and {part.at} = max(if({LIVE}, {part.at}, null)) {over}, '{part.by}', null)"
            for part in self._column_groups(columns)
        ]
        some = f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
        return f"""case when {self.truncate or "false"} then '{TRUNCATES}' when {GONE} then '{DELETES}'
            when not {LIVE} then '{DELETED}' when {decides} then '{DECIDES}'
            when {some} <> '' then concat('{DECIDES} ', {some}) else '{SUPERSEDED}' end"""

    def _column_groups(self, columns: Iterable[str]) -> list[ColumnGroup]:
        return []

    @property
    def _needs_newest_delete(self) -> bool:
        """True if rows beside the newest one count, so that the newest delete's place must be known."""
        return self.deletes_by_key and not self.newest

    def _with_places(self, rows: DataFrame) -> DataFrame:
        """Add the rows' places, those of column groups, and the place that deletes older rows."""
        at = place(*self.sequence)
        columns = visible(rows.columns)
        states = [f"{part.at} as `{part.state}`" for part in self._column_groups(columns)]
        states += [f"if({self.gone}, {at}, null) as {SINCE}"] if self._needs_newest_delete else []
        rows = with_stored_order(rows)
        placed = rows.where(self.kept).selectExpr(
            *[f"`{column}`" for column in columns],
            f"{at} as {AT}",
            *states,
            f"{GONE if GONE in rows.columns else self.gone} as {GONE}",
            f"false as {HELD}",
            SIGN,
        )
        if self.truncate is None:
            return placed
        newest = rows.where(self.truncate).selectExpr(f"max({at}) as {TRUNCATED}")
        return placed.crossJoin(F.broadcast(newest))

    def _winners(self, rows: DataFrame, *, again: str = "false") -> DataFrame:
        by, parts = self._partition, self._column_groups(visible(rows.columns))
        if self._needs_newest_delete:
            rows = rows.withColumn(SINCE, F.expr(f"max({SINCE}) over ({by})"))
        bounds = [bound for bound in (SINCE, TRUNCATED) if bound in rows.columns]
        live = " and ".join([f"not {GONE}", *(f"coalesce({AT} > {bound}, true)" for bound in bounds)])
        rows = rows.withColumn(LIVE, F.expr(live)).withColumn(AGAIN, F.expr(again))
        combined = {part.state: f"max(if({LIVE}, `{part.state}`, null)) over ({by})" for part in parts}
        for part in parts:
            newest = f"if({LIVE}, `{part.state}`, null)"
            combined |= {column: f"max_by(`{column}`, {newest}) over ({by})" for column in part.columns}
        order = f"{AT} desc" if self.newest else f"{LIVE} desc, {AT}"
        combined["_rank"] = f"row_number() over ({by} order by {order})"
        ranked = rows.withColumns({column: F.expr(sql) for column, sql in combined.items()})
        return ranked.where(f"_rank = 1 and ({LIVE} or {AGAIN})").drop("_rank", LIVE, GONE, HELD, SIGN, TRUNCATED)


def _partial(given: bool | str | Sequence[str]) -> tuple[str, ...] | Literal[True]:
    return True if given is True else names(given or ())


def _groups(given: Mapping[str, str | Sequence[str]]) -> Mapping[str, tuple[str, ...]]:
    return {by: names(columns) for by, columns in given.items()}


@frozen(kw_only=True)
class Latest(DumpedRows, FirstOrLatest):
    """One row per `key`: its newest row by `sequence`, ties by log order.

    sequence: columns of the function's result, most significant first; by default log order
    deletes: SQL over the function's rows, true of rows that delete their key, which has no row until a newer one comes
    truncate: SQL over the function's rows, true of broadcast events that delete every key
    former: {key column: SQL of its value before the change}; if it differs and is not null, the former key is deleted
    partial: columns that keep their newest value that is not null. True: all but key, sequence and groups
    groups: {sequence column: columns that follow it}. The newest row in which it is not null gives their values
    snapshots: rows are full dumps; a key missing from the newest has no row. `marker` and `partition` as in History

    Example:
        Latest("order_id", sequence="changed_at", deletes="op = 'd'", truncate="op = 't'")
        Latest("order_id", sequence="changed_at", former={"order_id": "old_id"}, partial=["note", "phone"])
        Latest(["shop", "order_id"], sequence="changed_at", groups={"priced_at": ["price", "currency"]})
        Latest("product", sequence="taken_on", snapshots=True, marker="kind = 'complete'", partition="region")
    """

    name: ClassVar[str] = "Latest"
    newest: ClassVar[bool] = True

    partial: tuple[str, ...] | Literal[True] = field(converter=_partial, default=False)
    groups: Mapping[str, tuple[str, ...]] = field(converter=_groups, default=MappingProxyType({}))

    def evaluate(self, rows: DataFrame) -> DataFrame:
        if self.snapshots:
            rows = self.differences(rows)
        return super().evaluate(rows)

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        return Kind.traced(self, only_events(rows), side) if self.snapshots else super().traced(rows, side)

    def requires(self, side: int = 0, /) -> dict[str, str]:
        grouped = {column: "group" for by, columns in self.groups.items() for column in (by, *columns)}
        partial = () if self.partial is True else self.partial
        return dict.fromkeys(partial, "partial") | grouped | super().requires(side)

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        if self.snapshots:
            return [()]
        return [*super().ordered_within(side), *(as_sql(*self.by, by) for by in self.groups)]

    @property
    def _needs_newest_delete(self) -> bool:
        return self.deletes_by_key and bool(self.partial or self.groups)

    def _column_groups(self, columns: Iterable[str]) -> list[ColumnGroup]:
        shown = list(columns)
        grouped = {column for by, of in self.groups.items() for column in (by, *of)}
        others = [c for c in shown if c not in {*self.by, *self.sequence, *grouped}]
        partial = others if self.partial is True else self.partial
        alone = [ColumnGroup(column, (column,), place(*self.sequence)) for column in partial if column in shown]
        return alone + [
            ColumnGroup(by, tuple(column for column in (by, *of) if column in shown), place(by))
            for by, of in self.groups.items()
        ]

    def __attrs_post_init__(self) -> None:
        if self.snapshots and (self.partial or self.groups):
            raise DeclarationError(
                "snapshots cannot have partial columns or groups", fix="leave them out: a dump has whole rows"
            )
        use_of = dict.fromkeys(self.sequence, "the sequence") | dict.fromkeys(self.by, "the key")
        claims = [] if self.partial is True else [("partial", self.partial)]
        claims += [(f"group {by!r}", (by, *columns)) for by, columns in self.groups.items()]
        for what, columns in claims:
            for column in columns:
                if column in use_of:
                    raise DeclarationError(
                        f"column {column!r} is in {what} and in {use_of[column]}", fix="name it in only one of them"
                    )
                use_of[column] = what
        self.check_options()


@frozen(kw_only=True)
class First(FirstOrLatest):
    """One row per `key`: its oldest row by `sequence`, ties by log order; after a delete, the oldest since.

    Without a sequence the first event in the log wins for good, as for claims. `deletes`: SQL over the function's rows,
    true of rows that delete their key; `truncate`: true of broadcast events that delete every key.

    Example:
        First("route")
        First(["origin", "dest"], sequence="departed_at", deletes="op = 'd'", truncate="op = 't'")
    """

    name: ClassVar[str] = "First"
    newest: ClassVar[bool] = False


@frozen
class ColumnGroup:
    """Columns that follow their own place: that of the newest row in which `by` is not null."""

    by: str
    columns: tuple[str, ...]
    full_place: str

    @property
    def state(self) -> str:
        return f"{AT}_{self.by}"

    @property
    def at(self) -> str:
        return f"if(`{self.by}` is null, null, {self.full_place})"
