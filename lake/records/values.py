"""Grammar of values: what each type of a field takes, and what value that is. The page `docs/values.md` states it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Final, TypeAlias

from lake.contracts.fields import Field
from lake.contracts.written_form import PLAIN
from lake.records import hints, time_format, times
from lake.records.given import ABSENT, NO_CHARACTER, Given, Number, Wrong
from lake.records.json_value import has_surrogates, parsed, plain
from lake.records.memo import Memo
from lake.records.numbers import decimal, floating, whole

Value: TypeAlias = object
Reader: TypeAlias = Callable[[Given], Value]
"""Raises Wrong; null and what is absent are None."""
SHOWN: Final = 200
TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}


def given_default(field: Field) -> tuple[Field, Given]:
    """Return the default of a field as a record would have it, and the field that reads it: without a form."""
    text, is_time = field.default, field.type.startswith(("date", "timestamp"))
    is_count = text is not None and is_time and re.fullmatch("-?[0-9]+", text)
    return replace(field, form=PLAIN), Number(text) if is_count else text


def shown(given: Given) -> str:
    """Return the beginning of a value, as a refusal quotes it."""
    if isinstance(given, bytes):
        return given.decode("utf-8", "backslashreplace")[:SHOWN]
    return plain(given)[:SHOWN]


@Memo
def reader(field: Field) -> Reader:
    """Return what reads one value of `field`: as Arrow takes it for the field's type, a map as a list of pairs.

    It raises Wrong, whose text follows the name and the value in a refusal: "is not int".
    """
    value_of = _of_type(field)
    wrong = f"is not {field.type}{field.form.words}"

    def read(given: Given) -> Value:
        if given is None or given is ABSENT:
            return None
        value = value_of(given)
        if value is None:
            raise Wrong(f"{wrong}{hints.hint(field, given, _reads)}")
        return value

    return read


def _reads(field: Field, given: Given) -> bool:
    return _of_type(field)(given) is not None


def _of_type(field: Field) -> Reader:  # noqa: PLR0911 one type after the other
    """Return what gives the value of a type; None if what is given is none."""
    kind, _, size = field.type.partition("(")
    if field.nested:
        return _nested(field)
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
    moment = _moment(field)
    return moment if kind != "date" else lambda given: _date(moment, field, given)


def _text(given: Given) -> str | None:
    """Return a text, or the JSON text of another value."""
    if isinstance(given, bytes):
        try:
            text = given.decode()
        except UnicodeDecodeError:
            return None
    else:
        text = plain(given)
    return None if NO_CHARACTER in text or has_surrogates(text) else text


def _boolean(given: Given) -> bool | None:
    if isinstance(given, bool):
        return given
    if isinstance(given, Number | int):
        return {"0": False, "1": True}.get(str(given))
    return TRUTHS.get(given.lower()) if isinstance(given, str) else None


def in_base64(given: Given) -> bytes | None:
    """Return the bytes of a text in base64, padded; None if it is none."""
    if isinstance(given, bytes):
        return given
    if type(given) is not str:
        return None
    try:
        value = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == given else None


def in_hex(given: Given) -> bytes | None:
    """Return the bytes of a text of hexadecimal digits; None if it is none."""
    if isinstance(given, bytes):
        return given
    if type(given) is not str or not re.fullmatch("(?:[0-9a-fA-F]{2})*", given):
        return None
    return bytes.fromhex(given)


def _moment(field: Field) -> Callable[[Given], datetime | None]:
    """Return what reads a time: aware and in UTC for a timestamp, naive for a local one and for a date."""
    zoned = field.type == "timestamp"
    in_format = time_format.reader(field.form) if field.form.format else None
    text = times.instant if zoned else times.local_time
    unit = times.UNITS[field.epoch or 1]

    def read(given: Given) -> datetime | None:
        match given:
            case datetime():
                return _typed(given, zoned=zoned, any_zone=field.type == "date")
            case date():
                value: datetime | None = datetime(given.year, given.month, given.day)
            case _ if in_format:
                value = in_format(given)
            case str() if not isinstance(given, Number):
                return text(given, hour24=field.form.hour24)
            case _:
                count = whole(given, "bigint")
                value = None if count is None else times.counted(count, unit)
        return value.replace(tzinfo=UTC) if value is not None and zoned else value

    return read


def _typed(given: datetime, *, zoned: bool, any_zone: bool) -> datetime | None:
    """Return a time of Parquet or Avro: without a zone it is UTC for a timestamp; an instant is no local time."""
    if given.tzinfo is None:
        return given.replace(tzinfo=UTC) if zoned else given
    try:
        moment = given.astimezone(UTC)
    except OverflowError:
        return None
    if zoned:
        return moment
    return moment.replace(tzinfo=None) if any_zone else None


def _date(moment: Callable[[Given], datetime | None], field: Field, given: Given) -> date | None:
    """Return a day: of a format that of the instant in UTC, of a typed time or a count of seconds only at midnight."""
    form = field.form.format
    if isinstance(given, str) and not isinstance(given, Number) and not form:
        return times.day(given)
    if not form and not isinstance(given, date):
        days = whole(given, "bigint")
        found = None if days is None else times.counted(days, "days")
    else:
        found = moment(given)
    is_written = bool(form) and not form.startswith("epoch-") and not isinstance(given, date)
    return found.date() if found is not None and (is_written or found.time() == time()) else None


def _nested(field: Field) -> Reader:
    kind, parts = field.type.partition("<")[0], [(part.name, reader(part)) for part in field.parts]

    def read(given: Given) -> Value:
        value = parsed(given)
        try:
            if kind == "array" and isinstance(value, list):
                return [parts[0][1](item) for item in value]
            if kind == "struct" and isinstance(value, dict):
                return {name: member(value.get(name)) for name, member in parts}
            if kind == "map" and isinstance(value, dict) and all(_text(key) is not None for key in value):
                return [(key, parts[0][1](item)) for key, item in value.items()]
        except Wrong:
            pass
        return None

    return read
