"""The JSON of a value that PostgreSQL has written as text: what a contract reads without loss.

The texts are those of a session with SETTINGS. Numbers keep their digits, times are ISO 8601 (UTC where they have a
zone), bytes are base64, arrays are arrays; json, intervals, times of day, enums and all others are texts. What JSON or
ISO 8601 cannot say (NaN, infinity, years before 1 or after 9999) stays the text that PostgreSQL writes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Final, NamedTuple, TypeAlias

SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "timezone": "UTC",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
}

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value that an update left as it was, and that is not sent."""

Write: TypeAlias = Callable[[str], str]

# Numbers of types that are built in (pg_type.dat).
BOOL, BYTEA, TIMESTAMP, TIMESTAMPTZ = 16, 17, 1114, 1184
NUMBERS: Final = (20, 21, 23, 26, 700, 701, 1700)  # int8, int2, int4, oid, float4, float8, numeric

_TOKENS: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([{}])|([^{},]+)|(,)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class Codec(NamedTuple):
    """How the text of a type's value becomes JSON, and the JSON of its PLACEHOLDER."""

    write: Write
    placeholder: str


class Declared(NamedTuple):
    """What pg_type says of a type: the type that it is a domain of, or an array of; 0 where it is neither.

    An array whose items are not parted by commas, as those of boxes, counts as a text.
    """

    id: int
    base: int
    element: int


def codec(number: int, declared: Mapping[int, Declared]) -> Codec:
    """How values of the type with this number are written; domains and arrays are looked up in `declared`."""
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
    """An array's text is {1,NULL,"a \\"b\\""}, after its bounds, [0:1]=, where they do not begin with 1."""

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


_NOTHING: Final = encode_basestring(PLACEHOLDER)
TEXT: Final = Codec(encode_basestring, _NOTHING)
BUILT_IN: Final[Mapping[int, Codec]] = {
    BOOL: Codec(_boolean, _NOTHING),
    BYTEA: Codec(_bytes, f'"{b64encode(PLACEHOLDER.encode()).decode()}"'),
    TIMESTAMP: Codec(_timestamp, _NOTHING),
    TIMESTAMPTZ: Codec(_timestamptz, _NOTHING),
    **dict.fromkeys(NUMBERS, Codec(_number, _NOTHING)),
}
