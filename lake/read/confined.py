"""Queries of readers from elsewhere: a SELECT over what its reader may see, and over nothing that has a file's name.

The connection of `lake.read.sql` is locked to the files of the tables that are read. Those have state columns too, and
a query that calls a file by its name would see them, as the owner may. So here DuckDB's own parser tells every table
and every function that a query names, and only known ones pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError
from lake.read.masked import without_values
from lake.read.sql import SCHEMAS, Reader, as_of
from lake.store import small
from lake.store.warehouse import LAYERS

FUNCTIONS: Final = frozenset({"unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree"})
"""Functions in a FROM that read nothing, beside the macros of a History."""
UNTOLD: Final = frozenset({"current_setting", "write_log"})
"""Functions that tell of this machine, or write to a log of DuckDB's."""
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
    for node in _nodes(tree):
        match node.get("type"):
            case "BASE_TABLE" | "SHOW_REF":
                if known := _table(node, names, titles):
                    named[known] = None
            case "TABLE_FUNCTION":
                if base := _function(str(node["function"].get("function_name", "")), names):
                    named[base] = None
            case "FUNCTION" if str(node.get("function_name", "")).lower() in UNTOLD:
                raise _not_allowed(f"the function {node['function_name']}", "leave it out")
    return Confined(tuple(named), without_values(tree))


def _parsed(reader: Reader, query: str) -> dict[str, Any]:
    """What DuckDB's parser makes of a query of one SELECT."""
    with small.connection() as con:
        row = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [query]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {}
    if tree.get("error", True) or len(tree["statements"]) != 1:
        with reader.connect(query):  # which says where the fault is, and that there are several statements, or none
            pass
        raise _not_allowed("EXPLAIN, or PIVOT without its values,", ALLOWED)
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parsed query."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


def _table(node: dict[str, Any], names: dict[str, str], titles: dict[str, str]) -> str:
    """What a name in a query stands for: a table, a title, or "" for what the query itself has defined, or nothing has.

    Raises DeclarationError for what might be a file, and for the views of DuckDB that tell of files.
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
    if schema in {"", "main", *LAYERS, *SCHEMAS} and PLAIN.fullmatch(name) and not _of_duckdb(name):
        return ""  # the reader's own connection says that there is no such table
    if schema == "information_schema" and name in LISTS:
        return ""
    raise _not_allowed(f"{schema}.{name}" if schema else f"{name!r}")


def _of_duckdb(name: str) -> bool:
    return name.startswith(("duckdb_", "pragma_", "sqlite_", "pg_"))


def _function(name: str, names: dict[str, str]) -> str:
    """The History that a function in a FROM is the macro of; "" for another that reads nothing."""
    called = name.lower()
    for lower, table in names.items():
        if called == as_of(lower):
            return table
    if called not in FUNCTIONS:
        raise _not_allowed(f"the function {name} in a FROM")
    return ""


def _not_allowed(what: str, fix: str = "name a table: SHOW TABLES, or GET /tables") -> DeclarationError:
    return DeclarationError(f"{what} is not allowed: a reader's query reads the tables that were granted", fix=fix)
