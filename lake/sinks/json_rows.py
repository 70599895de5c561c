"""Lossless conversion of rows to JSON text and back.

The JSON of a row equals `json.dumps(plain(row), ensure_ascii=False)` of lake.text, byte for byte, but DuckDB makes it.
Strings stand for decimals, dates, instants (UTC, with Z) and non-finite numbers. Binary is hexadecimal. A map is an
object with text keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.errors import LakeError
from lake.lazy import pa
from lake.read.net_changes import stream
from lake.session.duck import connect
from lake.sinks.sink import TableChanges, TargetTable
from lake.text import literal, quoted

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

NULL: Final = "%null"
GATHERED_ROWS: Final = 50_000
GATHERED_BYTES: Final = 32 << 20
UPPER: Final = r"\x0B\x0E\x0F\x1A-\x1F"
"""Characters whose escape has upper-case digits in DuckDB, and lower-case ones in Python."""


def json_rows(changes: TableChanges) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a table as texts: `change`, `key` (see `key_of`), `name`, and JSON of `before` and `after`.

    `name` is the identity's values joined by `:`, as JSON without quotes. In a value `%` is written %25 and `:` is %3A;
    a null is %null.
    """
    with closing(connect()) as con:
        for rows in _gathered(changes.batches()):
            yield from _as_json(con, rows, changes.table.identity)


def named_rows(
    table: TargetTable,
    rows: Iterable[Sequence[tuple[str | None, str]]],
    wrong: Callable[[TargetTable, str], LakeError] | None = None,
) -> pa.RecordBatchReader:
    """Return rows in the table's columns and types. `rows` yields batches of (name, JSON).

    Values not of their type become null. Raises `wrong(table, name)` if a name, unless None, differs from the row's
    identity.
    """
    return stream(_typed(table, rows, wrong))


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield larger batches: preparing the SQL takes as long as running it for ten thousand rows."""
    gathered, rows, size = list[Any](), 0, 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _as_json(con: duckdb.DuckDBPyConnection, changes: pa.Table, identity: tuple[str, ...]) -> list[pa.RecordBatch]:
    rows = con.from_arrow(changes)
    types = dict(zip(rows.columns, rows.types, strict=True))
    columns = {
        "change": "change",
        "key": _of_row(types, lambda side, kind: _object(side, _chosen(kind, identity), 0)),
        "name": _of_row(types, lambda side, kind: _name(side, _chosen(kind, identity))),
        **{
            side: _json(side, types[side], 0) if types[side].id == "struct" else "NULL::VARCHAR"
            for side in ("before", "after")
        },
    }
    listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    return list(_query(rows, "changes", f"SELECT {listed} FROM changes").to_batches())


def _of_row(types: Mapping[str, DuckDBPyType], sql: Callable[[str, DuckDBPyType], str]) -> str:
    by_side = {side: sql(side, types[side]) for side in ("after", "before") if types[side].id == "struct"}
    if len(by_side) < 2:
        return next(iter(by_side.values()), "NULL::VARCHAR")
    return f"CASE WHEN after IS NOT NULL THEN {by_side['after']} ELSE {by_side['before']} END"


def _chosen(kind: DuckDBPyType, identity: tuple[str, ...]) -> list[tuple[str, DuckDBPyType]]:
    fields = dict(_parts(kind))
    return [(name, fields[name]) for name in identity]


def _name(x: str, fields: list[tuple[str, DuckDBPyType]]) -> str:
    parts = []
    for name, kind in fields:
        text = _text(_field(x, name), kind, 0)
        if kind.id not in NOT_ESCAPED:
            text = f"replace(replace({text}, '%', '%25'), ':', '%3A')"
        parts.append(f"coalesce({text}, '{NULL}')")
    return f"concat_ws(':', {', '.join(parts)})"


def _parts(kind: DuckDBPyType) -> list[tuple[str, Any]]:
    return list(kind.children)


def _field(x: str, name: str) -> str:
    return f"struct_extract({x}, {literal(name)})"


def _json(x: str, kind: DuckDBPyType, depth: int) -> str:
    text = _text(x, kind, depth)
    match kind.id:
        case "varchar":
            return _string(x)
        case "float" | "double":
            return f"CASE WHEN isfinite({x}) THEN {x}::DOUBLE::VARCHAR ELSE '\"' || {text} || '\"' END"
        case name if name in BARE or name in {"struct", "list", "map"}:
            return text
    return f"('\"' || {text} || '\"')"


def _text(x: str, kind: DuckDBPyType, depth: int) -> str:
    match kind.id:
        case "struct":
            return f"CASE WHEN {x} IS NOT NULL THEN {_object(x, _parts(kind), depth)} END"
        case "list":
            item = f"x{depth}"
            inner = f"coalesce({_json(item, _parts(kind)[0][1], depth + 1)}, 'null')"
            return f"('[' || array_to_string(list_transform({x}, lambda {item}: {inner}), ', ') || ']')"
        case "map":
            return _pairs(x, kind, depth)
        case name if name in BARE:
            return f"{x}::VARCHAR"
        case name if name in LEAVES:
            return LEAVES[name](x, kind)
    raise ValueError(f"no JSON is known of type {kind}")


def _object(x: str, fields: Iterable[tuple[str, DuckDBPyType]], depth: int) -> str:
    parts = [
        f"{literal(json.dumps(name, ensure_ascii=False))} || ': ' ||"
        f" coalesce({_json(_field(x, name), kind, depth)}, 'null')"
        for name, kind in fields
    ]
    listed = " || ', ' || ".join(parts or ["''"])
    return f"('{{' || {listed} || '}}')"


def _pairs(x: str, kind: DuckDBPyType, depth: int) -> str:
    pair = f"x{depth}"
    (_, of_key), (_, of_value) = _parts(kind)
    key = _string(_text(_field(pair, "key"), of_key, depth + 1))
    value = f"coalesce({_json(_field(pair, 'value'), of_value, depth + 1)}, 'null')"
    pairs = f"list_transform(map_entries({x}), lambda {pair}: {key} || ': ' || {value})"
    return f"('{{' || array_to_string({pairs}, ', ') || '}}')"


def _string(x: str) -> str:
    each = f"regexp_extract_all({x}, '[{UPPER}]|[^{UPPER}]+')"
    one = f"CASE WHEN regexp_full_match(p, '[{UPPER}]') THEN lower(to_json(p)::VARCHAR) ELSE to_json(p)::VARCHAR END"
    parts = f"list_transform({each}, lambda p: ({one})[2:-2])"
    rare = f"'\"' || array_to_string({parts}, '') || '\"'"
    json_ = f"to_json({x})::VARCHAR"
    return f"CASE WHEN contains({json_}, '\\u00') THEN {rare} ELSE {json_} END"


def _double(x: str, _: DuckDBPyType) -> str:
    return f"replace({x}::DOUBLE::VARCHAR, '-nan', 'nan')"


def _decimal(x: str, kind: DuckDBPyType) -> str:
    (_, precision), (_, scale) = _parts(kind)
    text = f"{x}::VARCHAR"
    if precision != scale:  # else DuckDB writes .5 for 0.5
        return text
    return f"CASE WHEN {x} < 0 THEN '-0' || substr({text}, 2) ELSE '0' || {text} END"


def _instant(x: str, _: DuckDBPyType) -> str:
    text = f"replace(make_timestamp(epoch_us({x}))::VARCHAR, ' ', 'T')"
    return f"CASE WHEN epoch_us({x}) % 1000000 = 0 THEN {text} ELSE rpad({text}, {MICROS}, '0') END"


MICROS: Final = len("2024-03-30T09:12:00.000000")
BARE: Final = frozenset({"boolean", "tinyint", "smallint", "integer", "bigint"})
NOT_ESCAPED: Final = BARE | {"decimal", "float", "double", "date", "blob"}
"""Types whose text contains neither % nor a colon."""
LEAVES: Final[Mapping[str, Callable[[str, Any], str]]] = {
    "varchar": lambda x, _: x,
    "float": _double,
    "double": _double,
    "decimal": _decimal,
    "date": lambda x, _: f"{x}::VARCHAR",
    "timestamp": _instant,
    "timestamp with time zone": lambda x, kind: f"({_instant(x, kind)} || 'Z')",
    "blob": lambda x, _: f"lower(hex({x}))",
}


def _typed(
    table: TargetTable,
    rows: Iterable[Sequence[tuple[str | None, str]]],
    wrong: Callable[[TargetTable, str], LakeError] | None,
) -> Iterator[pa.RecordBatch]:
    with closing(connect()) as con:
        kinds = {name: con.type(kind) for name, kind in table.types.items()}
        values = ", ".join(f"{literal(c)}: {_from_text(_field('texts', c), kind, 0)}" for c, kind in kinds.items())
        shape = _json_structure(
            f"STRUCT({', '.join(f'{quoted(name)} {_text_type(kind)}' for name, kind in kinds.items())})"
        )
        texts = f"SELECT name, CASE WHEN json_valid(text) THEN from_json(text, {shape}) END AS texts FROM rows"
        name = _name("row", [(column, kinds[column]) for column in table.identity])
        columns = ", ".join(f"{_field('row', column)} AS {quoted(column)}" for column in kinds)
        is_wrong = f"name IS NOT NULL AND {name} IS DISTINCT FROM name" if wrong else "false"
        typed = f"SELECT name, {{{values}}} AS row FROM ({texts})"
        query = f"SELECT {columns}, CASE WHEN {is_wrong} THEN name END FROM ({typed})"
        yield _typed_batch(con, query, [])[0]
        for texts_of_batch in rows:
            batch, names = _typed_batch(con, query, texts_of_batch)
            if wrong and (wrong_name := next((name for name in names if name is not None), None)) is not None:
                raise wrong(table, wrong_name)
            yield batch


def _typed_batch(
    con: duckdb.DuckDBPyConnection, query: str, rows: Sequence[tuple[str | None, str]]
) -> tuple[pa.RecordBatch, list[str | None]]:
    names, texts = zip(*rows, strict=True) if rows else ((), ())
    given = pa.table({"name": pa.array(names, pa.string()), "text": pa.array(texts, pa.string())})
    found = _query(con.from_arrow(given), "rows", query)
    batches = found.select(range(found.num_columns - 1)).to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=found.schema.remove(found.num_columns - 1))
    return batch, found.column(found.num_columns - 1).to_pylist()


def _query(rows: duckdb.DuckDBPyRelation, name: str, sql: str) -> pa.Table:
    result = rows.query(name, sql)
    assert result is not None
    return result.to_arrow_table().combine_chunks()


def _json_structure(kind: str) -> str:
    return literal(json.dumps(kind, ensure_ascii=False))


def _text_type(kind: DuckDBPyType) -> str:
    match kind.id:
        case "struct":
            return f"STRUCT({', '.join(f'{quoted(name)} {_text_type(inner)}' for name, inner in _parts(kind))})"
        case "list":
            return f"{_text_type(_parts(kind)[0][1])}[]"
        case "map":
            return f"MAP(VARCHAR, {_text_type(_parts(kind)[1][1])})"
    return "VARCHAR"


def _from_text(x: str, kind: DuckDBPyType, depth: int) -> str:
    match kind.id:
        case "struct":
            fields = (f"{literal(name)}: {_from_text(_field(x, name), inner, depth)}" for name, inner in _parts(kind))
            return f"CASE WHEN {x} IS NOT NULL THEN {{{', '.join(fields)}}} END"
        case "list":
            item = f"x{depth}"
            return f"list_transform({x}, lambda {item}: {_from_text(item, _parts(kind)[0][1], depth + 1)})"
        case "map":
            pair = f"x{depth}"
            (_, of_key), (_, of_value) = _parts(kind)
            key = _field(pair, "key")
            if of_key.id in {"struct", "list", "map"}:
                key = f"from_json({key}, {_json_structure(_text_type(of_key))})"
            key = _from_text(key, of_key, depth + 1)
            entry = f"{{'k': {key}, 'v': {_from_text(_field(pair, 'value'), of_value, depth + 1)}}}"
            entries = f"list_transform(map_entries({x}), lambda {pair}: {entry})"
            return f"CASE WHEN {x} IS NOT NULL THEN map_from_entries({entries}) END"
        case "blob":
            return f"TRY(unhex({x}))"
        case "varchar":
            return x
    return f"TRY_CAST({x} AS {kind})"
