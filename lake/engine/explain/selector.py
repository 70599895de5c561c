"""The requested row: its key parsed from `column=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lake.errors import DeclarationError, did_you_mean
from lake.lazy import pa
from lake.project.declaration import Declaration
from lake.store import duckdb_tables
from lake.text import quoted

NULL: Final = "null"


def parse_key(declaration: Declaration, schema: pa.Schema, texts: Sequence[str]) -> pa.Table:
    """Parse key columns (`column=value`) into a table of one row. Raises DeclarationError if the key is wrong."""
    kind, values = declaration.kind, dict[str, str]()
    identified = f"its rows are identified by {', '.join(kind.identity)}"
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals:
            raise DeclarationError(
                f"{text!r} is not of the form column=value",
                fix=f"lake explain {declaration.name} {_usage(kind.identity)}",
            )
        if column not in kind.identity or column not in schema.names:
            fix = identified if column in schema.names else f"{did_you_mean(column, kind.identity)} {identified}"
            raise DeclarationError(f"{declaration.name} has no {column!r} among its key columns", fix=fix)
        if values.setdefault(column, value) != value:
            raise DeclarationError(
                f"{column} is given twice: {values[column]} and {value}", fix="explain one row at a time"
            )
    missing = [column for column in kind.key or (() if values else kind.identity) if column not in values]
    if missing:
        raise DeclarationError(
            f"{declaration.name}: the key of a row is incomplete: {', '.join(missing)} is missing",
            where=declaration.where,
            fix=f"lake explain {declaration.name} {_usage(kind.key or kind.identity)}",
        )
    return _parsed(declaration, schema, values)


def _parsed(declaration: Declaration, schema: pa.Schema, values: Mapping[str, str]) -> pa.Table:
    columns = pa.schema([schema.field(column) for column in values])
    with duckdb_tables.connection() as con:
        types = con.from_arrow(columns.empty_table()).types
        casts = ", ".join(f"TRY_CAST(? AS {kind}) AS {quoted(name)}" for name, kind in zip(values, types, strict=True))
        texts = [None if text == NULL else text for text in values.values()]
        row = con.sql(f"SELECT {casts}", params=texts).to_arrow_table().cast(columns)
    for name, text in values.items():
        if text != NULL and row.column(name)[0].as_py() is None:
            kind = types[list(values).index(name)]
            fix = f'lake sql "select {name} from {declaration.name} limit 5" shows how values are written'
            raise DeclarationError(
                f"{name}={text} is not a valid {str(kind).lower()}", where=declaration.where, fix=fix
            )
    return row


def _usage(columns: Sequence[str]) -> str:
    return " ".join(f"{column}=…" for column in columns)
