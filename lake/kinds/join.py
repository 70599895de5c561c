"""Join: pairs of rows of two inputs that share a key, optionally within a time of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal, get_args

from attrs import field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import as_sql, names, newest, partition_by, visible
from lake.kinds.finality import OPEN, WithFinality, instant
from lake.kinds.kind import ROLE, newest_of
from lake.kinds.windows.zones import interval, micros
from lake.lazy import DataFrame, F

How = Literal["inner", "left", "right", "full"]


def _before_and_after(within: timedelta | tuple[timedelta, timedelta] | None) -> tuple[timedelta, timedelta] | None:
    return (within, within) if isinstance(within, timedelta) else within


@frozen(kw_only=True)
class Join(WithFinality):
    """One row per pair of a left and a right row of equal `key`, and per row without a partner as `how` says.

    The function returns the frames of the left and the right input, both with the columns of `key`. A null key has no
    partner; only in a full join without ids it is a key like any other. If unmatched rows of both sides share key and
    null ids, the left one counts.

    left, right: `left` and `right` identify a side's rows of one key, the last in log order counts; by default a key
        has one row
    within: greatest distance of the right row's time from the left row's: one timedelta, or (before, after)
    times: the columns with these times, of the left side and of the right
    is_final: adds a column, false for a row without a partner if one not later than `lateness` can still come; without
        `within` one always can. `times` must be the event times of two logs, and an id belong to one event

    Example:
        Join("order_id", left="line", right="payment_id", how="full")
        Join("order_id", right="payment_id", how="left", within=timedelta(hours=1), times=("ordered_at", "paid_at"))
        Join("order_id", within=timedelta(1), times=("at", "paid_at"), lateness=timedelta(hours=2), is_final=True)
    """

    name: ClassVar[str] = "Join"
    version: ClassVar[int] = 2
    inputs: ClassVar[tuple[int, int]] = (2, 2)
    absorbs: ClassVar[bool] = False

    key: tuple[str, ...] = field(converter=names, kw_only=False)
    left: tuple[str, ...] = field(converter=names, default=())
    right: tuple[str, ...] = field(converter=names, default=())
    how: How = "inner"
    within: tuple[timedelta, timedelta] | None = field(converter=_before_and_after, default=None)
    times: tuple[str, str] | None = None

    def __attrs_post_init__(self) -> None:
        if not self.key:
            raise DeclarationError("Join needs a key", fix="name the columns that both sides share, or use a View")
        if self.how not in get_args(How):
            raise DeclarationError(f"unknown how={self.how!r}", fix=f"use one of {', '.join(get_args(How))}")
        if (self.within is None) != (self.times is None):
            raise DeclarationError(
                "a join within a time needs `within` and `times`",
                fix='within=timedelta(hours=1), times=("ordered_at", "paid_at")',
            )
        if self.within is not None and sum(self.within, timedelta(0)) < timedelta(0):
            raise DeclarationError(f"invalid within: {self.within}", fix="use (before, after), both zero or more")
        if self.within is not None and self._has_no_ids:
            raise DeclarationError(
                "in a full join within a time, two rows of a key may both lack a partner and would look alike",
                fix="name what identifies a row of either side: left='order_id', or right='payment_id'",
            )

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.left, *self.right)

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return [as_sql(*self.key, *(self.left, self.right)[side])]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        time = {self.times[side]: "time"} if self.times else {}
        return time | dict.fromkeys((self.left, self.right)[side], "identity") | dict.fromkeys(self.key, "key")

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        return (self.times[side],) if self.times else ()

    def evaluate(self, left: DataFrame, right: DataFrame) -> DataFrame:
        sides = (newest(left, (*self.key, *self.left)), newest(right, (*self.key, *self.right)))
        left_columns, right_columns = (visible(rows.columns) for rows in sides)
        twice = sorted((set(left_columns) & set(right_columns)) - set(self.key))
        if twice:
            raise DeclarationError(f"{twice[0]!r} is a column of both sides", fix=f"rename one: {twice[0]} as …")
        one = sides[0].select(*left_columns, F.lit(True).alias("_there")).alias("l")
        other = sides[1].select(*right_columns, F.lit(True).alias("_there")).alias("r")
        pairs = one.join(other, F.expr(self._condition()), {"full": "full_outer"}.get(self.how, self.how))
        key = [F.coalesce(f"l.`{k}`", f"r.`{k}`").alias(k) for k in self.key]
        shown = [*key, *[F.col(c) for c in (*left_columns, *right_columns) if c not in self.key]]
        if self.is_final:
            state = {side: self._until(rows, side) for side, rows in enumerate(reversed(sides))}
            shown += self._final_columns((*left_columns, *right_columns), state)
        if self.how != "full" or self._has_no_ids:
            return pairs.select(*shown)
        rows = pairs.select(*shown, F.col("l._there"))
        first = F.expr(f"row_number() over ({partition_by(self.identity)} order by _there desc)")
        return rows.withColumn("_nth", first).where("_nth = 1").drop("_nth", "_there")

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        role = newest_of((*self.key, *(self.left, self.right)[side]))
        return super().traced(rows).withColumn(ROLE, F.expr(role))

    def lookup_values(self, row: Mapping[str, Any], side: int, /) -> dict[str, Any] | None:
        if self.times is not None and row.get(self.times[side], "unknown") is None:
            return None
        return {column: row[column] for column in (*self.key, *(self.left, self.right)[side]) if column in row}

    @property
    def open_sides(self) -> Sequence[int]:
        return [0, 1]

    def _until(self, alone: DataFrame, side: int) -> str:
        """Return SQL of the last time of a row of input number `side` that could match one `alone`."""
        ours, there = "rl"[side], f"{'lr'[side]}._there"
        key = "true" if self._has_no_ids else " and ".join(f"{ours}.`{column}` is not null" for column in self.key)
        last = f"{OPEN}L"
        if self.within is not None and self.times is not None:
            last = f"{instant(alone, self.times[1 - side], of=f'{ours}.')} + {micros(self.within[side])}"
        return f"if({there} is null and {key}, {last}, null)"

    @property
    def _has_no_ids(self) -> bool:
        """True for a full join whose rows only the key identifies."""
        return self.how == "full" and not self.left and not self.right

    def _condition(self) -> str:
        tests = [f"l.`{k}` {'<=>' if self._has_no_ids else '='} r.`{k}`" for k in self.key]
        if self.within is not None and self.times is not None:
            before, after = map(interval, self.within)
            earlier, later = f"l.`{self.times[0]}`", f"r.`{self.times[1]}`"
            tests += [f"{later} >= {earlier} - {before}", f"{later} <= {earlier} + {after}"]
        return " and ".join(tests)
