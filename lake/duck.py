"""Connections to DuckDB: in UTC, and without the bar by which it shows, on stdout, how far a long query is.

What a query holds beyond `bound` is put into files in a folder, which are gone when the process ends.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import duckdb

FILE_SYSTEMS: Final[dict[str, Any]] = {}
"""What reads files whose addresses begin so, `s3` for one: file systems of fsspec, which each connection has."""


_BOUNDS: Final[dict[str, str]] = {}


def bound(memory: int, folder: Path) -> None:
    """Lets the queries of a connection that is made from now on hold `memory` bytes, and put the rest into `folder`,
    or where this user may not write there, into that of the machine for temporary files.

    DuckDB makes a folder of its own there when it is needed; it is removed when the process ends.
    """
    there = folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    spilled = there / f"duckdb-{os.getpid()}-{secrets.token_hex(8)}"
    atexit.register(shutil.rmtree, spilled, ignore_errors=True)
    _BOUNDS.update(memory_limit=f"{memory}B", temp_directory=str(spilled))


def connect(file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """A connection to a database of its own in memory, or to that in `file`."""
    con = duckdb.connect(file, config=dict(_BOUNDS))
    con.execute("SET GLOBAL TimeZone = 'UTC'; SET enable_progress_bar = false")  # a cursor shows no bar by itself
    for system in FILE_SYSTEMS.values():
        con.register_filesystem(system)
    return con
