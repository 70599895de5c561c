"""Values for PostgreSQL: types, texts, values it cannot store, and hashes of rows.

Structs, maps and arrays of arrays are `json`. The hashes are those of docs/fingerprints.md, as inlined SQL: PostgreSQL
computes it twenty times as fast as SQL functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from lake.store.proof.fingerprints import MODULUS
from lake.store.snapshot import Column
from lake.text import literal, quoted

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
"""In bytes. An index entry may have 2,704, with its overhead."""
LAST_DATE: Final = "5874897-12-31"
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)", re.I)
_AS_TEXT: Final = re.compile(r"DECIMAL\(\d+,\s*\d+\)|TIMESTAMPTZ|TIMESTAMP|DATE|BLOB|DOUBLE|FLOAT", re.I)
HALF: Final = MODULUS // 2
MICROSECONDS: Final = "(extract(epoch from {x}) * 1000000)::bigint"
# Bits of a double: sign, exponent, and 52 of its significand, which is divided by two until it is odd.
DOUBLE: Final = """(
    select case
        when v is null then null
        when v = 'NaN' then 'nan'
        when abs(v) = 'Infinity' then case when v < 0 then '-inf' else 'inf' end
        when v = 0 then '0'
        else case when v < 0 then '-' else '' end
            || (significand >> zeros) || 'b' || (greatest(exponent, 1) - 1075 + zeros)
        end
    from (select ({x})::double precision as v) as of_value,
        lateral (select ('x' || encode(float8send(v), 'hex'))::bit(64) as bits) as sent,
        lateral (select substring(bits from 2 for 11)::integer as exponent) as e,
        lateral (select substring(bits from 13)::bigint + case when exponent > 0 then 1::bigint << 52 else 0 end
            as significand) as s,
        lateral (select length(bits_of) - length(rtrim(bits_of, '0')) as zeros
            from (select significand::bit(64)::text as bits_of) as t) as z
)"""
HASHED_TEXT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("VARCHAR", JSON), "octet_length({x}::text) || ':' || {x}::text"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), DOUBLE),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ"), MICROSECONDS),
    "BLOB": "upper(encode({x}, 'hex'))",
    "DATE": "({x} - date '1970-01-01')",
}
"""SQL of a value's text by DuckDB's type; other types use PostgreSQL's own text."""


def pg_type(kind: str) -> str:
    if decimal := _DECIMAL.fullmatch(kind):
        return f"numeric({decimal[1]},{decimal[2]})"
    if kind in TYPES:
        return TYPES[kind]
    element = kind.removesuffix("[]")
    return f"{pg_type(element)}[]" if element != kind and pg_type(element) != JSON and "[" not in element else JSON


def stored_as(column: Column) -> str:
    name = quoted(column.name)
    return json_text(name, column.type) if pg_type(column.type) == JSON else name


def json_text(value: str, kind: str) -> str:
    return f"to_json(CAST({value} AS {_AS_TEXT.sub('VARCHAR', kind)}))::VARCHAR"


def text(value: str, kind: str) -> str:
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
    """Return DuckDB SQL of the reason why PostgreSQL cannot store the struct `row`; null if it can."""
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


def row_hash(columns: Mapping[str, str]) -> str:
    """Return SQL of a row's hash, a bigint, by columns {name: DuckDB's type}."""
    texts = ", ".join(_hashed_column(name, columns[name]) for name in sorted(columns))
    return f"('x' || left(md5(convert_to(concat({texts}), 'UTF8')), 16))::bit(64)::bigint"


def fingerprint(columns: Mapping[str, str], table: str) -> str:
    sums = f"SELECT count(*) AS rows, coalesce(sum({row_hash(columns)}), 0) AS total FROM {table}"
    signed = f"(total - {MODULUS} * floor((total + {HALF}) / {MODULUS}))::bigint"
    return f"SELECT rows || '-' || lpad(to_hex({signed}), 16, '0') FROM ({sums}) t"


def _hashed_column(name: str, kind: str) -> str:
    prefix = literal(f"{len(name.encode())}:{name}=")
    return f"coalesce({prefix} || {_hashed_text(quoted(name), kind)}, '')"


def _hashed_text(value: str, kind: str) -> str:
    stored_type = pg_type(kind)
    if stored_type == JSON:
        return f"({HASHED_TEXT[JSON].format(x=value)} || ';')"
    if stored_type.endswith("[]"):
        items = f"string_agg(coalesce({_hashed_text('x', kind.removesuffix('[]'))}, '~'), '' ORDER BY place)"
        listed = f"(SELECT '[' || coalesce({items}, '') || ']' FROM unnest({value}) WITH ORDINALITY AS u(x, place))"
        return f"CASE WHEN {value} IS NOT NULL THEN {listed} END"
    return f"({HASHED_TEXT.get(kind, '{x}::text').format(x=value)} || ';')"
