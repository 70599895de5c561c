"""Parts of a JSON text as they are written: numbers keep all their digits, as contracts read them from text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

SPACE: Final = re.compile(r"[ \t\r\n]*")
SPACES: Final = " \t\r\n"


class NotJson(ValueError):
    """What is wrong with a text."""


def _constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


_SCAN: Final = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_constant)
"""Which makes nothing of numbers: they may be of any length."""


def scanned(text: str, at: int = 0) -> tuple[Any, int]:
    """The value that begins at a place, its numbers made nothing of, and where it ends. Raises NotJson."""
    try:
        return _SCAN.raw_decode(text, at)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at character {error.pos}") from None


def whole(text: str) -> Any:
    """The one value that a text without spaces around is, its numbers made nothing of. Raises NotJson."""
    value, end = scanned(text)
    if end != len(text):
        raise NotJson(f"Extra data at character {end}")
    return value


def members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object that `whole` reads: name, and the value's text."""
    at = after_space(text, 1)
    while text[at] != "}":
        name, at = scanned(text, at)
        at = after_space(text, after_space(text, at) + 1)
        _, end = scanned(text, at)
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
