"""SQL types of a state's fields as Arrow types, without a session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.IGNORECASE)
NESTED: Final = re.compile(r"(array|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
FIELD: Final = re.compile(r"(`[^`]+`|\w+)\s*(?::|\s)\s*(.+)", re.DOTALL)


def arrow_type(sql: str) -> pa.DataType:
    """Return the Arrow type of "decimal(9, 2)" or "array<struct<x: int>>". Raises ValueError for others."""
    text = sql.strip()
    if text.lower() in PLAIN:
        return PLAIN[text.lower()]
    if digits := DECIMAL.fullmatch(text):
        return pa.decimal128(int(digits[1] or 10), int(digits[2] or 0))
    if (nested := NESTED.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a type that is known here")
    if nested[1].lower() == "array":
        return pa.list_(pa.field("element", arrow_type(nested[2])))
    return pa.struct([_arrow_field(part) for part in parts(nested[2])])


def _arrow_field(text: str) -> pa.Field:
    if (named := FIELD.fullmatch(text.strip())) is None:
        raise ValueError(f"{text.strip()!r} is not a field with its type")
    return pa.field(named[1].strip("`"), arrow_type(named[2]))


def parts(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    found, depth = [""], 0
    for char in text:
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return found
