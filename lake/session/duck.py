"""Connections to DuckDB, in UTC and without its progress bar. Queries above the limit of `bound` spill to files."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

FILE_SYSTEMS: Final[dict[str, Any]] = {}
"""File systems of fsspec by scheme; each connection gets them."""
_LIMITS: Final[dict[str, str]] = {}


def bound(memory: int, folder: Path) -> None:
    """Limit queries of later connections to `memory` bytes; above it they spill to a new folder in `folder`.

    It is deleted when the process ends. If this user may not write to `folder`, it is in the system's temporary folder.
    """
    parent = folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    spill_folder = parent / f"duckdb-{os.getpid()}-{secrets.token_hex(8)}"
    atexit.register(shutil.rmtree, spill_folder, ignore_errors=True)
    _LIMITS.update(memory_limit=f"{memory}B", temp_directory=str(spill_folder))


def connect(file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(file, config=dict(_LIMITS))
    con.execute("SET GLOBAL TimeZone = 'UTC'; SET enable_progress_bar = false")
    for system in FILE_SYSTEMS.values():
        con.register_filesystem(system)
    return con


ONE_ROW_FIX: Final = "an expression is computed from the fields of one event"
CHANGING_FUNCTIONS: Final = frozenset(
    {"version", "current_localtime", "current_localtimestamp", "current_timestamp", "current_time", "current_date"}
    | {"localtime", "localtimestamp"}
)
"""Functions that differ between runs, but are constant for DuckDB or called without brackets."""
FUNCTION_SQL: Final = """
    SELECT function_type, macro_definition, coalesce(stability, '') FROM duckdb_functions() WHERE function_name = $1
    ORDER BY ALL
"""


def expression_fault(expression: str, type_: str, row: str) -> tuple[str, str] | None:
    """Return why `expression` is not a deterministic expression of `type_` over one row, and the fix; else None.

    `row` is SQL of the columns of an example row.
    """
    con = connect()
    try:
        for called in _calls(con, expression):
            if fault := _call_fault(con, called):
                return fault
        con.execute(f"SELECT CAST(({expression}) AS {type_}) FROM (SELECT {row})").fetchall()
    except (ValueError, duckdb.Error) as error:
        what = str(error).splitlines()[0].partition(": ")[2] or str(error)
        return f"cannot be evaluated: {what}", "write SQL of DuckDB over the fields"
    finally:
        con.close()
    return None


def _calls(con: duckdb.DuckDBPyConnection, expression: str) -> Iterator[str]:
    """Yield the functions called, also by macros, in lower case. Raises ValueError for an invalid expression."""
    for text in (expression, f"({expression})"):  # the first form finds closing brackets, the second trailing names
        [[serialized]] = con.execute("SELECT json_serialize_sql($1)", [f"SELECT {text}"]).fetchall()
        parsed = json.loads(serialized)
        if parsed["error"]:
            raise ValueError(parsed["error_message"])
        selects = [statement["node"] for statement in parsed["statements"]]
        if len(selects) != 1 or len(selects[0]["select_list"]) != 1 or selects[0]["from_table"]["type"] != "EMPTY":
            raise ValueError("it is more than one expression")
    for node in nodes(selects[0]):
        if node.get("class") in {"SUBQUERY", "WINDOW", "STAR", "PARAMETER"}:
            raise ValueError(f"it has a {str(node['class']).lower()}")
        for name in [node.get("function_name"), *node.get("column_names", ())]:
            if node.get("class") == "FUNCTION" or (name or "").lower() in CHANGING_FUNCTIONS:
                yield str(name).lower()


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of DuckDB's tree of a query in pre-order."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


def _call_fault(con: duckdb.DuckDBPyConnection, name: str) -> tuple[str, str] | None:
    if name in CHANGING_FUNCTIONS:
        return f"is not deterministic: {name}", "derive it from the event"
    for kind, macro, stability in con.execute(FUNCTION_SQL, [name]).fetchall():
        if kind not in {"scalar", "macro"} or name == "unnest":
            return f"calls {name}, which is a function of several rows", ONE_ROW_FIX
        if stability not in {"", "CONSISTENT"}:
            return f"is not deterministic: {name}", "derive it from the event"
        for called in _calls(con, macro) if macro else ():
            if called != name and (fault := _call_fault(con, called)):
                return fault
    return None
