"""Sandbox for queries of remote readers: one SELECT over granted tables, with harmless functions only.

The files of a table have state columns, which a query could read by file name. So every table, function and type in
DuckDB's parse tree must be granted, or allowed by `functions.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

import duckdb

from lake.errors import DeclarationError
from lake.read.locked_database import as_of_macro
from lake.read.query import STATEMENTS
from lake.read.sql import SCHEMAS, EditionReader
from lake.session.duck import nodes
from lake.store import duckdb_tables
from lake.store.warehouse import LAYERS

NODES: Final = re.findall(
    r"\w+",
    """BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW
    BASE_TABLE CTE_NODE EMPTY EXPRESSION_LIST JOIN PIVOT RECURSIVE_CTE_NODE SELECT_NODE SET_OPERATION_NODE SHOW_REF
    TABLE_FUNCTION""",
)
KIND_MEMBERS: Final = {"class", "sample", "cte_map"}
"""Members of a node that has a kind to be checked: an expression, a row source, a query."""
NAMED_KINDS: Final = {"function": "the function {}", "from": "the function {} in a FROM", "type": "the type {}"}
INFORMATION_TABLES: Final = frozenset({"tables", "columns", "schemata"})
SHOW_LISTS: Final = frozenset({"", '"tables"', "__show_tables_expanded"})
ALLOWED: Final = "SELECT, WITH, FROM, VALUES, PIVOT … ON … IN (…), DESCRIBE, SHOW and SUMMARIZE are allowed"
CACHED_QUERIES: Final = 100
"""Greatest number of accepted queries that are cached."""
PLAIN_NAME: Final = re.compile(r"[\w $-]+")
"""A name that DuckDB does not read as a file."""

MARK: Final = "?"
MARK_SQL: Final = f"'{MARK}'"
VALUES: Final = {duckdb.token_type.string_const, duckdb.token_type.numeric_const}


@dataclass(frozen=True)
class SandboxedQuery:
    """Accepted query: the tables, logs and ledgers it names, and its text without values."""

    tables: tuple[str, ...]
    text: str


def check_query(reader: EditionReader, query: str) -> SandboxedQuery:
    """Return the accepted query. Raises DeclarationError unless it is one SELECT over allowed names."""
    try:
        accepted = _check_nodes(query, tuple(reader.edition.tables), reader.system_tables.titles)
    except RecursionError:
        raise _not_allowed("a query nested so deeply", "nest it less deeply") from None
    if accepted is None:
        try:
            with reader.connect(query):  # raises with the place of the fault, or the number of statements
                pass
        except DeclarationError as error:
            fix = ALLOWED if error.fix == STATEMENTS else error.fix
            raise DeclarationError(error.what, where=error.where, fix=fix) from None
        raise _not_allowed("EXPLAIN, or PIVOT without its values,", ALLOWED)
    return accepted


@lru_cache(CACHED_QUERIES)
def _check_nodes(query: str, tables: tuple[str, ...], relations: tuple[str, ...]) -> SandboxedQuery | None:
    """Return the accepted query, or None if DuckDB cannot parse it as one SELECT. Raises DeclarationError."""
    tree = _parsed(query)
    if tree is None:
        return None
    titles = {title.lower(): title for title in relations}
    names = {name.lower(): name for name in tables}
    named: dict[str, None] = {}
    in_from = set[int]()
    for node in nodes(tree):
        if KIND_MEMBERS & node.keys() and (kind := node.get("class", node.get("type"))) not in NODES:
            raise _not_allowed(f"a {kind}", ALLOWED)
        match node.get("type"):
            case "BASE_TABLE" | "SHOW_REF":
                if known := _table(node, names, titles):
                    named[known] = None
            case "TABLE_FUNCTION":
                in_from.add(id(node["function"]))
                if base := _function(str(node["function"]["function_name"]), names):
                    named[base] = None
            case "TYPE":
                _check_name("type", str(node["type_name"]))
        if "function_name" in node and id(node) not in in_from:
            _check_name("function", str(node["function_name"]))
    return SandboxedQuery(tuple(named), without_values(tree))


@cache
def function_lists(kind: str) -> tuple[frozenset[str], Mapping[str, str]]:
    """Return allowed names of a `kind` in NAMED_KINDS, and patterns of others with the reason why they are rejected."""
    lists = tomllib.loads(files("lake.read").joinpath("functions.toml").read_text("utf-8"))[kind]
    reasons = {pattern: why for why, patterns in lists["refused"].items() for pattern in patterns}
    return frozenset(name.lower() for name in lists["allowed"]), reasons


def reason_against(kind: str, name: str) -> str:
    _, reasons = function_lists(kind)
    found = (why for pattern, why in reasons.items() if fnmatchcase(name.lower(), pattern))
    return next(found, "use another: duckdb.org/docs")


def _check_name(kind: str, name: str) -> None:
    allowed, _ = function_lists(kind)
    if name.lower() not in allowed:
        raise _not_allowed(NAMED_KINDS[kind].format(name), reason_against(kind, name))


def _parsed(query: str) -> dict[str, Any] | None:
    with duckdb_tables.connection() as con:
        row = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [query]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {}
    return None if tree.get("error", True) or len(tree["statements"]) != 1 else tree


def _table(node: dict[str, Any], names: dict[str, str], titles: dict[str, str]) -> str:
    """Return the table that a node names, or "". Raises DeclarationError if it may be a file or a setting."""
    catalog, schema, name = (
        str(node.get(part) or "").lower() for part in ("catalog_name", "schema_name", "table_name")
    )
    if node["type"] == "SHOW_REF" and name in SHOW_LISTS:
        return ""
    name = name.strip('"') if node["type"] == "SHOW_REF" else name
    if catalog not in {"", "memory"}:
        raise _not_allowed(f"the database {catalog!r}")
    if schema in {"", "main", *LAYERS} and name in names:
        return names[name]
    if (title := name if schema in {"", "main"} else f"{schema}.{name}") in titles:
        return titles[title]
    if node.get("show_type") in {"SHOW", "SHOW_SPECIAL"}:  # a setting, or DuckDB's databases, schemas and variables
        raise _not_allowed(f"SHOW {name}")
    of_duckdb = name.startswith(("duckdb_", "pragma_", "sqlite_", "pg_"))
    if schema in {"", "main", *LAYERS, *SCHEMAS} and PLAIN_NAME.fullmatch(name) and not of_duckdb:
        return ""  # the reader's connection reports that there is no such table
    if schema == "information_schema" and name in INFORMATION_TABLES:
        return ""
    raise _not_allowed(f"{schema}.{name}" if schema else f"{name!r}")


def _function(name: str, names: dict[str, str]) -> str:
    called = name.lower()
    for lower, table in names.items():
        if called == as_of_macro(lower):
            return table
    _check_name("from", name)
    return ""


def _not_allowed(what: str, fix: str = "name a table: SHOW TABLES, or GET /tables") -> DeclarationError:
    return DeclarationError(f"{what} is not allowed: a reader's query reads the tables that were granted", fix=fix)


def without_values(tree: dict[str, Any]) -> str:
    """Return the text of a parsed query with MARK for each value, or "", for the record of reads.

    Constants are replaced in the tree; what DuckDB's tokenizer still finds (sample size, type parameters) in the text.
    Struct keys are replaced too: `{'ada': 1}` becomes `struct_pack("?" := '?')`.
    """
    with duckdb_tables.connection() as con:
        try:
            row = con.execute("SELECT json_deserialize_sql(CAST(? AS JSON))", [json.dumps(_masked(tree))]).fetchone()
        except duckdb.Error:
            return ""
    return _without_constants(str(row[0])) if row else ""


def _masked(node: Any) -> Any:
    if isinstance(node, list):
        return [_masked(part) for part in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"kind", "text"}:
        return {"kind": "STRING", "text": MARK}
    if "is_null" in node and "type" in node:
        return {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": MARK}
    masked = {name: _masked(part) for name, part in node.items()}
    if node.keys() == {"name", "expression"} and node["name"]:  # an argument by name, or a struct's key
        masked["name"] = MARK
    if node.get("class") == "TYPE" and node.get("alias"):  # a field of a struct's type
        masked["alias"] = MARK
    return masked


def _without_constants(text: str) -> str:
    content, parts, done = text.encode(), list[bytes](), 0
    tokens = duckdb.tokenize(text)
    ends = [offset for offset, _ in tokens[1:]] + [len(content)]
    for (offset, kind), end in zip(tokens, ends, strict=True):
        token = content[offset:end]
        if kind in VALUES and token.strip() != b".":  # the tokenizer takes it for a number
            space = token[len(token.rstrip()) :]
            parts += [content[done:offset], MARK_SQL.encode(), space]
            done = end
    return (b"".join(parts) + content[done:]).decode()
