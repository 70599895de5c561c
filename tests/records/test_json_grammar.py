"""Grammar of RFC 8259, one character at a time, compared with the reader on generated texts."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Final

import pytest

from lake.records.json_value import Decoder
from tests.records.stated import REFUSED, Walk, of_text

TOKENS: Final = (
    *("1", "0", "-", "+", ".", "e", "E", "12", "-0", "1.5e-3", "x", "true", "false", "null", "nul", "True", "NaN"),
    *("[", "]", "{", "}", ":", ",", '"', '"a"', '"b":', '""', "'", "\\", "\\u", "\\n", "\\x", "\\U0041", "00e9"),
    *("D834", "\\ud834\\udd1e", "\\uDD1E", "\\uFFFF", "\\/", " ", "\n", "\t", "\r", "\x0c", "\0", "\x7f", "\x85"),
    *("\u00a0", "\u2028", "\ufeff", "\uff11", "\u0661", "é", "\U0001f600", "/*a*/", "//", "#", "0x1", "Infinity"),
    *("[1,2]", '{"a":1}', "[[]]"),
)
ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
BASES: Final = (
    "[1,2]",
    '{"b":[],"c":{"d":"\\u00e9"}}',
    '"\\ud834\\udd1e"',
    "-1.50E+10",
    "[null,true,false]",
    '"a/*b*/"',
)


class NoJsonError(ValueError):
    pass


def value(walk: Walk) -> None:
    """Skip a value. Raise NoJsonError if there is none."""
    if walk.one_of("["):
        items(walk, "]", value)
    elif walk.one_of("{"):
        names: list[str] = []
        items(walk, "}", lambda member: names.append(name(member)))
        if len({*names}) < len(names):
            raise NoJsonError
    elif walk.one_of('"'):
        string(walk)
    elif word := next((word for word in ("true", "false", "null") if walk.rest.startswith(word)), ""):
        walk.at += len(word)
    else:
        number(walk)


def items(walk: Walk, end: str, item: object) -> None:
    assert callable(item)
    blanks(walk)
    if walk.one_of(end):
        return
    while True:
        blanks(walk)
        item(walk)
        blanks(walk)
        if walk.one_of(end):
            return
        if not walk.one_of(","):
            raise NoJsonError


def name(walk: Walk) -> str:
    if not walk.one_of('"'):
        raise NoJsonError
    found = string(walk)
    blanks(walk)
    if not walk.one_of(":"):
        raise NoJsonError
    blanks(walk)
    value(walk)
    return found


def string(walk: Walk) -> str:
    """Return the text up to a closing quote, which must be a valid text of the lake."""
    found = ""
    while not walk.one_of('"'):
        if walk.one_of("\\"):
            if walk.one_of("u"):
                code = walk.rest[:4]
                if len(code) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in code):
                    raise NoJsonError
                found, walk.at = found + chr(int(code, 16)), walk.at + 4
            else:
                found += ESCAPES.get(walk.one_of("".join(ESCAPES))) or none()
        else:
            found += walk.rest[:1] if walk.rest[:1] >= " " else none()
            walk.at += 1
    paired = found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\ufffd" in paired or of_text("string", paired) is REFUSED:
        raise NoJsonError
    return paired


def none() -> str:
    raise NoJsonError


def number(walk: Walk) -> None:
    walk.one_of("-")
    if not walk.one_of("0") and not walk.digits(1, 99):
        raise NoJsonError
    if walk.one_of(".") and not walk.digits(1, 99):
        raise NoJsonError
    if walk.one_of("eE"):
        walk.one_of("+-")
        if not walk.digits(1, 99):
            raise NoJsonError


def blanks(walk: Walk) -> None:
    while walk.one_of(" \t\n\r"):
        pass


def is_record(text: str) -> bool:
    walk = Walk(text)
    with suppress(NoJsonError):
        blanks(walk)
        is_object = walk.rest.startswith("{")
        value(walk)
        blanks(walk)
        return is_object and not walk.rest
    return False


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_json_record_is_read_if_it_follows_the_grammar(seed: int) -> None:
    chance = random.Random(seed)
    texts = ['{"a":' + "".join(chance.choices(TOKENS, k=chance.randrange(1, 6))) + "}" for _ in range(4000)]
    for base in BASES:
        for at in range(len(base) + 1):
            texts += [f'{{"a":{base[:at]}{token}{base[at + cut :]}}}' for token in TOKENS for cut in (0, 1)]
    broken = Decoder(("a",)).decode([text.encode() for text in texts]).broken
    wrong = [text for index, text in enumerate(texts) if (index not in broken) != is_record(text)]
    assert not wrong
    assert 500 < len(broken) < len(texts) - 500
