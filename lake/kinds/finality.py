"""Finality: whether an event that is not late can still change a row of a table.

An event is late if its time is before its log's *horizon*, the watermark at the cut, less the lateness. A row's state
holds for each input the last event time that can change it; once only late events are before that, the row is final.
The horizon is an input of the evaluation, so any slicing of the logs gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from attrs import field, frozen

from lake.errors import DeclarationError
from lake.kinds.kind import ALL_FINAL, Kind
from lake.lazy import Column, DataFrame, F
from lake.text import EPOCH, MICROSECOND

FINAL: Final = "is_final"
TIMES: Final = ("date", "timestamp", "timestamp_ntz")
OPEN: Final = (1 << 63) - 1  # an event of any time could change the row


def until(side: int) -> str:
    """Name the state column with the last time (microseconds, or null) at which input `side` can change a row."""
    return f"_until_{side}_us"


def is_past(column: str, horizon: datetime | None, lateness: timedelta) -> str:
    """Return SQL, for Spark and DuckDB, true if `horizon` is more than `lateness` past the microseconds in `column`.

    None, the horizon of a log without events, is past nothing.
    """
    if horizon is None or horizon == ALL_FINAL:
        return str(horizon == ALL_FINAL).lower()
    instant = horizon if horizon.tzinfo else horizon.replace(tzinfo=UTC)
    late_before = (instant - lateness - EPOCH) // MICROSECOND
    return f"{column} < {late_before}"


def check_lateness(_: Kind, __: Any, lateness: timedelta) -> None:
    if lateness < timedelta(0):
        raise DeclarationError(f"invalid lateness {lateness}", fix="use zero or more")


@frozen(kw_only=True)
class WithFinality(Kind):
    """Kind with the options `is_final` and `lateness`, whose rows have the state column `until` of some inputs.

    lateness: the distance behind the horizon at which an event is late
    is_final: the table has the column FINAL
    """

    lateness: timedelta = field(default=timedelta(0), validator=check_lateness)
    is_final: bool = False

    @property
    def open_sides(self) -> Sequence[int]:
        """The inputs whose events can change an existing row."""
        return [0]

    @property
    def needs_time(self) -> bool:
        return self.is_final

    @property
    def meanings(self) -> Mapping[str, str]:
        return {FINAL: "whether only late events can change the row any more"} if self.is_final else {}

    def at_horizon(self, rows: DataFrame, /, *horizons: datetime | None) -> DataFrame:
        return rows.withColumn(FINAL, F.expr(self._is_final_sql(horizons))) if self.is_final else rows

    def changed_by_horizon(self, *horizons: datetime | None) -> str | None:
        return f"{FINAL} <> ({self._is_final_sql(horizons)})" if self.is_final else None

    def _is_final_sql(self, horizons: Sequence[datetime | None]) -> str:
        tests = [(until(side), horizons[side]) for side in self.open_sides]
        return " and ".join(
            f"({column} is null or {is_past(column, horizon, self.lateness)})" for column, horizon in tests
        )

    def _final_columns(self, columns: Iterable[str], state: Mapping[int, str]) -> list[Column]:
        """Return FINAL and the columns of `state`, {input number: SQL}, to be added to `columns`."""
        if FINAL in columns:
            raise DeclarationError(f"{FINAL!r} is already a column", fix="rename it, or leave out is_final")
        untils = [F.expr(f"cast({sql} as bigint)").alias(until(side)) for side, sql in state.items()]
        return [F.lit(False).alias(FINAL), *untils]


def instant(rows: DataFrame, column: str, *, of: str = "") -> str:
    """Return SQL of a time as microseconds since 1970; `of` is the alias of `rows`, with its dot."""
    type_ = dict(rows.dtypes)[column]
    if type_ not in TIMES:
        raise DeclarationError(f"is_final needs a time, but {column!r} is of type {type_}", fix="use an event's time")
    return f"unix_micros(cast({of}`{column}` as timestamp))"
