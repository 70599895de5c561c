"""Times in Debezium's messages: converts semantic types to values that the grammar reads.

Source: Debezium's documentation, "Temporal types" of each connector. Types without a zone count as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from lake.contracts.fields import Field
from lake.records.raw_values import RawValue, WrongValue
from lake.records.times import EPOCH, NANOS, from_count

Convert: TypeAlias = Callable[[RawValue], RawValue]
"""Converter of a value other than null. Raises WrongValue, whose text follows the value in a detail."""

CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"
YEAR: Final = f"{TIME}.Year"
TIMESTAMP_UNITS: Final[Mapping[str, str]] = {
    f"{CONNECT}.Date": "days",
    f"{CONNECT}.Timestamp": "millis",
    f"{TIME}.Date": "days",
    f"{TIME}.Timestamp": "millis",
    f"{TIME}.MicroTimestamp": "micros",
    f"{TIME}.NanoTimestamp": "nanos",
}
TIME_OF_DAY_UNITS: Final[Mapping[str, str]] = {
    f"{CONNECT}.Time": "millis",
    f"{TIME}.Time": "millis",
    f"{TIME}.MicroTime": "micros",
    f"{TIME}.NanoTime": "nanos",
}
NOT_TIMESTAMPS: Final = (*TIME_OF_DAY_UNITS, YEAR, f"{TIME}.MicroDuration", f"{TIME}.NanoDuration")
UTC_TEXTS: Final = (f"{TIME}.IsoDate", f"{TIME}.IsoTimestamp", f"{TIME}.ZonedTimestamp")
WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
UTC_ZONE: Final = re.compile(r"(Z|[+-]00:?00)$")


def as_time(field: Field, semantic: str) -> Convert | None:
    """Return the converter of a semantic type ("" if unknown) to a date or time."""
    unit = TIMESTAMP_UNITS.get(semantic) or field.encoding
    if semantic in NOT_TIMESTAMPS:
        return partial(_reject, field.type, semantic)
    if semantic in UTC_TEXTS:
        return (
            None if field.type == "timestamp" and not semantic.endswith("Date") else partial(_without_utc, field.type)
        )
    return partial(_timestamp, field, unit) if unit else partial(_reject_digits, field.type)


def as_text(semantic: str) -> Convert | None:
    """Return the converter of a semantic type to text; None if none is needed."""
    if unit := TIMESTAMP_UNITS.get(semantic):
        return partial(_count_as_text, unit, _day if unit == "days" else _iso)
    if unit := TIME_OF_DAY_UNITS.get(semantic):
        return partial(_count_as_text, unit, _time_of_day)
    return _year if semantic == YEAR else None


def whole(given: RawValue) -> int | None:
    """Return an integer given as a number or digits."""
    if isinstance(given, str):
        return int(given) if WHOLE.fullmatch(given) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _reject(kind: str, semantic: str, _: RawValue) -> RawValue:
    raise WrongValue(f"({semantic}) is not {kind}")


def _reject_digits(kind: str, given: RawValue) -> RawValue:
    if type(given) is str and WHOLE.fullmatch(given):
        raise WrongValue(f'is not {kind} ("encoding": "millis" would read it; or days, micros, nanos)')
    return given


def _without_utc(kind: str, given: RawValue) -> RawValue:
    if type(given) is not str or not (zone := UTC_ZONE.search(given)):
        return given
    return given[:10] if kind == "date" else given[: zone.start()]


def _timestamp(field: Field, unit: str, given: RawValue) -> RawValue:
    count = whole(given)
    if count is None:
        return given
    if from_count(count, unit) is None:
        raise WrongValue(f"({unit}) is not {field.type}")
    if field.type == "date":
        return count * NANOS[unit] // NANOS["days"]
    micros = count * NANOS[unit] // 1_000
    own, rest = divmod(micros * (field.epoch or 1), 10**6)
    if not rest:
        return own
    return _iso(micros * 1_000) + ("Z" if field.type == "timestamp" else "")


def _count_as_text(unit: str, text: Callable[[int], str], given: RawValue) -> RawValue:
    count = whole(given)
    if count is None:
        return given
    try:
        return text(count * NANOS[unit])
    except OverflowError:
        raise WrongValue(f"({unit}) is not string") from None


def _year(given: RawValue) -> RawValue:
    count = whole(given)
    return given if count is None else f"{count:04}"


def _day(nanos: int) -> str:
    return _iso(nanos)[:10]


def _iso(nanos: int) -> str:
    seconds, fraction = divmod(nanos, 10**9)
    return (EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(fraction)


def _time_of_day(nanos: int) -> str:
    """Return HH:MM:SS. MySQL's times may be negative, and longer than a day."""
    seconds, fraction = divmod(abs(nanos), 10**9)
    minutes, second = divmod(seconds, 60)
    sign = "-" if nanos < 0 else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(fraction)}"


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f"{nanos:09}"
    return f".{digits.removesuffix('000').removesuffix('000')}"
