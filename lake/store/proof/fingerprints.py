"""Fingerprint of rows: a number that Spark and DuckDB compute alike, independent of files and order.

docs/fingerprints.md computes it by PostgreSQL too.

The hash of a row is the first 64 bits of the MD5 (RFC 1321) of its text. The fingerprint of rows is their number and
the sum of their hashes modulo 2^64: added rows are added, removed ones subtracted.

The text of a row has its columns in the order of their names, each as `4:name=` and its value; nothing for a null. So a
column added later, null in older rows, leaves their fingerprint unchanged. Values end in `;`:

    boolean                 true or false
    whole numbers           their digits
    decimal                 with all digits of its scale, never an exponent
    float and double        exactly, as an odd whole number and a power of two: 0.75 is 3b-2; one zero, one nan
    date, timestamps        days, microseconds since 1970-01-01 00:00 UTC (PostgreSQL calls the latter microseconds too)
    string                  its length in bytes of UTF-8, a colon, itself (as netstrings have it, D. J. Bernstein 1997)
    binary                  in hexadecimal digits
    struct                  {fields as columns are}, array [values, ~ for null], map <key=value pairs in their order>
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lake.lazy import pa
from lake.store import delta, duckdb_tables
from lake.store.duckdb_tables import TableFiles
from lake.store.snapshot import duckdb_type
from lake.store.storage import Address
from lake.text import DUCKDB, SPARK, literal, quoted

if TYPE_CHECKING:
    import duckdb

Kind = str | Mapping[str, Any]
Field = tuple[str, Kind]
MODULUS: Final = 1 << 64
KEY: Final = "content_key"
SAMPLED_ROWS: Final = 1000
BITS: Final = 53
"""Significand of a double; floats are handled as doubles."""


@dataclass(frozen=True)
class Fingerprint:
    rows: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows + other.rows, (self.total + other.total) % MODULUS)

    def __sub__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.rows - other.rows, (self.total - other.total) % MODULUS)

    def __str__(self) -> str:
        return f"{self.rows}-{self.total:016x}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        rows, _, total = text.partition("-")
        return cls(int(rows), int(total, 16))


def _text(x: str) -> str:
    return f"cast({x} AS string)"


def _double(x: str) -> str:
    return f"cast({x} AS double)"


@dataclass(frozen=True)
class _Dialect:
    quote: str
    size: Callable[[str], str]
    micros: Callable[[str], str]
    days: Callable[[str], str]
    div: Callable[[str, str], str]
    field: Callable[[str, str], str]
    each: Callable[[str, str, str], str]
    joined: Callable[[str], str]
    hashed: Callable[[str], str]
    decimal: Callable[[str, str], str]


def _plain_decimal(value: str, kind: str) -> str:
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    text = f"{value}::VARCHAR"
    if int(precision) != int(scale):
        return text
    return f"CASE WHEN {value} < 0 THEN '-0' || substr({text}, 2) ELSE '0' || {text} END"


SPARKS: Final = _Dialect(
    quote=SPARK,
    size=lambda x: f"cast(octet_length({x}) AS string)",
    micros=lambda x: f"cast(unix_micros(cast({x} AS timestamp)) AS string)",
    days=lambda x: f"cast(unix_date({x}) AS string)",
    div=lambda x, y: f"({x} div {y})",
    field=lambda x, name: f"{x}.{quoted(name, SPARK)}",
    each=lambda x, v, body: f"transform({x}, {v} -> {body})",
    joined=lambda x: f"array_join({x}, '')",
    hashed=lambda x: f"cast(conv(left(md5(encode({x}, 'UTF-8')), 16), 16, 10) AS decimal(20, 0))",
    decimal=lambda x, _: f"cast({x} AS string)",
)
DUCK: Final = _Dialect(
    quote=DUCKDB,
    size=lambda x: f"strlen({x})::VARCHAR",
    micros=lambda x: f"epoch_us({x})::VARCHAR",
    days=lambda x: f"date_diff('day', DATE '1970-01-01', {x})::VARCHAR",
    div=lambda x, y: f"({x} // {y})",
    field=lambda x, name: f"struct_extract({x}, {literal(name)})",
    each=lambda x, v, body: f"list_transform({x}, lambda {v}: {body})",
    joined=lambda x: f"array_to_string({x}, '')",
    hashed=lambda x: f"('0x' || substr(md5({x}), 1, 16))::UBIGINT",
    decimal=_plain_decimal,
)


def fields_of(schema: pa.Schema) -> list[Field]:
    from deltalake import Schema

    return fields_of_json(Schema.from_arrow(schema).to_json())


def fields_of_json(schema: str) -> list[Field]:
    return [(field["name"], field["type"]) for field in json.loads(schema)["fields"]]


def row_text(fields: Sequence[Field], dialect: _Dialect, key: str = "''", filled: Collection[str] = ()) -> str:
    """Return SQL of the text of a row; a secret `key` before it hides which value has which hash.

    Rows without a null in the columns `filled` cost a sixth less. It is the text of all rows whatever these are.
    """

    def text(without_nulls: Collection[str]) -> str:
        parts = [key]
        for name, kind in sorted(fields):
            value = quoted(name, dialect.quote)
            if name in without_nulls:
                parts += [_prefix(name, dialect), *_parts(kind, value, dialect, 0)]
            else:
                parts.append(_named(name, kind, value, dialect, 0))
        return f"concat({', '.join(parts)})"

    tests = [f"{quoted(name, dialect.quote)} IS NOT NULL" for name, _ in sorted(fields) if name in filled]
    return f"CASE WHEN {' AND '.join(tests)} THEN {text(filled)} ELSE {text(())} END" if tests else text(())


def spark_text(kind: Kind, value: str) -> str:
    """Return Spark's SQL of the text of a value, the same for equal values of any type, null for null."""
    return _encoded(kind, value, SPARKS, 0)


def _named(name: str, kind: Kind, value: str, d: _Dialect, depth: int) -> str:
    parts = [_prefix(name, d), *_parts(kind, value, d, depth)]
    return f"CASE WHEN {value} IS NULL THEN '' ELSE concat({', '.join(parts)}) END"


def _prefix(name: str, d: _Dialect) -> str:
    return literal(f"{len(name.encode())}:{name}=", d.quote)


def _encoded(kind: Kind, x: str, d: _Dialect, depth: int) -> str:
    return f"CASE WHEN {x} IS NOT NULL THEN concat({', '.join(_parts(kind, x, d, depth))}) END"


def _parts(kind: Kind, x: str, d: _Dialect, depth: int) -> list[str]:
    """Return SQL of the parts of the text of `x`, unless it is null. One call of `concat` is faster than many `||`."""
    if isinstance(kind, str):
        return [*_simple(kind, x, d), "';'"]
    v = f"x{depth}"
    if kind["type"] == "struct":
        fields = sorted(kind["fields"], key=lambda field: str(field["name"]))
        return ["'{'", *[_named(f["name"], f["type"], d.field(x, f["name"]), d, depth) for f in fields], "'}'"]
    if kind["type"] == "array":
        body = f"coalesce({_encoded(kind['elementType'], v, d, depth + 1)}, '~')"
        return ["'['", d.joined(d.each(x, v, body)), "']'"]
    key = _encoded(kind["keyType"], d.field(v, "key"), d, depth + 1)
    value = _encoded(kind["valueType"], d.field(v, "value"), d, depth + 1)
    pairs = d.each(f"map_entries({x})", v, f"{key} || '=' || coalesce({value}, '~')")
    return ["'<'", d.joined(f"array_sort({pairs})"), "'>'"]


def _simple(kind: str, x: str, d: _Dialect) -> Sequence[str]:
    name = "decimal" if kind.startswith("decimal") else kind
    if name == "string":
        return d.size(x), "':'", x
    if name not in SIMPLE:
        raise ValueError(f"no fingerprint is known of type {kind}")
    return [SIMPLE[name](x, kind, d)]


def _exact(x: str, d: _Dialect) -> str:
    """Return a double as `<odd>b<power>`: powers of two make its significand a whole number without loss.

    The logarithm may be off by one near a power of two. Then the number is another multiple of the same odd one.
    """
    infinite = _double("'Infinity'")
    size = f"CASE WHEN isnan({x}) OR abs({x}) = {infinite} OR {x} = 0 THEN {_double('1')} ELSE abs({x}) END"
    half, two = d.div("u", "2"), _double("2")
    whole = f"cast(s * pow({two}, {half}) * pow({two}, (u - {half})) AS bigint)"
    text = f"{_text(d.div('w', '(w & -w)'))} || 'b' || {_text('bit_count((w & -w) - 1) - u')}"
    finite = _let("s", size, _let("u", f"cast({BITS} - floor(log2(s)) AS int)", _let("w", whole, text, d), d), d)
    return (
        f"CASE WHEN isnan({x}) THEN 'nan' WHEN {x} = {infinite} THEN 'inf' WHEN {x} = -{infinite} THEN '-inf'"
        f" WHEN {x} = 0 THEN '0' ELSE CASE WHEN {x} < 0 THEN '-' ELSE '' END || {finite} END"
    )


def _let(name: str, value: str, body: str, d: _Dialect) -> str:
    one = f"array({value})" if d is SPARKS else f"[{value}]"
    return f"{d.each(one, name, body)}[{0 if d is SPARKS else 1}]"


SIMPLE: Final[Mapping[str, Callable[[str, str, _Dialect], str]]] = {
    **dict.fromkeys(("boolean", "byte", "short", "integer", "long"), lambda x, _, d: _text(x)),
    **dict.fromkeys(("float", "double"), lambda x, _, d: _exact(_double(x), d)),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), lambda x, _, d: d.micros(x)),
    "decimal": lambda x, kind, d: f"({d.decimal(x, kind)})",
    "date": lambda x, _, d: d.days(x),
    "binary": lambda x, _, __: f"hex({x})",
}


def duck_values(fields: Sequence[Field], stored: Sequence[str]) -> str:
    return ", ".join(
        f"CAST({quoted(name) if name in stored else 'NULL'} AS {duckdb_type(kind)}) AS {quoted(name)}"
        for name, kind in fields
    )


def duck_hash(fields: Sequence[Field], key: str = "''", filled: Collection[str] = ()) -> str:
    return DUCK.hashed(row_text(fields, DUCK, key, filled))


def filled_columns(con: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> list[str]:
    """Return those `columns` of `t` that have no null in its first rows."""
    tests = ", ".join(f"count({quoted(name)}) = count(*)" for name in columns)
    found = con.sql(f"SELECT {tests} FROM (FROM t LIMIT {SAMPLED_ROWS})").fetchall()[0]
    return [name for name, is_filled in zip(columns, found, strict=True) if is_filled]


def spark_hash(fields: Sequence[Field]) -> str:
    return SPARKS.hashed(row_text(fields, SPARKS))


def of_arrow(rows: pa.Table, key: str = "") -> Fingerprint:
    return Fingerprint(rows.num_rows, sum(hashes(rows, key).to_pylist()) % MODULUS)


def hashes(rows: pa.Table, key: str = "") -> pa.ChunkedArray:
    if not rows.num_rows:
        return pa.chunked_array([], pa.uint64())
    if any(chunk.offset for column in rows.columns for chunk in column.chunks):
        rows = rows.take(pa.array(range(rows.num_rows)))  # DuckDB does not slice an array of structs
    fields = fields_of(rows.schema)
    with duckdb_tables.connection() as con:
        con.register("t", rows)
        values = f"SELECT {duck_values(fields, rows.column_names)} FROM t"
        result = con.sql(f"SELECT {duck_hash(fields, '$1')} AS h FROM ({values})", params=[key])
        return result.to_arrow_table().column("h")


def of_version(path: Address, version: int | None = None, key: str = "") -> Fingerprint:
    with delta.opened(path, version) as table:
        paths = delta.files(table)
        if not paths:
            return Fingerprint()
        fields = fields_of_json(table.schema().to_json())
        with duckdb_tables.open_files(TableFiles(path, table, paths)) as (con, columns):
            values = f"SELECT {duck_values(fields, columns)} FROM t"
            hashed = duck_hash(fields, "$1", filled_columns(con, columns))
            query = f"SELECT count(*), coalesce(sum({hashed}::HUGEINT), 0) FROM ({values})"
            count, total = con.execute(query, [key]).fetchall()[0]
    return Fingerprint(count, int(total) % MODULUS)
