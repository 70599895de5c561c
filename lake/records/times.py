"""Grammar of dates and times: ISO 8601 with or without a zone, counts since 1970, and a contract's `format`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

from lake.contracts.literals import DAY, FARTHEST
from lake.contracts.written_form import EPOCHS, PARTS, ZONES, TextForm
from lake.records.numbers import exact
from lake.records.raw_values import Memo, OutsideCalendar, RawValue

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
    """Return a time without a zone; None if it is invalid or has one. If `hour24`, 24:00 ends a day."""
    parts = _MOMENT.fullmatch(text)
    if parts is None or parts[8]:
        return None
    return _local(parts, hour24)


def instant(text: str, *, hour24: bool = False) -> datetime | None:
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
    parts = _MOMENT.fullmatch(text)
    return parts[8] if parts and "/" in (parts[8] or "") else ""


def from_count(count: Decimal | int, unit: str) -> datetime | None:
    """Return the time `count` units after 1970, truncated to microseconds; None outside the years 1 to 9999."""
    exact = count if isinstance(count, int) else Fraction(count)
    try:
        return EPOCH + timedelta(microseconds=exact * NANOS[unit] // 1_000)
    except OverflowError:
        return None


def day_from_count(count: int) -> date | OutsideCalendar:
    moment = from_count(count, "days")
    return OutsideCalendar(f"{count} days since 1970") if moment is None else moment.date()


def time_from_count(count: int, unit: str, zone: tzinfo | None) -> datetime | OutsideCalendar:
    moment = from_count(count, unit)
    return OutsideCalendar(f"{count} {unit} since 1970") if moment is None else moment.replace(tzinfo=zone)


def time_of_day_from_count(count: int, unit: str) -> time | OutsideCalendar:
    """Nanoseconds are truncated to microseconds."""
    is_in_day = 0 <= count * NANOS[unit] < NANOS["days"]
    moment = from_count(count, unit) if is_in_day else None
    return OutsideCalendar(f"{count} {unit} since midnight") if moment is None else moment.time()


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
    """Return None for an unknown zone. A skipped time has the offset before the gap, a repeated one the first."""
    if zone in {"Z", "UTC", "GMT"}:
        return timedelta()
    if "/" in zone:
        return ZoneInfo(zone).utcoffset(local) if zone in regions() else None
    parts = _PARTS_OF_OFFSET.fullmatch(zone)
    if parts is None:
        return None
    return offset_of(parts[1], *(int(part or 0) for part in parts.groups()[1:]))


def offset_of(sign: str, hours: int, minutes: int, seconds: int = 0) -> timedelta | None:
    """Return None beyond 18 hours, and for minutes or seconds above 59."""
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > FARTHEST:
        return None
    return -offset if sign == "-" else offset


@Memo
def _regions(_: str) -> frozenset[str]:
    return frozenset(available_timezones())


MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH: Final = "|".join(MONTHS)
_MON: Final = "|".join(month[:3] for month in MONTHS)
_ONE_OR_TWO: Final = "[0-9]{1,2}"
_TWO: Final = "[0-9]{2}"
_OFFSETS: Final[Mapping[str, str]] = {
    "X": f"[+-]{_TWO}(?:{_TWO})?|Z",
    "XX": f"[+-]{_TWO}{_TWO}|Z",
    "XXX": f"[+-]{_TWO}:{_TWO}|Z",
    "x": f"[+-]{_TWO}(?:{_TWO})?",
    "xx": f"[+-]{_TWO}{_TWO}",
    "xxx": f"[+-]{_TWO}:{_TWO}",
    **dict.fromkeys(("Z", "ZZ", "ZZZ"), f"[+-]{_TWO}{_TWO}"),
}
_RUNS: Final[Mapping[str, str]] = {
    "y": "[0-9]{1,4}",
    "yy": _TWO,
    "yyyy": "[0-9]{4}",
    "MMM": f"(?i:{_MON})",
    "MMMM": f"(?i:{_MONTH})",
    "D": "[0-9]{1,3}",
    "DD": "[0-9]{2,3}",
    "DDD": "[0-9]{3}",
    "a": "(?i:am|pm)",
    **_OFFSETS,
}
Parts: TypeAlias = Mapping[str, int]


def format_reader(form: TextForm) -> Callable[[RawValue], datetime | None]:
    """Return a reader that returns times in UTC without a zone, None for a value that does not match."""
    if form.format in EPOCHS:
        return lambda given: _since_1970(given, form.format.removeprefix("epoch-"))
    pattern, runs = _compiled(form.format)

    def read(given: RawValue) -> datetime | None:
        if isinstance(given, bool) or not isinstance(given, str | int):
            return None
        match = pattern.fullmatch(str(given))
        return _time(match, runs, form) if match else None

    return read


def matches_format(text_format: str, text: str) -> bool:
    return _compiled(text_format)[0].fullmatch(text) is not None


def _since_1970(given: RawValue, unit: str) -> datetime | None:
    number = exact(given)
    if number is None or (unit != "seconds" and number != number.to_integral_value()):
        return None
    return from_count(number, unit)


@Memo
def _compiled(text: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    pattern, runs, is_quoted, end_of_run = "", [], False, 0
    for part in PARTS.finditer(text):
        if run := part["letters"]:
            follows = part.start() == end_of_run > 0
            runs.append(run)
            pattern += f"({_run_pattern(run, follows=follows)})"
            end_of_run = part.end()
        elif part["text"]:
            inside = part["text"][1:-1]
            pattern += re.escape(f"'{inside}" if is_quoted or not inside else inside)
        else:
            pattern += {"[": "(?:", "]": ")?"}.get(part["other"], re.escape(part["other"]))
        is_quoted = bool(part["text"] and part["text"] != "''")
    return re.compile(pattern, re.ASCII), tuple(runs)


def _run_pattern(run: str, *, follows: bool) -> str:
    """`follows`: the run is directly behind another, so a fraction has all its digits."""
    if run[0] == "S":
        return f"[0-9]{{{len(run) if follows else 1},{len(run)}}}"
    return _RUNS.get(run, _TWO if len(run) == 2 else _ONE_OR_TWO)


def _time(match: re.Match[str], runs: tuple[str, ...], form: TextForm) -> datetime | None:
    parts: dict[str, int] = {}
    fraction = ""
    for run, text in zip(runs, match.groups(), strict=True):
        if text is None:
            continue
        if run[0] == "S":
            fraction = text
            continue
        number = _number(run, text, form.pivot)
        letter = "X" if run[0] in ZONES else run[0]
        if number is None or parts.setdefault(letter, number) != number:
            return None
    ymd, hour = _date(parts), _hour(parts)
    if ymd is None or hour is None:
        return None
    local = compose_time(
        (ymd.year, ymd.month, ymd.day), (hour, parts.get("m", 0), parts.get("s", 0)), fraction, form.hour24
    )
    try:
        return None if local is None else local - timedelta(seconds=parts.get("X", 0))
    except OverflowError:
        return None


def _number(run: str, text: str, pivot: int) -> int | None:
    match run:
        case "yy":
            return pivot + (int(text) - pivot) % 100
        case "MMM" | "MMMM":
            return 1 + next(place for place, month in enumerate(MONTHS) if month.startswith(text.lower()))
        case "a":
            return 12 if text.lower() == "pm" else 0
    if run[0] not in ZONES:
        return int(text)
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "")
    offset = offset_of(text[0], int(digits[:2]), int(digits[2:] or 0))
    return None if offset is None else int(offset.total_seconds())


def _date(parts: Parts) -> date | None:
    if "y" not in parts:
        return None
    try:
        if "D" not in parts:
            return date(parts["y"], parts.get("M", 1), parts.get("d", 1))
        found = date(parts["y"], 1, 1) + timedelta(days=parts["D"] - 1)
    except (ValueError, OverflowError):
        return None
    written = (found.year, parts.get("M", found.month), parts.get("d", found.day))
    return found if written == (parts["y"], found.month, found.day) else None


def _hour(parts: Parts) -> int | None:
    meridiem = parts.get("a")
    if "h" not in parts:
        hour = parts.get("H", meridiem or 0)
        return hour if meridiem is None or (hour >= 12) == (meridiem == 12) else None
    if meridiem is None or not 1 <= parts["h"] <= 12:
        return None
    hour = parts["h"] % 12 + meridiem
    return hour if parts.get("H", hour) == hour else None
