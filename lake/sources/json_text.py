"""Parts of a JSON text as they are written: numbers keep all their digits, as contracts read them from text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from lake.records.given import Number

SPACE: Final = re.compile(r"[ \t\r\n]*")
SPACES: Final = " \t\r\n"
LONG: Final = 19
BEYOND: Final = 1 << 200
"""In the place of whole numbers that no field holds, or nearly so."""


class NotJson(ValueError):
    """What is wrong with a text."""


def _constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


def _whole(digits: str) -> int:
    return int(digits) if len(digits) < LONG else BEYOND


_SCAN: Final = json.JSONDecoder(parse_int=_whole, parse_float=Number, parse_constant=_constant)
"""Numbers may be of any length: whole ones of many digits are BEYOND, and others remain text."""
_LOOSE: Final = json.JSONDecoder(parse_int=_whole, parse_float=Number)
"""Takes NaN and Infinity too."""


def scanned(text: str, at: int = 0, *, loose: bool = False) -> tuple[Any, int]:
    """Return the value that begins at a place, and where it ends. Raise NotJson.

    Numbers are as `_SCAN` has them. With `loose`, NaN and Infinity are values.
    """
    try:
        return (_LOOSE if loose else _SCAN).raw_decode(text, at)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at character {error.pos}") from None


def whole(text: str, *, loose: bool = False) -> Any:
    """Return the one value that a text without spaces around is, as `scanned` has it. Raise NotJson."""
    value, end = scanned(text, loose=loose)
    if end != len(text):
        raise NotJson(f"Extra data at character {end}")
    return value


def is_json(text: str) -> bool:
    """Return whether a text without spaces around is one value of JSON."""
    try:
        whole(text)
    except NotJson:
        return False
    return True


def members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object that `whole` reads: name, and the value's text."""
    at = after_space(text, 1)
    while text[at] != "}":
        name, at = scanned(text, at)
        at = after_space(text, after_space(text, at) + 1)
        _, end = scanned(text, at, loose=True)
        yield name, text[at:end]
        at = after_space(text, end)
        if text[at] == ",":
            at = after_space(text, at + 1)


def elements(text: str) -> Iterator[tuple[str, Any]]:
    """The elements of an array: their texts, and what `whole` makes of them. Raises NotJson where it is none."""
    if not text.startswith("["):
        raise NotJson("it is not an array")
    at = after_space(text, 1)
    if text[at : at + 1] == "]" and at + 1 == len(text):
        return
    while True:
        value, end = scanned(text, at)
        yield text[at:end], value
        at = after_space(text, end)
        sign, at = text[at : at + 1], after_space(text, at + 1)
        if sign == "]" and at == len(text):
            return
        if sign != ",":
            raise NotJson(f"expected ',' or ']' at character {end}")


def after_space(text: str, at: int) -> int:
    """The first place from `at` on that is no space."""
    match = SPACE.match(text, at)
    return match.end() if match else at
