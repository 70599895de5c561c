"""Generated records of a contract: regular values, and values in every odd notation."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from tests.shop import optional

KIND: Final = {"type": "enum", "name": "kind", "symbols": ["a", "b"]}


def may(kind: Any, **more: Any) -> Any:
    of, default = optional(kind)
    return of, {**default, **more}


FIELDS: Final = {
    "id": "long",
    "name": "string",
    "text": "string?",
    "only": may("string", text_only=True),
    "kind": may(KIND),
    "flag": "boolean?",
    "small": may("int", minimum=-5, maximum=100),
    "amount": "decimal(9, 2)?",
    "wide": "decimal(38, 10)?",
    "near": may("decimal(5, 3)", minimum="-1.2345", maximum=7.5),
    "ratio": may("double", minimum=-1e300, maximum=1e300),
    "day": may("date", minimum="1900-01-01"),
    "at": "timestamp?",
    "local": may({"type": "long", "logicalType": "local-timestamp-micros"}),
    "raw": "bytes?",
    "count": ("int", {"default": 7}),
    "said": (["string", "null"], {"default": "unsaid", "aliases": ["told"]}),
    "request": ("string", {"from": "http.id"}),
    "received": may("timestamp", **{"from": "http.received"}),
}
TEXTS: Final = (
    *("", "a", "b", "A", " a ", "7", "1.50", "null", "true", "{}", "}", '"', "\\", "\\ud83d", "\u2028", "ünï"),
    *("\U0001f600", "\x7f", "\t", "a\nb", "\uffff", "\ufffe", "\x00", "\u0085", "x" * 300, "-", "+1", "1e5", "NaN"),
)
PLAIN_NUMBERS: Final = """
    0 -0 7 -5 100 101 -6 1.5 1.50 -1.234 -1.2345 7.5 7.501 0.001 1e2 1E+2 1e-2 1.0 19.90 9999999.99 10000000
    9223372036854775807 -9223372036854775808 2147483648 0.1 1e308 1e309 -1e301 5e-324 1e-400 01 1. .5 +1
    1_000 0.30000000000000004 123456789.123456789 -0.00 0.0000000001 0.00000000001 Infinity NaN 0x1F
"""
NUMBERS: Final = (
    *PLAIN_NUMBERS.split(),
    *("9" * 19, "9" * 28 + ".0123456789", "9" * 29),
)
PLAIN_TIMES: Final = """
    2024-02-29 2023-02-29 1899-12-31 0001-01-01 9999-12-31 10000-01-01 2024-3-1 20240301 19782 1582-10-10
    2024-03-01T12:00:00Z 2024-03-01T12:00:00 2024-03-01T12:00:00.5Z 2024-W09-5 2024-03-01T12:00:00.123456Z
    2024-03-01T12:00:00.1234567Z 2024-03-01T12:00:00+02:00 2024-03-01T12:00Z 2024-03-01T12:00:00-17:59
    2024-03-01T12:00:00+18:00 2024-03-01T12:00:00+19:00 2024-03-01T24:00:00Z 0001-01-01T00:00:00+01:00
    9999-12-31T23:59:59.999999Z 9999-12-31T23:59:59-01:00 2024-03-01T12:60:00Z 1582-10-10T00:00:00Z
    2024-03-01T12:00:60Z 1883-11-18T12:03:57.5 2024-03-01T12:00:00+02 2024-03-01T12:00:00.123
    2024-03-01t12:00:00z 2024-03-01T12:00:00,5Z 2024-03-01T12:00:00+0200 0000-01-01 0000-01-01T00:00:00Z
"""
TIMES: Final = (
    *PLAIN_TIMES.split(),
    "2024-03-01 12:00:00Z",
)
BASE64: Final = ["", "YQ==", "YQ", "YR==", "YWJj", "YWJ j", "-_==", "!!!!", "Y", "YWJjZA==\n"]


def text_of(chance: random.Random, kind: str) -> str:
    """Return the JSON text of a value: mostly of the kind, else anything."""
    quoted = [json.dumps(each, ensure_ascii=chance.random() < 0.5) for each in (*TEXTS, *NUMBERS, *TIMES, *BASE64)]
    of = {
        "string": [json.dumps(each) for each in TEXTS],
        "number": [*NUMBERS, str(chance.randrange(-(10**6), 10**6) / 1000), str(chance.randrange(-5, 101))],
        "time": [json.dumps(each) for each in TIMES],
        "bytes": [json.dumps(each) for each in BASE64],
        "boolean": ["true", "false"],
        "digits": [f'"{each}"' for each in NUMBERS],
    }[kind]
    odd = [*quoted, *NUMBERS, "true", "null", "{}", "[1]", '{"a": 1.50}', "nul", '"\\ud800"', '"\\u0000"', '"\\uFFFF"']
    return chance.choice(of) if chance.random() < 0.93 else chance.choice(odd)


KINDS: Final = {
    **dict.fromkeys(("name", "text", "only", "said", "told"), "string"),
    **dict.fromkeys(("id", "small", "ratio", "count"), "number"),
    **dict.fromkeys(("day", "at", "local"), "time"),
    "raw": "bytes",
    "flag": "boolean",
}


def record(chance: random.Random) -> str:
    """Return a record of a few fields; any record has two of them."""
    names = ["id", "name", *chance.sample([*KINDS, "amount", "wide", "near", "kind"], chance.randrange(4))]
    if chance.random() < 0.95:
        names = [*dict.fromkeys(names)]
    if chance.random() < 0.05:
        names.remove("name")
    parts = []
    for name in names:
        if name == "kind":
            value = chance.choice(['"a"', '"b"', '"c"', "1"])
        elif name in {"id", "name"} and chance.random() < 0.9:
            value = str(chance.randrange(1000)) if name == "id" else '"n"'
        else:
            value = text_of(chance, KINDS.get(name) or chance.choice(["number", "digits"]))
        parts.append(f"{json.dumps(name)}:{chance.choice(['', ' '])}{value}")
    if chance.random() < 0.03:
        parts.append(chance.choice(['"more": 1', '"Name": "x"', '"": 1', '"id"']))
    text = "{" + chance.choice([",", ", "]).join(parts) + "}"
    return (
        text
        if chance.random() < 0.98
        else chance.choice([text[:-1], text + "}", text + " ", "[" + text + "]", text * 2])
    )
