"""Time zones in SQL: starts of local days, and the effect of clock changes. The session's zone is UTC."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lake.errors import DeclarationError
from lake.kinds.kind import TimeBounds
from lake.text import MICROSECOND

DAY: Final = timedelta(days=1)
UTC: Final = "UTC"
MOVED: Final = 2 * DAY
"""Greatest clock change of any zone."""


def check_zone(_: object, __: object, zone: str | None) -> None:
    try:
        ZoneInfo(UTC if zone is None else zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise DeclarationError(f"unknown time zone {zone!r}", fix="use an IANA name such as Europe/London") from None


@cache
def date_moves(zone: str | None) -> frozenset[int]:
    """Return the days by which clock changes of `zone`, 1970 to 2025, moved the date, without 0, and 1 (at midnight).

    2 if a day was skipped, -1 if the day before was repeated.
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
    return f"cast(from_utc_timestamp({instant}, '{zone}') as date)"


def day_of(instant: str, zone: str) -> str:
    """Return SQL of the local date whose midnight was the last one up to an instant.

    It differs from the local date if a clock went back just after midnight and shows the day before again.
    """
    date = local_date(instant, zone)
    tomorrow = f"date_add({date}, 1)"
    return f"if({instant} >= {midnight(tomorrow, zone)}, {tomorrow}, {date})"


def midnight(date: str, zone: str) -> str:
    return f"to_utc_timestamp(cast({date} as timestamp), '{zone}')"


def micros(length: timedelta) -> str:
    return f"{length // MICROSECOND}L"


def interval(length: timedelta) -> str:
    seconds = Decimal(length // MICROSECOND).scaleb(-6)
    return f"make_dt_interval(0, 0, 0, {seconds:f})"


def window_bounds(on: str, length: timedelta, zone: str | None, apart: timedelta = timedelta(0)) -> TimeBounds:
    """Return bounds of the times of a window's rows, relative to its start.

    Days in a zone may be longer or shorter, and a date may begin up to a day `apart` from its beginning in UTC.
    """
    moved = timedelta(0) if (zone or UTC) == UTC else MOVED + apart
    return TimeBounds(on, moved, length + moved - MICROSECOND)
