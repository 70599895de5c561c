"""Event-time windows: start inclusive, end exclusive, aligned in a named time zone and correct across clock changes.

A window names the columns that it adds to a table and gives the SQL that finds a row's windows. A timestamp is an
instant. A date and a timestamp_ntz have no zone and no clock changes, nor have bounds of windows over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from attrs import astuple, evolve, field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import TIME, WATERMARK
from lake.kinds.kind import TimeBounds
from lake.kinds.windows.zones import DAY, UTC, check_zone, date_moves, day_of, interval, micros, midnight, window_bounds
from lake.lazy import DataFrame, F

INSTANT: Final = "timestamp"
START, END = "window_start", "window_end"


@frozen(kw_only=True)
class Window:
    """Assignment of rows to windows by the time column `on` of the function's result.

    `prepare` finds a row's windows from the row alone; `gather` finds them from all rows of a group. `identity` names
    the columns that identify a window of a group.
    """

    on: str

    if TYPE_CHECKING:

        @property
        def names(self) -> tuple[str, ...]:
            """The window's columns in the table."""

        @property
        def key(self) -> tuple[str, ...]:
            """The columns of locality, which `prepare` makes."""

    merges: ClassVar[bool] = False
    """True if new rows can merge two windows."""

    absorbs: ClassVar[bool] = True
    """True if a window's measures follow from their old values and the new rows."""

    closed: ClassVar[bool] = False
    """True if a row at the very `end` is still in the window."""

    @property
    def revised(self) -> int:
        """Number that grows if the same window holds other rows than before."""
        return 0

    @property
    def identity(self) -> tuple[str, ...]:
        return self.key

    @property
    def requires(self) -> dict[str, str]:
        return {self.on: "window"}

    @property
    def sources(self) -> dict[str, str]:
        """{column of the table: its column in the gathered rows}, for the columns that group rows."""
        return {name: name for name in self.names}

    @property
    def meanings(self) -> dict[str, str]:
        return {START: "when the window begins, UTC", END: "when it ends, not included, UTC"}

    @property
    def end(self) -> str:
        """SQL over a row of the table: the end of the window, a time of any type."""
        return f"`{END}`"

    @property
    def time_bounds(self) -> Mapping[str, TimeBounds]:
        """{column of `key`: bounds of the times of a window's rows}."""
        return {}

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Return `rows` once for each window that a row is in, whatever the other rows are.

        Raises DeclarationError if the window cannot be over the type of the time column.
        """
        return rows

    def gather(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        """Return `rows` of the groups `by`, each with the columns of `sources`."""
        return rows


@frozen(kw_only=True)
class AlignedWindow(Window):
    """Window with a fixed place in the calendar: of `zone` for instants, of the rows for other times.

    zone: the IANA name; None or UTC over dates and wall-clock times
    """

    zone: str | None = field(default=None, validator=check_zone)

    if TYPE_CHECKING:

        @property
        def length(self) -> timedelta:
            """The time from start to end."""

    bounds: ClassVar[tuple[str, ...]] = (START, END)
    """Columns with the type of the time column."""

    @property
    def names(self) -> tuple[str, ...]:
        return START, END

    @property
    def time_bounds(self) -> Mapping[str, TimeBounds]:
        return {START: window_bounds(self.on, self.length, self.zone)}

    @property
    def in_days(self) -> str:
        """Name of the window if it follows the calendar, else empty."""
        return f"a window of {self.length}" if self.length >= DAY else ""

    def prepare(self, rows: DataFrame) -> DataFrame:
        type_ = dict(rows.dtypes)[self.on]
        self.check(type_)
        if type_ == INSTANT:
            return self.assign(rows)
        on, own = f"`{self.on}`", f"_own_{self.on}"
        in_utc = rows.withColumns({own: F.col(on), self.on: F.col(on).cast(INSTANT)})
        assigned = evolve(self, zone=UTC).assign(in_utc)
        restored = {} if self.on in self.names else {self.on: F.col(f"`{own}`")}
        bounds = {name: F.col(name).cast(type_) for name in self.bounds}
        return assigned.withColumns(restored | bounds).drop(own)

    def assign(self, rows: DataFrame) -> DataFrame:
        raise NotImplementedError

    def check(self, type_: str) -> None:
        if type_ == INSTANT:
            if self.zone is None and self.in_days:
                what = f"{self.in_days} over {self.on!r}, a timestamp, needs a time zone"
                raise DeclarationError(what, fix="name it: zone='Europe/London', or zone='UTC'")
            return
        if (self.zone or UTC) != UTC:
            what = f"its window is in zone {self.zone!r}, but {self.on!r} is a {type_}, which has no zone"
            raise DeclarationError(what, fix="leave out zone, or return the instant, a timestamp")
        parts = [length for length in astuple(self) if isinstance(length, timedelta) and length % DAY]
        if type_ == "date" and parts:
            what = f"its window goes by {parts[0]}, but {self.on!r} is a date, which has whole days"
            raise DeclarationError(what, fix="use whole days, or return a timestamp")


@frozen(kw_only=True)
class Calendar(AlignedWindow):
    """Calendar days, weeks (from Monday), months, quarters or years in `zone`; the window's first day as a DATE.

    Over dates and timestamp_ntz `zone` is left out.
    """

    unit: Literal["day", "week", "month", "quarter", "year"]
    name: str = ""

    bounds: ClassVar[tuple[str, ...]] = ()

    def __attrs_post_init__(self) -> None:
        if self.unit not in _NEXT:
            raise DeclarationError(f"unknown calendar unit {self.unit!r}", fix=f"use one of {', '.join(_NEXT)}")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name or self.unit,)

    @property
    def key(self) -> tuple[str, ...]:
        return self.names

    @property
    def meanings(self) -> dict[str, str]:
        what = "the day" if self.unit == "day" else f"the first day of the {self.unit}"
        return {self.names[0]: f"{what}, in {self.zone}" if self.zone else what}

    @property
    def in_days(self) -> str:
        return f"a calendar {self.unit}"

    @property
    def time_bounds(self) -> Mapping[str, TimeBounds]:
        return {self.names[0]: window_bounds(self.on, _DAYS[self.unit] * DAY, self.zone, DAY)}

    @property
    def end(self) -> str:
        return midnight(_NEXT[self.unit].format(f"`{self.names[0]}`"), self.zone or UTC)

    def assign(self, rows: DataFrame) -> DataFrame:
        local = f"from_utc_timestamp(`{self.on}`, '{self.zone}')"
        return rows.withColumn(self.names[0], F.expr(f"cast(date_trunc('{self.unit}', {local}) as date)"))


@frozen(kw_only=True)
class Tumbling(AlignedWindow):
    """Windows of a fixed `length`, moved by `offset`: columns `window_start` and `window_end` (timestamps, UTC).

    Windows shorter than a day count from midnight in `zone` (default UTC) by elapsed time; the last one ends at the
    next midnight. Windows of whole days count from 1970-01-01 by the calendar of `zone`, which must be named. Over
    dates and wall-clock times `zone` is left out and the columns have their type.
    """

    length: timedelta
    offset: timedelta = timedelta(0)

    key: ClassVar[tuple[str, ...]] = (START,)

    def __attrs_post_init__(self) -> None:
        check_length("a tumbling window", self.length)

    def assign(self, rows: DataFrame) -> DataFrame:
        return rows.withColumns({name: F.expr(sql) for name, sql in self.columns(f"`{self.on}`").items()})

    @property
    def revised(self) -> int:
        return int(-1 in date_moves(self.zone))

    def columns(self, instant: str) -> Mapping[str, str]:
        if (self.zone or UTC) == UTC:
            since = f"pmod(unix_micros({instant}) - {micros(self.offset)}, {micros(self.length)})"
            start = f"(unix_micros({instant}) - {since})"
            return {
                START: f"timestamp_micros({start})",
                END: f"timestamp_micros({start} + {micros(self.length)})",
            }
        if self.length >= DAY:
            first = self.first_day(instant)
            return {START: self.day(first), END: self.day(f"date_add({first}, {self.length // DAY})")}
        start, end = self._bounds_within_day(f"({instant} - {interval(self.offset)})")
        return {START: f"{start} + {interval(self.offset)}", END: f"{end} + {interval(self.offset)}"}

    def first_day(self, instant: str) -> str:
        """Return SQL of the first local date of the window of whole days that contains `instant`."""
        days = self.length // DAY
        number = f"unix_date({day_of(f'({instant} - {interval(self.offset)})', self.zone or UTC)})"
        return f"date_from_unix_date({number} - pmod({number}, {days}))"

    def day(self, date: str) -> str:
        """Return SQL of the instant at which windows of the local `date` begin."""
        return f"({midnight(date, self.zone or UTC)} + {interval(self.offset)})"

    def _bounds_within_day(self, at: str) -> tuple[str, str]:
        zone = self.zone or UTC
        date = day_of(at, zone)
        today, tomorrow = midnight(date, zone), midnight(f"date_add({date}, 1)", zone)
        since = f"(unix_micros({at}) - unix_micros({today}))"
        length = micros(self.length)
        start = f"timestamp_micros(unix_micros({today}) + ({since} div {length}) * {length})"
        return start, f"least({start} + {interval(self.length)}, {tomorrow})"


_NEXT: Final = {
    "day": "date_add({}, 1)",
    "week": "date_add({}, 7)",
    "month": "add_months({}, 1)",
    "quarter": "add_months({}, 3)",
    "year": "add_months({}, 12)",
}
_DAYS: Final = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}


def check_length(what: str, length: timedelta) -> None:
    """Raise DeclarationError unless windows of `length` have a fixed place in a day or in the calendar."""
    if length <= timedelta(0) or (length > DAY and length % DAY):
        raise DeclarationError(
            f"{what} of {length} has no fixed place in a day", fix="use a length of at most a day, or of whole days"
        )
    if length < DAY and DAY % length:
        raise DeclarationError(f"{what} of {length} does not fill a day", fix="use a length that divides 24 hours")


def late(frame: DataFrame, *, by: timedelta = timedelta(0)) -> DataFrame:
    """Return the rows of a log whose event time is more than `by` behind the watermark of earlier batches or horizon.

    For a table of late events: `late(flights, by=timedelta(hours=1)).selectExpr("_id as event_id", …)`.
    """
    return frame.where(is_late(by))


def is_late(by: timedelta) -> str:
    """Return SQL, true of a row more than `by` behind the watermark; false in the first batch."""
    return f"coalesce({TIME} < {WATERMARK} - {interval(by)}, false)"
