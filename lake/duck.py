"""Connections to DuckDB: in UTC, and without the bar by which it shows, on stdout, how far a long query is."""

from __future__ import annotations

import duckdb


def connect(file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """A connection to a database of its own in memory, or to that in `file`."""
    return settled(duckdb.connect(file))


def settled(con: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """The connection with these settings, which a cursor does not have of the connection that it is of."""
    con.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return con
