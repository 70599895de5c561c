"""Hopping and cumulative windows: a row is in every window that contains it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import ClassVar
from zoneinfo import ZoneInfo

from attrs import frozen

from lake.errors import DeclarationError
from lake.kinds.windows.window import END, START, AlignedWindow, Tumbling, check_length
from lake.kinds.windows.zones import DAY, date_moves, local_date, micros, midnight
from lake.lazy import DataFrame, F

# Column that identifies a row's windows: an instant in microseconds, or a local date.
ELEMENT = "_window"
# Bounds of the whole window of a cumulative one.
FROM, TO = "_whole_start", "_whole_end"


@frozen(kw_only=True)
class Hopping(AlignedWindow):
    """Windows of `length` that start with those of Tumbling(length=every): `window_start` and `window_end`.

    `length` is a multiple of `every`, in elapsed time; if `every` is whole days, both follow the calendar.
    """

    length: timedelta
    every: timedelta
    offset: timedelta = timedelta(0)

    key: ClassVar[tuple[str, ...]] = (START,)

    def __attrs_post_init__(self) -> None:
        check_length("a hop", self.every)
        _check_multiple("a hopping window", self.length, self.every)

    def assign(self, rows: DataFrame) -> DataFrame:
        if self.every >= DAY and self.zone != "UTC":
            start = self._starts.day(ELEMENT)
            end = self._starts.day(f"date_add({ELEMENT}, {self.length // DAY})")
            return _explode(rows, self._dates(), {START: start, END: end})
        ends = f"timestamp_micros({ELEMENT} + {micros(self.length)})"
        return _explode(rows, self._instants(), {START: f"timestamp_micros({ELEMENT})", END: ends})

    @property
    def revised(self) -> int:
        return int(-1 in date_moves(self.zone) or (self.every == DAY and 2 in date_moves(self.zone)))

    @property
    def _starts(self) -> Tumbling:
        return Tumbling(length=self.every, on=self.on, zone=self.zone, offset=self.offset)

    def _dates(self) -> str:
        last = self._starts.first_day(f"`{self.on}`")
        days = self.every // DAY
        dates = f"transform(sequence(0, {self.length // self.every - 1}), _k -> date_sub({last}, _k * {days}))"
        if self.every > DAY:
            return dates
        # A day that the zone skipped begins with the next one, and begins no window.
        zone = self.zone or "UTC"
        return f"filter({dates}, _day -> {local_date(midnight('_day', zone), zone)} = _day)"

    def _instants(self) -> str:
        """SQL of the starts, in microseconds, of the windows that contain a row's time."""
        last = f"unix_micros({self._starts.columns(f'`{self.on}`')[START]})"
        length, every = micros(self.length), micros(self.every)
        spaced = f"sequence({last} - {length} + {every}, {last}, {every})"
        if _is_evenly_spaced(self.zone, self.every, since=1900):
            return spaced
        stepped = self._starts_one_by_one(last)
        if _is_evenly_spaced(self.zone, self.every, since=1970):
            return f"if(`{self.on}` < timestamp '1970-01-02 00:00:00', {stepped}, {spaced})"
        return stepped

    def _starts_one_by_one(self, last: str) -> str:
        """Find these starts backwards: the window before one contains the last instant before it."""
        most = self.length // self.every + self.length // DAY + 2
        earlier = self._starts.columns("timestamp_micros(_starts[0] - 1)")[START]
        step = f"(_starts, _k) -> concat(array(unix_micros({earlier})), _starts)"
        starts = f"aggregate(sequence(1, {most}), array({last}), {step})"
        return f"filter({starts}, _start -> _start > unix_micros(`{self.on}`) - {micros(self.length)})"


@frozen(kw_only=True)
class Cumulative(AlignedWindow):
    """Windows that start with those of Tumbling(length=length) and grow by `step`, as Flink's CUMULATE.

    A row is in each growing window that ends after it. `step` is elapsed time; whole days follow the calendar.
    """

    length: timedelta
    step: timedelta
    offset: timedelta = timedelta(0)

    key: ClassVar[tuple[str, ...]] = (START, END)

    def __attrs_post_init__(self) -> None:
        check_length("a cumulative window", self.length)
        _check_multiple("a cumulative window", self.length, self.step)

    def assign(self, rows: DataFrame) -> DataFrame:
        whole = Tumbling(length=self.length, on=self.on, zone=self.zone, offset=self.offset)
        bounds = whole.columns(f"`{self.on}`")
        if self.step < DAY or self.zone == "UTC":
            rows = rows.withColumns({FROM: F.expr(bounds[START]), TO: F.expr(bounds[END])})
            columns = {START: FROM, END: f"least({TO}, timestamp_micros({ELEMENT}))"}
            return _explode(rows, self._instants(), columns).drop(FROM, TO)
        number, step = self.length // self.step, self.step // DAY
        first = whole.first_day(f"`{self.on}`")
        ends = f"transform(sequence(1, {number}), _k -> {whole.day(f'date_add({first}, _k * {step})')})"
        # A day that the zone skipped ends with the one before it.
        later = f"array_distinct(filter({ends}, _end -> _end > `{self.on}`))"
        return _explode(rows, later, {START: bounds[START], END: ELEMENT})

    @property
    def revised(self) -> int:
        return int(-1 in date_moves(self.zone) or (self.step >= DAY and 2 in date_moves(self.zone)))

    def _instants(self) -> str:
        """SQL of the ends, in microseconds, after a row's time, the last perhaps beyond the whole window."""
        start, end, step = f"unix_micros({FROM})", f"unix_micros({TO})", micros(self.step)
        first = f"{start} + ((unix_micros(`{self.on}`) - {start}) div {step} + 1) * {step}"
        return f"sequence({first}, {end} + {step} - 1, {step})"


def _explode(rows: DataFrame, elements: str, columns: dict[str, str]) -> DataFrame:
    rows = rows.withColumn(ELEMENT, F.explode(F.expr(elements)))
    return rows.withColumns({name: F.expr(sql) for name, sql in columns.items()}).drop(ELEMENT)


def _check_multiple(what: str, length: timedelta, part: timedelta) -> None:
    if part <= timedelta(0) or length < part or length % part:
        raise DeclarationError(
            f"{what} of {length} is not a multiple of {part}", fix="make one a multiple of the other"
        )
    if part > DAY and part % DAY:
        raise DeclarationError(f"{part} has no fixed place in a day", fix="use at most a day, or whole days")


@cache
def _is_evenly_spaced(zone: str | None, every: timedelta, *, since: int) -> bool:
    """Return whether windows of `every` from midnight in `zone` never come closer together at a clock change.

    This holds if all offsets of the zone from UTC, from the year `since` to 2100, are equal modulo `every`.
    """
    if zone in (None, "UTC"):
        return True
    if every >= DAY:
        return False
    place, first = ZoneInfo(zone), datetime(since, 1, 1, tzinfo=UTC)
    offsets = {(first + timedelta(days=n)).astimezone(place).utcoffset() for n in range(365 * (2100 - since))}
    return len({(offset or timedelta(0)) % every for offset in offsets}) == 1
