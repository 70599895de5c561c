"""Windows by the standard library: the windows that contain a time, and the end of each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from lake import Calendar, Cumulative, Hopping, Tumbling
from lake.kinds.windows.window import AlignedWindow

DAY = timedelta(days=1)
EPOCH = date(1970, 1, 1)
Bound = date | datetime


class Clock:
    """Calendar of days: of a zone over instants, or the plain one of dates and wall-clock times."""

    def __init__(self, zone: str | None) -> None:
        self.place = ZoneInfo(zone) if zone else None

    def midnight(self, day: date) -> datetime:
        """Return the start of a day."""
        begin = datetime.combine(day, time(), self.place)
        return begin.astimezone(UTC) if self.place else begin

    def day(self, at: datetime) -> date:
        return at.astimezone(self.place).date() if self.place else at.date()


def windows(window: AlignedWindow, value: Bound) -> set[tuple[Bound, ...]]:
    """Return the windows that contain `value`: (first day,) of a Calendar, else (start, end) in the type of `value`."""
    is_date = not isinstance(value, datetime)
    at = value if isinstance(value, datetime) else datetime.combine(value, time())
    clock = Clock((window.zone or "UTC") if at.tzinfo else None)
    if isinstance(window, Calendar):
        return {(first_day(window.unit, clock.day(at)),)}
    assert isinstance(window, Tumbling | Hopping | Cumulative)
    found = {(start, end) for start, end in candidates(window, clock, at) if start <= at < end}
    return {(start.date(), end.date()) if is_date else (start, end) for start, end in found}


def first_day(unit: str, day: date) -> date:
    """Return the first day of the calendar unit that contains `day`."""
    match unit:
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    return day.replace(month=1, day=1)


def last_instant(window: AlignedWindow, bounds: tuple[Bound, ...]) -> datetime:
    """Return the end of a window; dates and wall-clock times are read as UTC, unless a Calendar has a zone."""
    if isinstance(window, Calendar):
        days = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[window.unit]
        [first] = bounds
        return Clock(window.zone or "UTC").midnight(first_day(window.unit, first + timedelta(days=days)))
    end = bounds[1]
    at = end if isinstance(end, datetime) else datetime.combine(end, time())
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def candidates(
    window: Tumbling | Hopping | Cumulative, clock: Clock, at: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Return all windows around `at`: start and end."""
    length = window.length
    step = window.every if isinstance(window, Hopping) else length
    near = clock.day(at - window.offset)
    reach = length // DAY + 2
    for day in (near + timedelta(days=n) for n in range(-reach, 3)):
        for start, first in starts(clock, day, step):
            whole_days = step >= DAY
            end = clock.midnight(first + length) if whole_days else start + length
            if isinstance(window, Tumbling | Cumulative) and not whole_days:
                end = min(end, clock.midnight(day + DAY))
            for last in ends(window, clock, start, end, first):
                yield start + window.offset, last + window.offset


def starts(clock: Clock, day: date, step: timedelta) -> Iterator[tuple[datetime, date]]:
    """Yield the starts of windows on a day, each with the day."""
    midnight = clock.midnight(day)
    if step >= DAY:
        if (day - EPOCH).days % step.days == 0:
            yield midnight, day
        return
    at = midnight
    while at < clock.midnight(day + DAY):
        yield at, day
        at += step


def ends(
    window: Tumbling | Hopping | Cumulative, clock: Clock, start: datetime, end: datetime, first: date
) -> Iterator[datetime]:
    """Yield the end of a window, or those of the growing parts of a cumulative one."""
    if not isinstance(window, Cumulative):
        yield end
    elif window.step >= DAY:
        yield from (clock.midnight(first + n * window.step) for n in range(1, window.length // window.step + 1))
    else:
        at = start
        while at < end:
            at = min(at + window.step, end)
            yield at
