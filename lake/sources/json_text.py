"""Scanner of JSON text that returns parts as they are written: numbers keep all their digits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from lake.records.raw_values import JsonNumber

SPACE: Final = re.compile(r"[ \t\r\n]*")
SPACES: Final = " \t\r\n"
LONG: Final = 19
"""Length from which an integer may not fit into 64 bits."""
BEYOND: Final = 1 << 200
"""Stands for integers too long for any field."""


class InvalidJson(ValueError): ...


def _reject_constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is not JSON")


def _integer(digits: str) -> int:
    return int(digits) if len(digits) < LONG else BEYOND


_SCAN: Final = json.JSONDecoder(parse_int=_integer, parse_float=JsonNumber, parse_constant=_reject_constant)
_LOOSE: Final = json.JSONDecoder(parse_int=_integer, parse_float=JsonNumber)


def scan(text: str, at: int = 0, *, loose: bool = False) -> tuple[Any, int]:
    """Return the value that begins at `at`, and where it ends. Raises InvalidJson.

    Integers that are too long are BEYOND; other numbers are JsonNumber. If `loose`, NaN and Infinity are values.
    """
    try:
        return (_LOOSE if loose else _SCAN).raw_decode(text, at)
    except RecursionError:
        raise InvalidJson("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"{error.msg} at character {error.pos}") from None


def parse(text: str, *, loose: bool = False) -> Any:
    """Return the value of a text without surrounding spaces, as `scan` does."""
    value, end = scan(text, loose=loose)
    if end != len(text):
        raise InvalidJson(f"Extra data at character {end}")
    return value


def is_json(text: str) -> bool:
    try:
        parse(text)
    except InvalidJson:
        return False
    return True


def members(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value text of the members of `text`, a valid object without surrounding spaces."""
    at = _after_space(text, 1)
    while text[at] != "}":
        name, at = scan(text, at)
        at = _after_space(text, _after_space(text, at) + 1)
        _, end = scan(text, at, loose=True)
        yield name, text[at:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def elements(text: str) -> Iterator[tuple[str, Any]]:
    """Yield text and value of an array's elements. Raises InvalidJson."""
    if not text.startswith("["):
        raise InvalidJson("it is not an array")
    at = _after_space(text, 1)
    if text[at : at + 1] == "]" and at + 1 == len(text):
        return
    while True:
        value, end = scan(text, at)
        yield text[at:end], value
        at = _after_space(text, end)
        separator, at = text[at : at + 1], _after_space(text, at + 1)
        if separator == "]" and at == len(text):
            return
        if separator != ",":
            raise InvalidJson(f"expected ',' or ']' at character {end}")


def _after_space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else at
