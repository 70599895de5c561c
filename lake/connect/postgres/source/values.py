"""Lossless JSON of values that PostgreSQL wrote as text, in a session with FORMATS.

Numbers keep their digits, times are ISO 8601 (UTC if they have a zone), bytes are base64, arrays are arrays. All other
types are strings, and so are values without a JSON or ISO 8601 form (NaN, infinity, years before 1 or after 9999).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Final, NamedTuple, TypeAlias

from lake.connect.postgres.connection import SETTINGS

FORMATS: Final[Mapping[str, str]] = {
    **SETTINGS,
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "xmloption": "content",
}

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's value for a large column that an update did not change."""

Write: TypeAlias = Callable[[str], str]

# OIDs of built-in types (pg_type.dat).
BOOL, BYTEA, TIMESTAMP, TIMESTAMPTZ = 16, 17, 1114, 1184
NUMBERS: Final = (20, 21, 23, 26, 700, 701, 1700)  # int8, int2, int4, oid, float4, float8, numeric

_TOKENS: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([{}])|([^{},]+)|(,)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class Codec(NamedTuple):
    write: Write
    placeholder: str


class PgType(NamedTuple):
    """`base` type of a domain, and `element` type of an array; else 0.

    An array whose delimiter is not a comma, such as box[], counts as text.
    """

    id: int
    base: int
    element: int


def codec(number: int, declared: Mapping[int, PgType]) -> Codec:
    if number in BUILT_IN:
        return BUILT_IN[number]
    kind = declared.get(number)
    if kind is None:
        return TEXT
    if kind.base:
        return codec(kind.base, declared)
    if kind.element:
        element = codec(kind.element, declared)
        return Codec(_array(element.write), f"[{element.placeholder}]")
    return TEXT


def _number(text: str) -> str:
    return encode_basestring(text) if text[-1] in "yN" else text  # Infinity, NaN


def _boolean(text: str) -> str:
    return "true" if text == "t" else "false"


def _bytes(text: str) -> str:
    return f'"{b64encode(bytes.fromhex(text[2:])).decode()}"'


def _timestamp(text: str) -> str:
    if text[10:11] == " " and not text.endswith("C"):  # BC
        return f'"{text[:10]}T{text[11:]}"'
    return encode_basestring(text)


def _timestamptz(text: str) -> str:
    if text[10:11] == " " and text.endswith("+00"):
        return f'"{text[:10]}T{text[11:-3]}Z"'
    return encode_basestring(text)


def _array(element: Write) -> Write:
    def write(text: str) -> str:
        parts = []
        for quoted, brace, plain, comma in _TOKENS.findall(text, text.index("{")):
            if brace:
                parts.append("[" if brace == "{" else "]")
            elif plain:
                parts.append("null" if plain.upper() == "NULL" else element(plain))
            elif comma:
                parts.append(comma)
            else:
                parts.append(element(_ESCAPED.sub(r"\1", quoted)))
        return "".join(parts)

    return write


_TEXT_PLACEHOLDER: Final = encode_basestring(PLACEHOLDER)
TEXT: Final = Codec(encode_basestring, _TEXT_PLACEHOLDER)
BUILT_IN: Final[Mapping[int, Codec]] = {
    BOOL: Codec(_boolean, _TEXT_PLACEHOLDER),
    BYTEA: Codec(_bytes, f'"{b64encode(PLACEHOLDER.encode()).decode()}"'),
    TIMESTAMP: Codec(_timestamp, _TEXT_PLACEHOLDER),
    TIMESTAMPTZ: Codec(_timestamptz, _TEXT_PLACEHOLDER),
    **dict.fromkeys(NUMBERS, Codec(_number, _TEXT_PLACEHOLDER)),
}
