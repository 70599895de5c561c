"""Second implementation of the grammar of values, from the documentation, by characters and fractions.

It shares no code with `lake.records`.
"""

from __future__ import annotations

import json
import math
from calendar import monthrange
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any, Final
from zoneinfo import ZoneInfo

REFUSED: Final = "refused"
DIGITS: Final = "0123456789"
BITS: Final = {"int": 31, "bigint": 63}
SINGLES: Final = {"float": (24, -149, 128), "double": (53, -1074, 1024)}
"""Bits of the mantissa, exponent of the least number, exponent of the first number that is too large."""


class Walk:
    """Cursor in a text, from its beginning."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def digits(self, least: int, most: int) -> str | None:
        end = self.at
        while end < len(self.text) and end - self.at < most and self.text[end] in DIGITS:
            end += 1
        if end - self.at < least:
            return None
        found, self.at = self.text[self.at : end], end
        return found

    def one_of(self, signs: str) -> str:
        if self.at < len(self.text) and self.text[self.at] in signs:
            self.at += 1
            return self.text[self.at - 1]
        return ""

    @property
    def rest(self) -> str:
        return self.text[self.at :]


def number(text: str) -> tuple[Fraction, bool] | None:
    """Return the value of a number and whether it has a minus sign, or None if the text is no number."""
    walk = Walk(text)
    sign = walk.one_of("+-")
    before = walk.digits(0, 2000) or ""
    after = (walk.digits(0, 2000) or "") if walk.one_of(".") else ""
    power = 0
    if walk.one_of("eE"):
        minus = walk.one_of("+-") == "-"
        digits = walk.digits(1, 3)
        if digits is None:
            return None
        power = -int(digits) if minus else int(digits)
    if walk.rest or not before + after or len(text) > 1000:
        return None
    value = Fraction(int(before + after)) * Fraction(10) ** (power - len(after))
    return (-value if sign == "-" else value), sign == "-"


def nearest(value: Fraction, kind: str) -> Fraction | None:
    """Return the nearest number of a binary format, ties to even, or None if it is out of range."""
    mantissa, least, beyond = SINGLES[kind]
    if not value:
        return value
    size = abs(value)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    power -= size < Fraction(2) ** power
    unit = Fraction(2) ** max(power - mantissa + 1, least)
    rounded = round(size / unit) * unit
    if rounded >= Fraction(2) ** beyond:
        return None
    return -rounded if value < 0 else rounded


def of_number(kind: str, text: str) -> Any:
    found = number(text)
    if found is None:
        return REFUSED
    value, minus = found
    if kind in BITS:
        fits = value.denominator == 1 and -(2 ** BITS[kind]) <= value < 2 ** BITS[kind]
        return int(value) if fits else REFUSED
    if kind.startswith("decimal"):
        precision, scale = map(int, kind[8:-1].split(","))
        units = value * 10**scale
        if units.denominator != 1 or abs(units) >= 10**precision:
            return REFUSED
        digits = tuple(map(int, str(abs(int(units)))))
        return Decimal((int(units < 0), digits, -scale))
    near = nearest(value, kind)
    if near is None:
        return REFUSED
    return math.copysign(float(near), -1.0 if minus else 1.0)


NAMES: Final = {
    sign + spelt: float(sign + name)
    for sign in ("", "+", "-")
    for name in ("nan", "inf", "infinity")
    for spelt in {"".join(pair) for pair in product(*zip(name, name.upper(), strict=True))}
}
TRUTHS: Final = {
    spelt: word in {"true", "t", "yes", "y", "1"}
    for word in ("true", "t", "yes", "y", "1", "false", "f", "no", "n", "0")
    for spelt in {"".join(pair) for pair in product(*zip(word, word.upper(), strict=True))}
}


def day(walk: Walk) -> date | None:
    year = walk.digits(4, 4)
    month = walk.digits(2, 2) if walk.one_of("-") else None
    of_month = walk.digits(2, 2) if walk.one_of("-") else None
    if year is None or month is None or of_month is None or not (int(year) and 1 <= int(month) <= 12):
        return None
    if not 1 <= int(of_month) <= monthrange(int(year), int(month))[1]:
        return None
    return date(int(year), int(month), int(of_month))


def time_of_day(walk: Walk) -> timedelta | None:
    hour, minute, second, fraction = walk.digits(2, 2), None, "0", "0"
    if walk.one_of(":"):
        minute = walk.digits(2, 2)
    if walk.one_of(":"):
        second = walk.digits(2, 2) or "99"
        if walk.one_of("."):
            fraction = walk.digits(1, 9) or ""
    if hour is None or minute is None or not fraction:
        return None
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        return None
    micros = int(Fraction(int(fraction), 10 ** len(fraction)) * 1_000_000)
    return timedelta(hours=int(hour), minutes=int(minute), seconds=int(second), microseconds=micros)


def clock_offset(text: str, hours: tuple[int, int]) -> timedelta | None:
    """Return an offset. `hours` are the least and the most digits of its hour."""
    walk = Walk(text)
    sign, minute, second = walk.one_of("+-"), "0", "0"
    compact = len(text) == 5 and ":" not in text
    hour = walk.digits(2, 2) if compact else walk.digits(*hours)
    if compact:
        minute = walk.digits(2, 2) or "99"
    elif walk.one_of(":"):
        minute = walk.digits(2, 2) or "99"
        if walk.one_of(":"):
            second = walk.digits(2, 2) or "99"
    if not sign or hour is None or walk.rest or int(minute) > 59 or int(second) > 59:
        return None
    size = timedelta(hours=int(hour), minutes=int(minute), seconds=int(second))
    if size > timedelta(hours=18):
        return None
    return -size if sign == "-" else size


REGIONS: Final = ("Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Etc/GMT+5", "Asia/Kolkata")
"""Regions in the tests."""


def in_region(name: str, local: datetime) -> datetime:
    """Return the instant of a local time: the earlier of two; in a gap, later by the length of the gap."""
    zone = ZoneInfo(name)

    def shown_at(instant: datetime) -> datetime:
        return instant.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)

    offsets = []
    for hours in range(-30, 31):
        with suppress(OverflowError):
            offsets.append(shown_at(local + timedelta(hours=hours)) - (local + timedelta(hours=hours)))
    instants = sorted(each for offset in set(offsets) if shown_at(each := local - offset) == local)
    return instants[0] if instants else local - offsets[0]


def instant(walk: Walk, local: datetime) -> datetime | None:
    walk.one_of(" ")
    zone = walk.rest
    if zone in {"Z", "UTC", "GMT"}:
        return local
    if zone in REGIONS:
        return in_region(zone, local)
    named = zone[:3] in {"UTC", "GMT"}
    offset = clock_offset(zone[3:], (1, 2)) if named else clock_offset(zone, (2, 2))
    return None if offset is None else local - offset


def of_time(kind: str, text: str) -> Any:
    walk = Walk(text)
    of_day = day(walk)
    if of_day is None or (kind == "date" and walk.rest):
        return REFUSED
    if kind == "date":
        return of_day
    passed = timedelta()
    if walk.rest:
        found = time_of_day(walk) if walk.one_of("T ") else None
        if found is None or (walk.rest and kind == "timestamp_ntz"):
            return REFUSED
        passed = found
    local = datetime(of_day.year, of_day.month, of_day.day) + passed
    if kind == "timestamp_ntz":
        return local
    try:
        utc = instant(walk, local) if walk.rest else local
    except OverflowError:
        return REFUSED
    return REFUSED if utc is None else utc.replace(tzinfo=UTC)


def of_text(kind: str, text: str) -> Any:
    """Return the value of a text for a field of type `kind`, which is not nested, or REFUSED."""
    of: dict[str, Callable[[], Any]] = {
        "boolean": lambda: TRUTHS.get(text, REFUSED),
        "float": lambda: NAMES[text] if text in NAMES else of_number(kind, text),
        "string": lambda: REFUSED if any(c == "\uffff" or "\ud800" <= c <= "\udfff" for c in text) else text,
        **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), lambda: of_time(kind, text)),
        "binary": lambda: of_base64(text),
    }
    of["double"] = of["float"]
    return of.get(kind, lambda: of_number(kind, text))()


LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def of_base64(text: str) -> Any:
    letters = text.rstrip("=")
    if len(text) % 4 or len(text) - len(letters) > 2 or any(letter not in LETTERS for letter in letters):
        return REFUSED
    bits = "".join(f"{LETTERS.index(letter):06b}" for letter in letters)
    whole = len(bits) // 8 * 8
    if "1" in bits[whole:]:
        return REFUSED
    return bytes(int(bits[at : at + 8], 2) for at in range(0, whole, 8))


@dataclass(frozen=True)
class Literal:
    """A number of JSON, `true` or `false`, as written."""

    digits: str


Kind = str | tuple[str, ...] | list["Kind"] | Mapping[str, "Kind"]
"""Type of a field: a Spark type that is not nested, the symbols of an enum, [the type of items],
{"*": the type of values}, or {name: the type of a member}.
"""


def read_json(text: Any) -> Any:
    """Return the value of a JSON text, with literals. Return any other value unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return _literals(json.loads(text, parse_int=Literal, parse_float=Literal, parse_constant=int))
    except ValueError:
        return None


def _literals(value: Any) -> Any:
    if isinstance(value, bool):
        return Literal(str(value).lower())
    if isinstance(value, list):
        return [_literals(item) for item in value]
    return {name: _literals(item) for name, item in value.items()} if isinstance(value, dict) else value


def compact(value: Any, *, is_ascii: bool = False) -> str:
    """Return JSON without blanks, with members in their order."""
    if isinstance(value, Literal):
        return value.digits
    if isinstance(value, list):
        return f"[{','.join(compact(item, is_ascii=is_ascii) for item in value)}]"
    if isinstance(value, dict):
        pairs = (
            f"{compact(name, is_ascii=is_ascii)}:{compact(item, is_ascii=is_ascii)}" for name, item in value.items()
        )
        return f"{{{','.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=is_ascii)


def of_json(kind: Kind, value: Any) -> Any:
    """Return the value of a text, Literal, list, dict or None of JSON for a type, or REFUSED."""
    if value is None:
        return None
    if isinstance(kind, tuple):
        return value if value in kind else REFUSED
    if isinstance(kind, list | Mapping):
        return of_nested(kind, read_json(value))
    if isinstance(value, str):
        return of_text(kind, value)
    if kind == "string":
        return compact(value)
    return of_literal(kind, value.digits) if isinstance(value, Literal) else REFUSED


def of_nested(kind: Any, value: Any) -> Any:
    if isinstance(kind, list):
        parts = [of_json(kind[0], item) for item in value] if isinstance(value, list) else [REFUSED]
        return REFUSED if REFUSED in parts else parts
    if not isinstance(value, dict):
        return REFUSED
    kinds = kind if "*" not in kind else dict.fromkeys(value, kind["*"])
    members = {name: of_json(of, value.get(name)) for name, of in kinds.items()}
    return REFUSED if REFUSED in members.values() else members


def of_literal(kind: str, digits: str) -> Any:
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(digits, REFUSED)
    if digits in {"true", "false"} or kind == "binary":
        return REFUSED
    if kind not in {"date", "timestamp", "timestamp_ntz"}:
        return of_number(kind, digits)
    count = of_number("bigint", digits)
    try:
        if count is REFUSED or kind == "date":
            return count if count is REFUSED else date(1970, 1, 1) + timedelta(days=count)
        return datetime(1970, 1, 1, tzinfo=UTC if kind == "timestamp" else None) + timedelta(microseconds=count)
    except OverflowError:
        return REFUSED
