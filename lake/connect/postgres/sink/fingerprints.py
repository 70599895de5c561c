"""PostgreSQL's SQL of a row's hash, as specified by docs/fingerprints.md.

The functions on that page are easier to read. Inlined as here, PostgreSQL computes them twenty times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lake.connect.postgres.sink.values import JSON, pg_type
from lake.store.proof.fingerprints import MODULUS
from lake.text import literal, quoted

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
WRITTEN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("VARCHAR", JSON), "octet_length({x}::text) || ':' || {x}::text"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), DOUBLE),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ"), MICROSECONDS),
    "BLOB": "upper(encode({x}, 'hex'))",
    "DATE": "({x} - date '1970-01-01')",
}
"""SQL of a value's text by DuckDB's type; other types use PostgreSQL's own text."""


def row_hash(columns: Mapping[str, str]) -> str:
    """Return SQL of the hash of a row with columns {name: DuckDB's type}, as a bigint."""
    named = ", ".join(_named(name, columns[name]) for name in sorted(columns))
    return f"('x' || left(md5(convert_to(concat({named}), 'UTF8')), 16))::bit(64)::bigint"


def fingerprint(columns: Mapping[str, str], table: str) -> str:
    """Return a query of the fingerprint of a table."""
    sums = f"SELECT count(*) AS rows, coalesce(sum({row_hash(columns)}), 0) AS total FROM {table}"
    signed = f"(total - {MODULUS} * floor((total + {HALF}) / {MODULUS}))::bigint"
    return f"SELECT rows || '-' || lpad(to_hex({signed}), 16, '0') FROM ({sums}) t"


def _named(name: str, kind: str) -> str:
    prefix = literal(f"{len(name.encode())}:{name}=")
    return f"coalesce({prefix} || {_encoded(quoted(name), kind)}, '')"


def _encoded(value: str, kind: str) -> str:
    held = pg_type(kind)
    if held == JSON:
        return f"({WRITTEN[JSON].format(x=value)} || ';')"
    if held.endswith("[]"):
        items = f"string_agg(coalesce({_encoded('x', kind.removesuffix('[]'))}, '~'), '' ORDER BY place)"
        listed = f"(SELECT '[' || coalesce({items}, '') || ']' FROM unnest({value}) WITH ORDINALITY AS u(x, place))"
        return f"CASE WHEN {value} IS NOT NULL THEN {listed} END"
    return f"({WRITTEN.get(kind, '{x}::text').format(x=value)} || ';')"
