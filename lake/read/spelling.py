"""How DuckDB spells a value of any type: as text, and as JSON that loses nothing.

Python is not asked, as it has no infinite date, no year 10000 and no interval of a month, and takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from duckdb.sqltypes import DuckDBPyType

from lake.quoting import literal

_SIZES: Final = ("tinyint", "smallint", "integer", "bigint", "hugeint")
INTEGERS: Final = frozenset({*_SIZES, *(f"u{size}" for size in _SIZES)})
FLOATS: Final = frozenset({"float", "double"})
EACH: Final = "each"
"""What a lambda calls its value. One inside another means its own."""
NUMBERS: Final = INTEGERS | FLOATS | {"decimal", "bignum"}


def as_text(kind: DuckDBPyType, value: str) -> str:
    """SQL of the text of `value`, an SQL expression of type `kind`: decimals exact, instants in UTC, nested as JSON."""
    if kind.id in _NESTED:
        return f"CAST({as_json(kind, value)} AS VARCHAR)"
    match kind.id:
        case "blob":
            return f"lower(hex({value}))"
        case "timestamp" | "timestamp_s" | "timestamp_ms":
            return _instant(f"CAST({value} AS TIMESTAMP)", f"CAST({value} AS TIMESTAMP)", "")
        case "timestamp_ns":
            return f"replace(CAST({value} AS VARCHAR), ' ', 'T')"
        case "timestamp with time zone":
            return _instant(value, f"({value} AT TIME ZONE 'UTC')", "Z")
    return f"CAST({value} AS VARCHAR)"


def as_json(kind: DuckDBPyType, value: str) -> str:
    """SQL of `value` as JSON: decimals are strings, as no reader rounds them, and so is what JSON has no word for."""
    if spell := _NESTED.get(kind.id):
        return f"CASE WHEN {value} IS NOT NULL THEN {spell(kind, value)} END"
    if kind.id in INTEGERS or kind.id == "boolean":
        return f"to_json({value})"
    if kind.id in FLOATS:
        return f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json(CAST({value} AS VARCHAR)) END"
    return f"to_json({as_text(kind, value)})"


def as_object(names: Iterable[str], kinds: Iterable[DuckDBPyType], values: Iterable[str]) -> str:
    """SQL of one JSON object of `values`, which are SQL expressions."""
    pairs = (f"{literal(name)}, {as_json(kind, value)}" for name, kind, value in zip(names, kinds, values, strict=True))
    return f"json_object({', '.join(pairs)})"


def _instant(value: str, local: str, zone: str) -> str:
    """ISO 8601, microseconds where there are any. Before the year 1, and without end, as DuckDB has it."""
    return (
        f"CASE WHEN {value} IS NULL OR NOT isfinite({value}) OR year({local}) < 1 THEN CAST({value} AS VARCHAR) "
        f"WHEN epoch_us({value}) % 1000000 = 0 THEN replace(CAST({local} AS VARCHAR), ' ', 'T') || '{zone}' "
        f"ELSE strftime({local}, '%Y-%m-%dT%H:%M:%S.%f{zone}') END"
    )


def _list(kind: DuckDBPyType, value: str) -> str:
    [held, *_] = _held(kind)
    return f"to_json(list_transform({value}, lambda {EACH}: {as_json(held, EACH)}))"


def _struct(kind: DuckDBPyType, value: str) -> str:
    kinds = _held(kind)
    values = [f"struct_extract_at({value}, {i + 1})" for i in range(len(kinds))]
    return as_object([name for name, _ in kind.children], kinds, values)


def _map(kind: DuckDBPyType, value: str) -> str:
    key, held = _held(kind)
    entry = f"{{'key': {as_text(key, f'{EACH}.key')}, 'value': {as_json(held, f'{EACH}.value')}}}"
    return f"to_json(map_from_entries(list_transform(map_entries({value}), lambda {EACH}: {entry})))"


def _held(kind: DuckDBPyType) -> list[DuckDBPyType]:
    """The types of what a nested value holds."""
    return [child for _, child in kind.children if isinstance(child, DuckDBPyType)]


_NESTED: Final[dict[str, Callable[[DuckDBPyType, str], str]]] = {
    "list": _list,
    "array": _list,
    "struct": _struct,
    "map": _map,
}
