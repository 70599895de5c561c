"""Connections to DuckDB: in UTC, and without the bar by which it shows, on stdout, how far a long query is."""

from __future__ import annotations

from typing import Any, Final

import duckdb

FILE_SYSTEMS: Final[dict[str, Any]] = {}
"""What reads files whose addresses begin so, `s3` for one: file systems of fsspec, which each connection has."""


def connect(file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """A connection to a database of its own in memory, or to that in `file`."""
    con = duckdb.connect(file)
    con.execute("SET GLOBAL TimeZone = 'UTC'; SET enable_progress_bar = false")  # a cursor shows no bar by itself
    for system in FILE_SYSTEMS.values():
        con.register_filesystem(system)
    return con
