"""Grammar of values: what each field type accepts (`docs/values.md`), and hints for a value that it rejects."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from itertools import groupby
from typing import Final, TypeAlias

from lake.contracts.fields import Field
from lake.contracts.written_form import NUMBERS, PLAIN, TextForm
from lake.records import times
from lake.records.json_value import has_surrogates, parse_if_json, plain_text
from lake.records.numbers import decimal, floating, whole
from lake.records.raw_values import ABSENT, NO_CHARACTER, JsonNumber, Memo, OutsideCalendar, RawValue, WrongValue

Value: TypeAlias = object
Reader: TypeAlias = Callable[[RawValue], Value]
"""It returns None for null and absent, and raises WrongValue."""
SHOWN: Final = 200
TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}


def given_default(field: Field) -> tuple[Field, RawValue]:
    """Return the field without its form, which reads its default, and the default as a record would have it."""
    text, is_time = field.default, field.type.startswith(("date", "timestamp"))
    is_count = text is not None and is_time and re.fullmatch("-?[0-9]+", text)
    return replace(field, form=PLAIN), JsonNumber(text) if is_count else text


def excerpt(given: RawValue) -> str:
    """Return the beginning of a value; `""` for an empty text."""
    text = given.decode("utf-8", "backslashreplace") if isinstance(given, bytes) else plain_text(given)
    return text[:SHOWN] or '""'


@Memo
def reader(field: Field) -> Reader:
    """Return the reader of `field`: values as Arrow accepts them, a map as a list of pairs.

    It raises WrongValue, whose text follows name and value in a message: "is not int".
    """
    value_of = _reader_of_type(field)
    wrong = f"is not {field.type}{field.form.words}"

    def read(given: RawValue) -> Value:
        if given is None or given is ABSENT:
            return None
        value = value_of(given)
        if value is None:
            raise WrongValue(f"{wrong}{_hint(field, given)}")
        return value

    return read


def _can_read(field: Field, given: RawValue) -> bool:
    return _reader_of_type(field)(given) is not None


def _reader_of_type(field: Field) -> Reader:  # noqa: PLR0911 one type after the other
    kind, _, size = field.type.partition("(")
    if field.nested:
        return _nested_reader(field)
    match kind:
        case "string":
            return _text
        case "boolean":
            return _boolean
        case "int" | "bigint":
            return lambda given: whole(given, kind, field.form)
        case "decimal":
            precision, scale = map(int, size[:-1].split(","))
            return lambda given: decimal(given, precision, scale, field.form)
        case "float" | "double":
            return lambda given: floating(given, kind, field.form)
        case "binary":
            return in_base64
    read_time = _time_reader(field)
    return read_time if kind != "date" else lambda given: _date(read_time, field, given)


def _text(given: RawValue) -> str | None:
    if isinstance(given, bytes):
        try:
            text = given.decode()
        except UnicodeDecodeError:
            return None
    else:
        text = plain_text(given)
    if isinstance(given, OutsideCalendar):
        return None
    return None if NO_CHARACTER in text or has_surrogates(text) else text


def _boolean(given: RawValue) -> bool | None:
    if isinstance(given, bool):
        return given
    if isinstance(given, JsonNumber | int):
        return {"0": False, "1": True}.get(str(given))
    return TRUTHS.get(given.lower()) if isinstance(given, str) else None


def in_base64(given: RawValue) -> bytes | None:
    if isinstance(given, bytes):
        return given
    if type(given) is not str:
        return None
    try:
        value = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == given else None


def in_hex(given: RawValue) -> bytes | None:
    if isinstance(given, bytes):
        return given
    if type(given) is not str or not re.fullmatch("(?:[0-9a-fA-F]{2})*", given):
        return None
    return bytes.fromhex(given)


def _time_reader(field: Field) -> Callable[[RawValue], datetime | None]:
    zoned = field.type == "timestamp"
    in_format = times.format_reader(field.form) if field.form.format else None
    text = times.instant if zoned else times.local_time
    unit = times.UNITS[field.epoch or 1]

    def read(given: RawValue) -> datetime | None:
        match given:
            case datetime():
                return _from_datetime(given, zoned=zoned, any_zone=field.type == "date")
            case date():
                value: datetime | None = datetime(given.year, given.month, given.day)
            case _ if in_format:
                value = in_format(given)
            case str() if not isinstance(given, JsonNumber):
                return text(given, hour24=field.form.hour24)
            case _:
                count = whole(given, "bigint")
                value = None if count is None else times.from_count(count, unit)
        return value.replace(tzinfo=UTC) if value is not None and zoned else value

    return read


def _from_datetime(given: datetime, *, zoned: bool, any_zone: bool) -> datetime | None:
    if given.tzinfo is None:
        return given.replace(tzinfo=UTC) if zoned else given
    try:
        moment = given.astimezone(UTC)
    except OverflowError:
        return None
    if zoned:
        return moment
    return moment.replace(tzinfo=None) if any_zone else None


def _date(read_time: Callable[[RawValue], datetime | None], field: Field, given: RawValue) -> date | None:
    """Return the day in UTC of a text in a format. Typed times and counts must be at midnight."""
    form = field.form.format
    if isinstance(given, str) and not isinstance(given, JsonNumber) and not form:
        return times.day(given)
    if not form and not isinstance(given, date):
        days = whole(given, "bigint")
        found = None if days is None else times.from_count(days, "days")
    else:
        found = read_time(given)
    is_written = bool(form) and not form.startswith("epoch-") and not isinstance(given, date)
    return found.date() if found is not None and (is_written or found.time() == time()) else None


def _nested_reader(field: Field) -> Reader:
    kind, parts = field.type.partition("<")[0], [(part.name, reader(part)) for part in field.parts]

    def read(given: RawValue) -> Value:
        value = parse_if_json(given)
        try:
            if kind == "array" and isinstance(value, list):
                return [parts[0][1](item) for item in value]
            if kind == "struct" and isinstance(value, dict):
                return {name: member(value.get(name)) for name, member in parts}
            if kind == "map" and isinstance(value, dict) and all(_text(key) is not None for key in value):
                return [(key, parts[0][1](item)) for key, item in value.items()]
        except WrongValue:
            pass
        return None

    return read


LONGEST_HINTED: Final = 40
MOST_HINTS: Final = 2
EPOCHS_BY_DIGITS: Final = {10: "epoch-seconds", 13: "epoch-millis", 16: "epoch-micros", 19: "epoch-nanos"}
DATE_FORMATS: Final = (
    *("yyyyMMdd", "d/M/yyyy", "M/d/yyyy", "yyyy/M/d", "yyyy-M-d", "d.M.yyyy", "d-M-yyyy", "d MMM yyyy", "d-MMM-yyyy"),
    *("d/M/yy", "M/d/yy", "d.M.yy", "d-M-yy", "d-MMM-yy"),
)
HOUR_FORMATS: Final = (
    *("", "HHmm", "HHmmss", "'T'HHmmss", "'T'HHmmssX", " HH:mm", " HH:mm:ss", " h:mm a", " h:mm:ss a"),
    *("'T'HH:mm", "'T'HH:mm:ss", "'T'HH:mm:ssXXX"),
)
HINTED_FORMATS: Final = (
    "yyyy",
    "yyyy-MM",
    "yyyy-DDD",
    *(date + hour for date in DATE_FORMATS for hour in HOUR_FORMATS),
)
_ABBREVIATION: Final = re.compile(r"(.*:[0-9.]+) ?([A-Za-z][A-Za-z0-9]*)")
_MAY_BE_NUMBER: Final = re.compile("[+-]?[0-9.,' ]*[,' ][0-9.,' ]*(?:[eE][+-]?[0-9]+)?")
NUMBER_SIGNS: Final = ((",", ""), (".", ","), (",", "."), (".", "'"), (".", " "), (",", " "))


def _hint(field: Field, given: RawValue) -> str:
    """Return the end of a rejection, ` ("format": … would read it)`; "" if no attribute of the field helps."""
    if isinstance(given, OutsideCalendar):
        return ""
    if field.type == "string":
        unreadable = "not UTF-8" if isinstance(given, bytes) else "half a surrogate pair"
        return f" ({unreadable}, or U+FFFF, which is no character)"
    if type(given) is int:
        given = JsonNumber(given)
    if given == "":
        return ' ("null": [""] for CSV would read it as no value)'
    if not isinstance(given, str) or len(given) > LONGEST_HINTED:
        return ""
    named = [attribute for attribute, declared in _candidates(field, given) if _can_read(declared, given)][:MOST_HINTS]
    if named:
        return f" ({' or '.join(named)} would read it)"
    return _zone_hint(field, given) if field.type == "timestamp" and field.form.plain else ""


def _zone_hint(field: Field, text: str) -> str:
    if times.region(text) and not times.regions():
        return " (this machine has no database of time zones: install the Python package tzdata)"
    found = _ABBREVIATION.fullmatch(text)
    if found is None or not _can_read(field, found[1]):
        return ""
    return f" ({found[2]} is no zone: UTC, GMT, Z, offsets and regions such as Europe/London are)"


def _candidates(field: Field, text: str) -> Iterator[tuple[str, Field]]:
    kind, is_text = field.type.partition("(")[0], type(text) is str
    if "24:00" in text and (kind.startswith("timestamp") or field.form.format):
        yield '"hour24": true', replace(field, form=replace(field.form, hour24=True))
    if not field.form.plain:
        return
    if kind == "date" or kind.startswith("timestamp"):
        for form in _formats(text):
            yield f'"format": "{form}"', replace(field, form=TextForm(form))
    if kind in NUMBERS and is_text and _MAY_BE_NUMBER.fullmatch(text):
        for decimal, thousands in (signs for signs in NUMBER_SIGNS if signs[1] in text):
            declared = [f'"decimal": "{decimal}"'] if decimal != "." else []
            declared += [f'"thousands": "{thousands}"'] if thousands else []
            yield ", ".join(declared), replace(field, form=TextForm(decimal=decimal, thousands=thousands))


def _formats(text: str) -> Iterator[str]:
    count = re.fullmatch(r"-?([0-9]+)(?:\.[0-9]+)?", text)
    if count and (unit := EPOCHS_BY_DIGITS.get(len(count[1]))):
        yield unit
    yield from _matching(re.sub("[0-9]", "9", text))


@Memo
def _matching(shape: str) -> list[str]:
    return [form for form in _FORMATS_BY_SIGNS.get(_signs(shape), ()) if times.matches_format(form, shape)]


def _signs(text: str) -> str:
    return re.sub("[0-9A-Za-z']+", "", text)


_FORMATS_BY_SIGNS: Final = {signs: [*forms] for signs, forms in groupby(sorted(HINTED_FORMATS, key=_signs), _signs)}
