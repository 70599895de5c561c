"""JSON values that keep every digit of numbers, and their text."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, NoReturn
from uuid import UUID

import msgspec

from lake.records.raw_values import NO_CHARACTER, JsonNumber, RawValue

NOT_ONE: Final = "not one JSON object"
NOT_A_CHARACTER: Final = "U+FFFF, which is no character"
DEPTH: Final = 200
"""Most nested levels: within Python's stack."""


class NotJson(ValueError):
    """The text of the error is the reason."""


class Malformed(NotJson):
    """A text breaks the grammar of JSON."""


def decode(text: str) -> RawValue:
    """Return the one value in `text`; its characters are not checked. Raises NotJson."""
    try:
        value: RawValue = json.loads(
            text,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=_reject_constant,
            object_pairs_hook=_unique_members,
        )
    except json.JSONDecodeError as error:
        raise Malformed(str(error)) from None
    except RecursionError:
        raise NotJson(f"more than {DEPTH} levels") from None
    if text.count("[") + text.count("{") > DEPTH and _depth(value) > DEPTH:
        raise NotJson(f"more than {DEPTH} levels")
    return value


def parse_if_json(given: RawValue) -> RawValue:
    if type(given) is not str:
        return given
    try:
        return decode(given)
    except NotJson:
        return given


def read_json(text: bytes) -> RawValue:
    """Return the one JSON value in `text`, whose characters are valid. Raises NotJson."""
    try:
        characters = text.decode()
    except UnicodeDecodeError:
        raise NotJson("not valid UTF-8") from None
    _check_characters(characters)
    try:
        value = decode(characters)
    except Malformed:
        raise NotJson(NOT_ONE) from None
    except NotJson as fault:
        raise NotJson(f"{NOT_ONE}: {fault}") from None
    if "\\u" in characters:
        _check_characters(json.dumps(value, ensure_ascii=False))
    return value


def read_object(text: bytes) -> dict[str, RawValue]:
    value = read_json(text)
    if not isinstance(value, dict):
        raise NotJson(NOT_ONE)
    return value


def encode(value: RawValue) -> str:  # noqa: PLR0911 one type after the other
    """Return compact JSON: numbers as written, bytes as base64, times ISO 8601, non-finite floats as texts."""
    match value:
        case JsonNumber():
            return str(value)
        case dict():
            members = [f"{_quoted(name)}:{encode(value[name])}" for name in value]
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(encode, value)) + "]"
        case float() if not math.isfinite(value):
            return f'"{plain(value)}"'
        case Decimal():
            return plain(value)
        case None | bool() | int() | float():
            return json.dumps(value)
    return _quoted(plain(value))


def plain(value: RawValue) -> str:  # noqa: PLR0911 one type after the other
    match value:
        case str():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case msgspec.UNSET:
            return ""
    return encode(value)


def uuid_text(data: bytes) -> str:
    return str(UUID(bytes=data))


def has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_characters(text: str) -> None:
    if NO_CHARACTER in text:
        raise NotJson(NOT_A_CHARACTER)
    if has_surrogates(text):
        raise NotJson("unpaired surrogate")


def _depth(value: RawValue) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth


def _unique_members(pairs: list[tuple[str, RawValue]]) -> dict[str, RawValue]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("duplicate field name")
    return members


def _reject_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
