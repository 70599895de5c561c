"""Grammar of dates and times: ISO 8601 with or without a zone, and counts since 1970."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from lake.contracts.literals import DAY, FARTHEST
from lake.records.memo import Memo

EPOCH: Final = datetime(1970, 1, 1)
_OFFSET: Final = r"[+-][0-9]{2}(?:[0-9]{2}|:[0-9]{2}(?::[0-9]{2})?)?"
_NAMED: Final = r"(?:UTC|GMT)(?:[+-](?:[0-9]{4}|[0-9]{1,2}(?::[0-9]{2}(?::[0-9]{2})?)?))?"
_REGION: Final = r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)+"
_MOMENT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    rf"(?: ?(Z|{_OFFSET}|{_NAMED}|{_REGION}))?)?"
)
_PARTS_OF_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::([0-9]{2}))?)?")
FIRST_DAY, LAST_DAY = (date.min - EPOCH.date()).days, (date.max - EPOCH.date()).days
"""In days since 1970."""
NANOS: Final[Mapping[str, int]] = {
    "days": 86_400 * 10**9,
    "seconds": 10**9,
    "millis": 10**6,
    "micros": 1_000,
    "nanos": 1,
}
UNITS: Final = {1: "seconds", 1_000: "millis", 1_000_000: "micros"}


def day(text: str) -> date | None:
    if not DAY.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def local_time(text: str, *, hour24: bool = False) -> datetime | None:
    """Return None also if it has a zone. If `hour24`, 24:00 ends a day."""
    parts = _MOMENT.fullmatch(text)
    if parts is None or parts[8]:
        return None
    return _local(parts, hour24)


def instant(text: str, *, hour24: bool = False) -> datetime | None:
    """Return an instant in UTC, which it is without a zone."""
    parts = _MOMENT.fullmatch(text)
    local = _local(parts, hour24) if parts else None
    if parts is None or local is None:
        return None
    try:
        offset = _offset(parts[8], local) if parts[8] else timedelta()
        return None if offset is None else (local - offset).replace(tzinfo=UTC)
    except OverflowError:
        return None


def region(text: str) -> str:
    """Return the region that ends a time; "" if there is none."""
    parts = _MOMENT.fullmatch(text)
    return parts[8] if parts and "/" in (parts[8] or "") else ""


def from_count(count: Decimal | int, unit: str) -> datetime | None:
    """Return the time `count` units after 1970, truncated to microseconds; None outside the years 1 to 9999."""
    exact = count if isinstance(count, int) else Fraction(count)
    try:
        return EPOCH + timedelta(microseconds=exact * NANOS[unit] // 1_000)
    except OverflowError:
        return None


def day_from_count(count: int) -> date | str:
    """Return a text outside the calendar, which no field accepts."""
    moment = from_count(count, "days")
    return f"{count} days since 1970" if moment is None else moment.date()


def time_from_count(count: int, unit: str, zone: tzinfo | None) -> datetime | str:
    """Return a text outside the calendar, as `day_from_count`."""
    moment = from_count(count, unit)
    return f"{count} {unit} since 1970" if moment is None else moment.replace(tzinfo=zone)


def time_of_day_from_count(count: int, unit: str) -> time | str:
    """Return a text beyond a day. Nanoseconds are truncated to microseconds."""
    is_in_day = 0 <= count * NANOS[unit] < NANOS["days"]
    moment = from_count(count, unit) if is_in_day else None
    return f"{count} {unit} since midnight" if moment is None else moment.time()


def regions() -> frozenset[str]:
    return _regions("IANA")


def _local(parts: re.Match[str], hour24: bool) -> datetime | None:
    year, month, day_of_month, hour, minute, second, fraction, _ = parts.groups(default="0")
    return compose_time(
        (int(year), int(month), int(day_of_month)), (int(hour), int(minute), int(second)), fraction, hour24
    )


def compose_time(
    ymd: tuple[int, int, int], hms: tuple[int, int, int], fraction: str = "", hour24: bool = False
) -> datetime | None:
    hour, minute, second = hms
    next_day = hour24 and hour == 24 and not (minute or second or fraction.strip("0"))
    try:
        local = datetime(*ymd, 0 if next_day else hour, minute, second, int(f"{fraction}000000"[:6]))
        return local + timedelta(days=1) if next_day else local
    except (ValueError, OverflowError):
        return None


def _offset(zone: str, local: datetime) -> timedelta | None:
    """A skipped time has the offset before the gap; a repeated one the first offset. None for an unknown zone."""
    if zone in {"Z", "UTC", "GMT"}:
        return timedelta()
    if "/" in zone:
        return ZoneInfo(zone).utcoffset(local) if zone in regions() else None
    parts = _PARTS_OF_OFFSET.fullmatch(zone)
    if parts is None:
        return None
    return offset_of(parts[1], *(int(part or 0) for part in parts.groups()[1:]))


def offset_of(sign: str, hours: int, minutes: int, seconds: int = 0) -> timedelta | None:
    """Return None beyond 18 hours."""
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > FARTHEST:
        return None
    return -offset if sign == "-" else offset


@Memo  # unlike functools.cache, can be sent to Spark's executors
def _regions(_: str) -> frozenset[str]:
    return frozenset(available_timezones())
