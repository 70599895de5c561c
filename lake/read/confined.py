"""Check of queries by remote readers: one SELECT over granted tables that calls only functions judged harmless.

The connection of `lake.read.sql` is locked to the files of the tables that are read. These files have state columns
too, which a query could read by the name of a file. DuckDB's own parser therefore lists every table, function and type
that a query names, at every depth. Only granted tables pass, and names that `functions.toml` allows.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lake.errors import DeclarationError
from lake.read.masked import without_values
from lake.read.sql import SCHEMAS, Reader, as_of
from lake.store import small
from lake.store.warehouse import LAYERS

NODES: Final = re.findall(
    r"\w+",
    """BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW
    BASE_TABLE CTE_NODE EMPTY EXPRESSION_LIST JOIN PIVOT RECURSIVE_CTE_NODE SELECT_NODE SET_OPERATION_NODE SHOW_REF
    TABLE_FUNCTION""",
)
"""Expressions, sources of rows and kinds of query that a query may be built of."""
KINDS: Final = {"class", "sample", "cte_map"}
"""Members by which an expression, a source of rows and a query are known."""
CALLED: Final = {"function": "the function {}", "from": "the function {} in a FROM", "type": "the type {}"}
"""What a query may name beside tables, as an error calls it."""
LISTS: Final = frozenset({"tables", "columns", "schemata"})
"""Views of information_schema that show names and types alone."""
SHOWN: Final = frozenset({"", '"tables"', "__show_tables_expanded"})
"""What SHOW lists, beside a table's columns."""
ALLOWED: Final = "SELECT, WITH, FROM, VALUES, PIVOT … ON … IN (…), DESCRIBE, SHOW and SUMMARIZE are allowed"
PLAIN: Final = re.compile(r"[\w $-]+")
"""A name that no file of a known format has."""


@dataclass(frozen=True)
class Confined:
    """A query that passed: the tables, logs and ledgers that it names, and its text without any value."""

    tables: tuple[str, ...]
    text: str


def confined(reader: Reader, query: str) -> Confined:
    """Lets a query pass. Raises DeclarationError for one that is no SELECT, or names what a reader may not."""
    try:
        return _confined(reader, query)
    except RecursionError:
        raise _not_allowed("a query nested so deeply", "nest it less deeply") from None


def _confined(reader: Reader, query: str) -> Confined:
    tree = _parsed(reader, query)
    titles = {title.lower(): title for title in reader.beside.titles}
    names = {name.lower(): name for name in reader.edition.tables}
    named: dict[str, None] = {}
    in_from = set[int]()
    for node in _nodes(tree):
        if KINDS & node.keys() and (kind := node.get("class", node.get("type"))) not in NODES:
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
    return Confined(tuple(named), without_values(tree))


@cache
def judged(kind: str) -> tuple[frozenset[str], Mapping[str, str]]:
    """Return the allowed names of a `kind` in CALLED, and the refused ones, each with the reason; in lower case."""
    lists = tomllib.loads(files("lake.read").joinpath("functions.toml").read_text("utf-8"))[kind]
    refused = {name.lower(): why for why, names in lists["refused"].items() for name in names}
    return frozenset(name.lower() for name in lists["allowed"]), refused


def _check_name(kind: str, name: str) -> None:
    allowed, refused = judged(kind)
    if name.lower() not in allowed:
        raise _not_allowed(CALLED[kind].format(name), refused.get(name.lower(), "use another: duckdb.org/docs"))


def _parsed(reader: Reader, query: str) -> dict[str, Any]:
    with small.connection() as con:
        row = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [query]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {}
    if tree.get("error", True) or len(tree["statements"]) != 1:
        with reader.connect(query):  # which says where the fault is, and that there are several statements, or none
            pass
        raise _not_allowed("EXPLAIN, or PIVOT without its values,", ALLOWED)
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


def _table(node: dict[str, Any], names: dict[str, str], titles: dict[str, str]) -> str:
    """Return the table or title that a name in a query stands for; "" if the query defines the name, or nothing does.

    Raises DeclarationError for a name that might be a file or a setting, and for DuckDB's views that list files.
    """
    catalog, schema, name = (
        str(node.get(part) or "").lower() for part in ("catalog_name", "schema_name", "table_name")
    )
    if node["type"] == "SHOW_REF" and name in SHOWN:
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
    if schema in {"", "main", *LAYERS, *SCHEMAS} and PLAIN.fullmatch(name) and not _of_duckdb(name):
        return ""  # the reader's own connection says that there is no such table
    if schema == "information_schema" and name in LISTS:
        return ""
    raise _not_allowed(f"{schema}.{name}" if schema else f"{name!r}")


def _of_duckdb(name: str) -> bool:
    return name.startswith(("duckdb_", "pragma_", "sqlite_", "pg_"))


def _function(name: str, names: dict[str, str]) -> str:
    """Return the History whose macro a function in a FROM is; "" for another function. Raises DeclarationError."""
    called = name.lower()
    for lower, table in names.items():
        if called == as_of(lower):
            return table
    _check_name("from", name)
    return ""


def _not_allowed(what: str, fix: str = "name a table: SHOW TABLES, or GET /tables") -> DeclarationError:
    return DeclarationError(f"{what} is not allowed: a reader's query reads the tables that were granted", fix=fix)
