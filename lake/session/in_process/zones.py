"""Time zones by the rules of this machine's Java, which Spark uses too.

Source of the format: TzdbZoneRulesProvider, ZoneRules and Ser of java.time.zone in JDK 17.
"""

from __future__ import annotations

import calendar
from datetime import date, datetime, timedelta
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from lake.session import jars
from lake.session.in_process.mode import unsupported
from lake.session.in_process.types import Value
from lake.text import literal

EPOCH: Final = datetime(1970, 1, 1)
LAST_YEAR: Final = 2100
FROM_UTC, TO_UTC = "spark_from_utc", "spark_to_utc"
END: Final = (datetime(LAST_YEAR, 1, 1) - EPOCH) // timedelta(microseconds=1)
"""Rules of the last years are applied up to LAST_YEAR; later times are left to Spark."""


class Transition(NamedTuple):
    """Change of a clock at an instant, in seconds since 1970; offsets from UTC in seconds."""

    at: int
    before: int
    after: int


class _Reader(BytesIO):
    def number(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.read(size), "big", signed=signed)

    def text(self) -> str:
        return self.read(self.number(2, signed=False)).decode()

    def offset(self) -> int:
        quarters = self.number(1)
        return self.number(4) if quarters == 127 else quarters * 900

    def instant(self) -> int:
        high = self.number(1, signed=False)
        return self.number(8) if high == 255 else ((high << 16) + self.number(2, signed=False)) * 900 - 4_575_744_000


@cache
def regions() -> dict[str, bytes]:
    """Return {zone: its rules}; empty without a Java."""
    file = Path(jars.java()).resolve().parents[1] / "lib/tzdb.dat"
    if not file.is_file():
        return {}
    data = _Reader(file.read_bytes())
    if data.read(1) != b"\1" or data.text() != "TZDB":
        return {}
    for _ in range(data.number(2)):
        data.text()
    names = [data.text() for _ in range(data.number(2))]
    rules = [data.read(data.number(2, signed=False)) for _ in range(data.number(2))]
    pairs = [(data.number(2), data.number(2)) for _ in range(data.number(2))]
    found = {names[region]: rules[rule] for region, rule in pairs}
    for alias, region in [(data.number(2), data.number(2)) for _ in range(data.number(2))]:
        found[names[alias]] = found[names[region]]
    return found


@cache
def transitions(zone: str) -> tuple[int, tuple[Transition, ...]]:
    """Return the first offset of a zone from UTC and its changes. Raises Unsupported for an unknown zone."""
    if zone not in regions():
        raise unsupported(f"the time zone {zone}")
    data = _Reader(regions()[zone])
    data.read(1)
    standard = data.number(4)
    for _ in range(standard):
        data.instant()
    for _ in range(standard + 1):
        data.offset()
    instants = [data.instant() for _ in range(data.number(4))]
    offsets = [data.offset() for _ in range(len(instants) + 1)]
    changes = [Transition(*change) for change in zip(instants, offsets, offsets[1:], strict=False)]
    rules = [_rule(data) for _ in range(data.number(1))]
    first = (EPOCH + timedelta(seconds=instants[-1])).year + 1 if instants else 1
    for year in range(first, LAST_YEAR + 1) if rules else ():
        changes += sorted(rule.in_year(year) for rule in rules)
    return offsets[0], tuple(changes)


class _Rule(NamedTuple):
    month: int
    day: int
    weekday: int
    seconds: int
    definition: int
    standard: int
    before: int
    after: int

    def in_year(self, year: int) -> Transition:
        if self.day < 0:
            day = date(year, self.month, calendar.monthrange(year, self.month)[1] + 1 + self.day)
            day -= timedelta(days=(day.isoweekday() - self.weekday) % 7 if self.weekday else 0)
        else:
            day = date(year, self.month, self.day)
            day += timedelta(days=(self.weekday - day.isoweekday()) % 7 if self.weekday else 0)
        wall = (day - EPOCH.date()).days * 86_400 + self.seconds
        shift = {0: 0, 1: self.before, 2: self.standard}[self.definition]
        return Transition(wall - shift, self.before, self.after)


def _rule(data: _Reader) -> _Rule:
    bits = data.number(4, signed=False)
    hour, standard, before, after = (bits >> 14) & 31, (bits >> 4) & 255, (bits >> 2) & 3, bits & 3
    seconds = data.number(4) if hour == 31 else hour * 3600
    of_standard = data.number(4) if standard == 255 else (standard - 128) * 900
    of_before = data.number(4) if before == 3 else of_standard + before * 1800
    of_after = data.number(4) if after == 3 else of_standard + after * 1800
    day, weekday = ((bits >> 22) & 63) - 32, (bits >> 19) & 7
    return _Rule(bits >> 28, day, weekday, seconds, (bits >> 12) & 3, of_standard, of_before, of_after)


@cache
def clock_offsets(zone: str, direction: str) -> tuple[list[int], list[int]]:
    """Return the limits, in microseconds, from which the next offset of a zone holds, and all its offsets.

    Limits are instants (FROM_UTC), or times of the clock (TO_UTC). The first of two equal times counts; one in a gap is
    moved by the offset before it.
    """
    first, changes = transitions(zone)
    shifts = [0 if direction == FROM_UTC else max(change.before, change.after) for change in changes]
    limits = [(change.at + shift) * 1_000_000 for change, shift in zip(changes, shifts, strict=True)]
    return limits, [offset * 1_000_000 for offset in (first, *(change.after for change in changes))]


def convert(at: Value, zone: str, direction: str) -> Value:
    """Return the time of the zone's clock at an instant (FROM_UTC), or the instant of a time of that clock (TO_UTC).

    Both are timestamps. Raises Unsupported for an unknown zone.
    """
    transitions(zone)
    return Value(f"make_timestamptz({direction}(epoch_us({at.sql}), {literal(zone)}))", at.type)
