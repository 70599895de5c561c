"""Query of an edition: the check that it only reads, and its result as values, text, or JSON that loses nothing.

DuckDB formats values: Python lacks infinite dates, the year 10000 and intervals of months, and is ten times slower.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import duckdb
from duckdb.sqltypes import DuckDBPyType

from lake.errors import DeclarationError
from lake.store import duckdb_tables
from lake.text import distinct, literal, quoted

_SIZES: Final = ("tinyint", "smallint", "integer", "bigint", "hugeint")
INTEGERS: Final = frozenset({*_SIZES, *(f"u{size}" for size in _SIZES)})
FLOATS: Final = frozenset({"float", "double"})
LAMBDA_NAME: Final = "each"
NUMBERS: Final = INTEGERS | FLOATS | {"decimal", "bignum"}
READS: Final = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""Statement types that only read. DESCRIBE, SHOW, SUMMARIZE and VALUES are SELECT, PIVOT is MULTI."""

# Comments are not recognized: only DuckDB's parser knows where one ends. One before ANALYZE is an error.
_EXPLAIN: Final = re.compile(r"EXPLAIN\b\s*(?:ANALYZE\b)?\s*(?:\(\s*(?:ANALYZE|FORMAT)\b[\w\s,]*\))?", re.I | re.A)
_WRITE_NODE: Final = re.compile(r'"type":"(COPY|INSERT|UPDATE|DELETE|MERGE)_QUERY_NODE"')
_WRITE_WORD: Final = re.compile(rb"(?:COPY|INSERT|UPDATE|DELETE|MERGE)\b(?!\s*\))", re.I)


@dataclass(frozen=True)
class QueryResult:
    names: Sequence[str]
    kinds: Sequence[DuckDBPyType]
    source: str

    @property
    def is_lazy(self) -> bool:
        return self.source.startswith("(")

    @property
    def numeric(self) -> list[bool]:
        return [kind.id in NUMBERS for kind in self.kinds]

    @property
    def values(self) -> str:
        """SQL of the rows with unique column names."""
        return self._select_named(self._aliases)

    @property
    def texts(self) -> str:
        return self._select_named(as_text(kind, alias) for kind, alias in zip(self.kinds, self._aliases, strict=True))

    @property
    def objects(self) -> str:
        return self._select([as_object(distinct(self.names), self.kinds, self._aliases)])

    @property
    def _aliases(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.names))]

    def _select_named(self, values: Iterable[str]) -> str:
        names = distinct(self.names, lambda name: name.lower())
        return self._select([f"{value} AS {quoted(name)}" for value, name in zip(values, names, strict=True)])

    def _select(self, columns: Sequence[str]) -> str:
        return f"SELECT {', '.join(columns)} FROM {self.source} AS v({', '.join(self._aliases)})"


def run_query(con: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
    """Return the result of one statement, evaluated when its rows are read.

    PIVOT and EXPLAIN cannot be in a FROM: they are evaluated at once.
    """
    try:
        relation = con.sql(query)
    except duckdb.Error:
        con.execute(query)  # raises with the place in the query
        raise
    if relation.type == "QUERY_RELATION":
        return QueryResult(relation.columns, relation.types, f"(\n{_statement(query)}\n)")
    source = f"answer_{secrets.token_hex(8)}"
    con.register(source, relation)
    return QueryResult(relation.columns, relation.types, source)


def text_rows(relation: duckdb.DuckDBPyRelation) -> tuple[QueryResult, list[tuple[str | None, ...]]]:
    answer = QueryResult(relation.columns, relation.types, f"answer_{secrets.token_hex(8)}")
    texts = relation.query(answer.source, answer.texts)
    return answer, texts.fetchall() if texts else []


def _statement(query: str) -> str:
    written = query.encode()
    ends = (at for at, _ in duckdb.tokenize(query) if written[at : at + 1] == b";")
    return written[: next(ends, len(written))].decode()


def as_text(kind: DuckDBPyType, value: str) -> str:
    """Return SQL of `value` as text: decimals exact, instants in UTC, nested as JSON."""
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
    """Return SQL of `value` as JSON; decimals are strings, because readers round numbers."""
    if spell := _NESTED.get(kind.id):
        return f"CASE WHEN {value} IS NOT NULL THEN {spell(kind, value)} END"
    if kind.id in INTEGERS or kind.id == "boolean":
        return f"to_json({value})"
    if kind.id in FLOATS:
        text = f"CAST({value} AS VARCHAR)"  # the shortest of a float, which as a double would have more digits
        return f"CASE WHEN isfinite({value}) THEN to_json(CAST({text} AS DOUBLE)) ELSE to_json({text}) END"
    return f"to_json({as_text(kind, value)})"


def as_object(names: Iterable[str], kinds: Iterable[DuckDBPyType], values: Iterable[str]) -> str:
    pairs = (f"{literal(name)}, {as_json(kind, value)}" for name, kind, value in zip(names, kinds, values, strict=True))
    return f"json_object({', '.join(pairs)})"


def _instant(value: str, local: str, zone: str) -> str:
    """Return SQL of ISO 8601, or DuckDB's own text for infinity and before the year 1."""
    return (
        f"CASE WHEN {value} IS NULL OR NOT isfinite({value}) OR year({local}) < 1 THEN CAST({value} AS VARCHAR) "
        f"WHEN epoch_us({value}) % 1000000 = 0 THEN replace(CAST({local} AS VARCHAR), ' ', 'T') || '{zone}' "
        f"ELSE strftime({local}, '%Y-%m-%dT%H:%M:%S.%f{zone}') END"
    )


def _list(kind: DuckDBPyType, value: str) -> str:
    [element, *_] = _inner_types(kind)
    return f"to_json(list_transform({value}, lambda {LAMBDA_NAME}: {as_json(element, LAMBDA_NAME)}))"


def _struct(kind: DuckDBPyType, value: str) -> str:
    kinds = _inner_types(kind)
    values = [f"struct_extract_at({value}, {i + 1})" for i in range(len(kinds))]
    return as_object([name for name, _ in kind.children], kinds, values)


def _map(kind: DuckDBPyType, value: str) -> str:
    key, item = _inner_types(kind)
    entry = f"{{'key': {as_text(key, f'{LAMBDA_NAME}.key')}, 'value': {as_json(item, f'{LAMBDA_NAME}.value')}}}"
    return f"to_json(map_from_entries(list_transform(map_entries({value}), lambda {LAMBDA_NAME}: {entry})))"


def _inner_types(kind: DuckDBPyType) -> list[DuckDBPyType]:
    return [child for _, child in kind.children if isinstance(child, DuckDBPyType)]


_NESTED: Final[dict[str, Callable[[DuckDBPyType, str], str]]] = {
    "list": _list,
    "array": _list,
    "struct": _struct,
    "map": _map,
}

STATEMENTS: Final = "SELECT, WITH, FROM, VALUES, PIVOT, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are allowed"


@lru_cache(100)
def check_statement(query: str) -> None:
    """Raise DeclarationError unless `query` is one statement that only reads, duckdb.Error if it is none at all."""
    with duckdb_tables.connection() as con:
        statements = con.extract_statements(query)
    if len(statements) != 1:
        count = f"{len(statements)} statements" if statements else "no statement"
        raise DeclarationError(f"found {count}, one statement is allowed at a time", fix="write one SELECT")
    kind, text = statements[0].type.name, statements[0].query
    if kind == "EXPLAIN" and (outer := _EXPLAIN.match(text)):
        return check_statement(text[outer.end() :])
    if kind in READS and (inner := _write_within(text)):
        kind = f"{inner} in a WITH"
    if kind not in READS - {"EXPLAIN"}:
        raise DeclarationError(
            f"{kind.replace('_', ' ')} is not allowed: an edition is read-only",
            fix=STATEMENTS,
        )
    return None


def _write_within(text: str) -> str:
    """Return the kind of a writing statement in the body of a WITH, or "".

    DuckDB counts it as a SELECT. Its parser cannot serialize PIVOT without values: then tokens are compared.
    """
    with duckdb_tables.connection() as con:
        [[tree]] = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    if tree.startswith('{"error":false'):
        found = _WRITE_NODE.search(tree)
        return found[1] if found else ""
    content = text.encode()
    tokens = [at for at, kind in duckdb.tokenize(text) if kind != duckdb.token_type.comment]
    for before, at in itertools.pairwise(tokens):
        if content[before : before + 1] in b"()" and (word := _WRITE_WORD.match(content, at)):
            return word[0].decode().upper()
    return ""


def fix_for(what: str) -> str:
    if re.search(r"[Ff]unction", what):
        return "DuckDB's functions: duckdb.org/docs; `DESCRIBE TABLE` shows the types of columns"
    if re.search(r"convert|cast|out of range|[Cc]onversion", what):
        return "correct the value, or write try_cast(… as …), which is null where a value does not fit"
    return "correct the query there: DuckDB's SQL, duckdb.org/docs; `DESCRIBE TABLE` shows the columns"


def place_in_query(error: str, query: str) -> str:
    """Return `line 1, column 15` from the caret in DuckDB's error, or ""."""
    caret = re.search(r"^LINE (\d+): (.*)\n( *)\^", error, re.M)
    if not caret:
        return ""
    number, excerpt, indent = int(caret[1]), caret[2], len(caret[3]) - len(f"LINE {caret[1]}: ")
    around = excerpt.removeprefix("...").removesuffix("...")
    lines = [i for i, line in enumerate(query.split("\n"), 1) if around in line]
    if number not in lines:  # the query is part of a longer statement
        number = lines[0] if len(lines) == 1 else 0
    if not number:
        return ""
    shift = query.split("\n")[number - 1].find(around) - (3 if excerpt.startswith("...") else 0)
    return f"line {number}, column {indent + shift + 1}"
