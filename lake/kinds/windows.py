"""Event-time windows. Start inclusive, end exclusive, aligned in a named time zone and right across its clock changes.

A window is configuration; `columns` gives the SQL that finds a row's window. The session's time zone is UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lake.errors import DeclarationError

DAY: Final = timedelta(days=1)


class Window(Protocol):
    """Assigns each row to one window."""

    on: str
    """The timestamp column of the function's result that windows go by."""

    def columns(self) -> Mapping[str, str]:
        """SQL of the columns that name a row's window; the first alone tells windows apart."""


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """Calendar days, weeks (from Monday), months, quarters or years in `zone`; the window's first day as a DATE."""

    unit: Literal["day", "week", "month", "quarter", "year"]
    on: str
    zone: str = "UTC"
    name: str = ""

    def __post_init__(self) -> None:
        check_zone(self.zone)

    def columns(self) -> Mapping[str, str]:
        """See Window.columns."""
        local = f"from_utc_timestamp(`{self.on}`, '{self.zone}')"
        return {self.name or self.unit: f"cast(date_trunc('{self.unit}', {local}) as date)"}


@dataclass(frozen=True, kw_only=True)
class Tumbling:
    """Windows of a fixed `length`, moved by `offset`: columns `window_start` and `window_end` (timestamps, UTC).

    Windows shorter than a day count from midnight in `zone`, by elapsed time, and the last of a day ends at the next
    midnight: a day of 23 or 25 hours has 23 or 25 windows of an hour. Windows of whole days count from 1970-01-01 in
    `zone`, by the calendar.
    """

    length: timedelta
    on: str
    zone: str = "UTC"
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        check_zone(self.zone)
        if self.length <= timedelta(0) or (self.length > DAY and self.length % DAY):
            raise DeclarationError(
                f"a tumbling window of {self.length} has no fixed place in a day",
                fix="use a length of at most a day, or of whole days",
            )
        if self.length < DAY and DAY % self.length:
            raise DeclarationError(
                f"windows of {self.length} do not fill a day", fix="use a length that divides 24 hours"
            )

    def columns(self) -> Mapping[str, str]:
        """See Window.columns."""
        at = f"(`{self.on}` - {_interval(self.offset)})"
        start, end = self._days(at) if self.length >= DAY else self._parts(at)
        return {
            "window_start": f"{start} + {_interval(self.offset)}",
            "window_end": f"{end} + {_interval(self.offset)}",
        }

    def _days(self, at: str) -> tuple[str, str]:
        days = self.length // DAY
        number = f"unix_date({self._date(at)})"
        first = f"date_from_unix_date({number} - pmod({number}, {days}))"
        return self._midnight(first), self._midnight(f"date_add({first}, {days})")

    def _parts(self, at: str) -> tuple[str, str]:
        length = self.length // timedelta(microseconds=1)
        midnight, next_midnight = self._midnight(self._date(at)), self._midnight(f"date_add({self._date(at)}, 1)")
        since = f"(unix_micros({at}) - unix_micros({midnight}))"
        start = f"timestamp_micros(unix_micros({midnight}) + ({since} div {length}) * {length})"
        return start, f"least({start} + {_interval(self.length)}, {next_midnight})"

    def _date(self, at: str) -> str:
        return f"cast(from_utc_timestamp({at}, '{self.zone}') as date)"

    def _midnight(self, date: str) -> str:
        return f"to_utc_timestamp(cast({date} as timestamp), '{self.zone}')"


def check_zone(zone: str) -> None:
    """Raises DeclarationError unless `zone` is a name of the IANA time zone database."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise DeclarationError(f"unknown time zone {zone!r}", fix="use an IANA name such as Europe/London") from None


def _interval(length: timedelta) -> str:
    return f"make_dt_interval(0, 0, 0, {length // timedelta(seconds=1)}.{length.microseconds:06d})"
