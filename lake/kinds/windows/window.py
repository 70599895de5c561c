"""Event-time windows. Start inclusive, end exclusive, aligned in a named time zone and right across its clock changes.

A window is configuration: it names the columns it adds to a table and gives the SQL that finds a row's windows.
The session's time zone is UTC. Windows that overlap are in `hopping`, those that depend on other rows in `sessions`
and `sliding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lake.errors import DeclarationError
from lake.kinds.locality import Near

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY: Final = timedelta(days=1)
START, END = "window_start", "window_end"


class Window:
    """Assigns rows to windows.

    `prepare` finds a row's windows from the row alone; `gather` finds them from all rows of a group. `key` names the
    columns that `prepare` makes and that locality goes by, `identity` those that tell the windows of one group apart.
    """

    if TYPE_CHECKING:

        @property
        def on(self) -> str:
            """The timestamp column of the function's result that windows go by."""

        @property
        def names(self) -> tuple[str, ...]:
            """The window's columns in the table."""

        @property
        def key(self) -> tuple[str, ...]:
            """The columns that `prepare` makes and that locality goes by."""

    merges: ClassVar[bool] = False
    """Whether new rows can make one window of two."""

    absorbs: ClassVar[bool] = True
    """Whether a window's measures follow from what they were and the new rows."""

    closed: ClassVar[bool] = False
    """Whether a row at the very `end` is still in the window."""

    @property
    def revised(self) -> int:
        """Grows when the same window holds other rows than before."""
        return 0

    @property
    def identity(self) -> tuple[str, ...]:
        return self.key

    @property
    def requires(self) -> dict[str, str]:
        """Columns that the function must return, each with what it is for."""
        return {self.on: "window"}

    @property
    def sources(self) -> dict[str, str]:
        """{column of the table: column of the gathered rows that it comes from}, of those that rows are grouped by."""
        return {name: name for name in self.names}

    @property
    def meanings(self) -> dict[str, str]:
        """What the window's columns mean."""
        return {START: "when the window begins, UTC", END: "when it ends, not included, UTC"}

    @property
    def end(self) -> str:
        """SQL over a row of the table: the instant at which the window ends, as a timestamp."""
        return f"`{END}`"

    @property
    def near(self) -> Mapping[str, Near]:
        """Of columns of `key`, where a window's rows are from there."""
        return {}

    def prepare(self, rows: DataFrame) -> DataFrame:
        """`rows`, once for each window that a row is in whatever the other rows are."""
        return rows

    def gather(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        """`rows` of the groups `by`, each with the columns of `sources`."""
        return rows


@dataclass(frozen=True, kw_only=True)
class Calendar(Window):
    """Calendar days, weeks (from Monday), months, quarters or years in `zone`; the window's first day as a DATE."""

    unit: Literal["day", "week", "month", "quarter", "year"]
    on: str
    zone: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.unit not in _NEXT:
            raise DeclarationError(f"unknown calendar unit {self.unit!r}", fix=f"use one of {', '.join(_NEXT)}")
        check_zone(self.zone, days=f"a calendar {self.unit}")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name or self.unit,)

    @property
    def key(self) -> tuple[str, ...]:
        return self.names

    @property
    def meanings(self) -> dict[str, str]:
        what = "the day" if self.unit == "day" else f"the first day of the {self.unit}"
        return {self.names[0]: f"{what}, in {self.zone or UTC}"}

    @property
    def near(self) -> Mapping[str, Near]:
        return {self.names[0]: near(self.on, _DAYS[self.unit] * DAY, self.zone, DAY)}

    @property
    def end(self) -> str:
        return midnight(_NEXT[self.unit].format(f"`{self.names[0]}`"), self.zone or UTC)

    def prepare(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        local = f"from_utc_timestamp(`{self.on}`, '{self.zone}')"
        return rows.withColumn(self.names[0], F.expr(f"cast(date_trunc('{self.unit}', {local}) as date)"))


@dataclass(frozen=True, kw_only=True)
class Tumbling(Window):
    """Windows of a fixed `length`, moved by `offset`: columns `window_start` and `window_end` (timestamps, UTC).

    Windows shorter than a day count from midnight in `zone` (UTC, unless named), by elapsed time, and the last of a
    day ends at the next midnight: a day of 23 or 25 hours has 23 or 25 windows of an hour. Windows of whole days count
    from 1970-01-01, by the calendar of `zone`, which must be named.
    """

    length: timedelta
    on: str
    zone: str | None = None
    offset: timedelta = timedelta(0)

    names: ClassVar[tuple[str, ...]] = (START, END)
    key: ClassVar[tuple[str, ...]] = (START,)

    def __post_init__(self) -> None:
        check_length("a tumbling window", self.length)
        check_zone(self.zone, days=f"a window of {self.length}" if self.length >= DAY else "")

    def prepare(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.withColumns({name: F.expr(sql) for name, sql in self.columns(f"`{self.on}`").items()})

    @property
    def near(self) -> Mapping[str, Near]:
        return {START: near(self.on, self.length, self.zone)}

    @property
    def revised(self) -> int:
        return int(-1 in date_moves(self.zone))

    def columns(self, instant: str) -> Mapping[str, str]:
        """SQL of the window that contains the SQL timestamp `instant`."""
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
        start, end = self._parts(f"({instant} - {interval(self.offset)})")
        return {START: f"{start} + {interval(self.offset)}", END: f"{end} + {interval(self.offset)}"}

    def first_day(self, instant: str) -> str:
        """SQL of the first local date of the window of whole days that contains `instant`."""
        days = self.length // DAY
        number = f"unix_date({day_of(f'({instant} - {interval(self.offset)})', self.zone or UTC)})"
        return f"date_from_unix_date({number} - pmod({number}, {days}))"

    def day(self, date: str) -> str:
        """SQL of the instant at which windows that begin on the SQL local `date` begin."""
        return f"({midnight(date, self.zone or UTC)} + {interval(self.offset)})"

    def _parts(self, at: str) -> tuple[str, str]:
        zone = self.zone or UTC
        date = day_of(at, zone)
        today, tomorrow = midnight(date, zone), midnight(f"date_add({date}, 1)", zone)
        since = f"(unix_micros({at}) - unix_micros({today}))"
        length = micros(self.length)
        start = f"timestamp_micros(unix_micros({today}) + ({since} div {length}) * {length})"
        return start, f"least({start} + {interval(self.length)}, {tomorrow})"


UTC: Final = "UTC"
_NEXT: Final = {
    "day": "date_add({}, 1)",
    "week": "date_add({}, 7)",
    "month": "add_months({}, 1)",
    "quarter": "add_months({}, 3)",
    "year": "add_months({}, 12)",
}
_DAYS: Final = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
MOVED: Final = 2 * DAY
"""No zone's clock was ever put forward or back by more."""


def near(on: str, length: timedelta, zone: str | None, apart: timedelta = timedelta(0)) -> Near:
    """Where the rows of a window of `length` are from where it begins.

    In a zone days are longer or shorter, and a date begins up to a day `apart` from where it does in UTC.
    """
    moved = timedelta(0) if (zone or UTC) == UTC else MOVED + apart
    return Near(on, moved, length + moved - timedelta(microseconds=1))


def check_length(what: str, length: timedelta) -> None:
    """Raises DeclarationError unless windows of `length` have a fixed place in a day or in the calendar."""
    if length <= timedelta(0) or (length > DAY and length % DAY):
        raise DeclarationError(
            f"{what} of {length} has no fixed place in a day", fix="use a length of at most a day, or of whole days"
        )
    if length < DAY and DAY % length:
        raise DeclarationError(f"{what} of {length} does not fill a day", fix="use a length that divides 24 hours")


def check_zone(zone: str | None, *, days: str) -> None:
    """Raises DeclarationError unless `zone` is a name of the IANA time zone database.

    It may be None only where no day's boundary matters; `days` says what it matters to.
    """
    if zone is None:
        if days:
            raise DeclarationError(f"{days} needs a time zone", fix="name it: zone='Europe/London', or zone='UTC'")
        return
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise DeclarationError(f"unknown time zone {zone!r}", fix="use an IANA name such as Europe/London") from None


@cache
def date_moves(zone: str | None) -> frozenset[int]:
    """By how many days clock changes in `zone`, from 1970 to 2025, moved the date, but those of none or of midnight.

    2 where a day was skipped, -1 where the day before was shown once more.
    """
    place, start = ZoneInfo(zone or UTC), datetime.fromisoformat("1970-01-01T00:00:00Z")
    moves = set()
    for before in (start + 28 * n * DAY for n in range(56 * 13)):
        old, new = before, before + 28 * DAY
        offset = old.astimezone(place).utcoffset()
        if new.astimezone(place).utcoffset() == offset:
            continue
        while new - old > timedelta(seconds=1):
            middle = old + timedelta(seconds=(new - old) // timedelta(seconds=2))
            old, new = (middle, new) if middle.astimezone(place).utcoffset() == offset else (old, middle)
        moves.add((new.astimezone(place).date() - old.astimezone(place).date()).days)
    return frozenset(moves - {0, 1})


def local_date(instant: str, zone: str) -> str:
    """SQL of the date in `zone` at an instant."""
    return f"cast(from_utc_timestamp({instant}, '{zone}') as date)"


def day_of(instant: str, zone: str) -> str:
    """SQL of the local date whose midnight was the last before an instant, or is at it.

    It is the date there and then, but where a clock went back just after midnight and shows the day before again.
    """
    date = local_date(instant, zone)
    tomorrow = f"date_add({date}, 1)"
    return f"if({instant} >= {midnight(tomorrow, zone)}, {tomorrow}, {date})"


def midnight(date: str, zone: str) -> str:
    """SQL of the instant at which a local date begins in `zone`."""
    return f"to_utc_timestamp(cast({date} as timestamp), '{zone}')"


def micros(length: timedelta) -> str:
    """`length` in microseconds, as a SQL bigint."""
    return f"{length // timedelta(microseconds=1)}L"


def interval(length: timedelta) -> str:
    """`length` as a SQL interval."""
    seconds = Decimal(length // timedelta(microseconds=1)).scaleb(-6)
    return f"make_dt_interval(0, 0, 0, {seconds:f})"
