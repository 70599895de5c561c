"""Values for PostgreSQL: its type for each DuckDB type, the text of a value, and what it cannot store.

Structs, maps and arrays of arrays are `json`, in which decimals, floats, times and bytes are strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from lake.quoting import literal, quoted
from lake.store.snapshot import Column

TYPES: Final[Mapping[str, str]] = {
    "VARCHAR": "text",
    "BIGINT": "bigint",
    "INTEGER": "integer",
    "SMALLINT": "smallint",
    "TINYINT": "smallint",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "BOOLEAN": "boolean",
    "BLOB": "bytea",
    "DATE": "date",
    "TIMESTAMPTZ": "timestamp with time zone",
    "TIMESTAMP": "timestamp without time zone",
}
JSON: Final = "json"
LONGEST_KEY: Final = 2600
"""Bytes of a key. An index entry may have 2,704, including its own overhead."""
LAST_DATE: Final = "5874897-12-31"
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)", re.I)
_AS_TEXT: Final = re.compile(r"DECIMAL\(\d+,\s*\d+\)|TIMESTAMPTZ|TIMESTAMP|DATE|BLOB|DOUBLE|FLOAT", re.I)


def pg_type(kind: str) -> str:
    """Return PostgreSQL's type for a DuckDB type."""
    if decimal := _DECIMAL.fullmatch(kind):
        return f"numeric({decimal[1]},{decimal[2]})"
    if kind in TYPES:
        return TYPES[kind]
    element = kind.removesuffix("[]")
    return f"{pg_type(element)}[]" if element != kind and pg_type(element) != JSON and "[" not in element else JSON


def stored_as(column: Column) -> str:
    """Return DuckDB's SQL of the stored value of a column: itself, or the text of its JSON."""
    name = quoted(column.name)
    return json_text(name, column.type) if pg_type(column.type) == JSON else name


def json_text(value: str, kind: str) -> str:
    """Return DuckDB's SQL of a nested value as lossless JSON: decimals, times, bytes and floats are strings."""
    return f"to_json(CAST({value} AS {_AS_TEXT.sub('VARCHAR', kind)}))::VARCHAR"


def text(value: str, kind: str) -> str:
    """Return DuckDB's SQL of a value's text for COPY."""
    to = pg_type(kind)
    if to == JSON:
        return json_text(value, kind)
    if to.endswith("[]"):
        return _array(value, kind.removesuffix("[]"))
    return _simple(value, kind)


def _simple(value: str, kind: str) -> str:
    if kind == "BLOB":
        return f"'\\x' || lower(hex({value}))"
    if kind in {"DATE", "TIMESTAMP", "TIMESTAMPTZ"}:
        return f"replace(({value})::VARCHAR, '(BC)', 'BC')"
    return f"({value})::VARCHAR"


def _array(value: str, element: str) -> str:
    inner = _simple("x", element)
    escaped = f"replace(replace({inner}, '\\', '\\\\'), '\"', '\\\"')"
    each = f"CASE WHEN x IS NULL THEN 'NULL' ELSE '\"' || {escaped} || '\"' END"
    return f"'{{' || array_to_string(list_transform({value}, lambda x: {each}), ',') || '}}'"


def reason(columns: Sequence[Column], identity: Sequence[str], row: str) -> str:
    """Return DuckDB's SQL of why PostgreSQL cannot store the struct `row`; null if it can."""
    cases = []
    for column in columns:
        value, kind = f"{row}.{quoted(column.name)}", column.type
        if kind.removesuffix("[]") == "VARCHAR":
            what = f"{column.name} has the character NUL"
            cases.append(f"WHEN contains({text(value, kind)}, chr(0)) THEN {literal(what)}")
        elif kind.removesuffix("[]") == "DATE":
            values = value if kind == "DATE" else f"list_max({value})"
            what = f"{column.name} is after {LAST_DATE}"
            cases.append(f"WHEN {values} > DATE '{LAST_DATE}' THEN {literal(what)}")
    kinds = {column.name: column.type for column in columns}
    sizes = " + ".join(f"coalesce(strlen({text(f'{row}.{quoted(c)}', kinds[c])}), 0)" for c in identity)
    what = f"its key is longer than {LONGEST_KEY:,} bytes, which no index takes"
    cases.append(f"WHEN {sizes} > {LONGEST_KEY} THEN {literal(what)}")
    return f"CASE {' '.join(cases)} END"
