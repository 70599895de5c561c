"""Locked databases: DuckDB that reads the exact files of some tables, and writes nothing but answers.

A shared one stays open for later queries of the same reader. Each query runs on a cursor of its own, in a read-only
transaction that is rolled back, so it leaves no table, setting or prepared statement behind.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import duckdb

from lake.config import Settings
from lake.errors import LakeError
from lake.read.query import QueryResult, run_query
from lake.session import file_modes
from lake.session.duck import connect
from lake.store.ledger.editions import Edition
from lake.store.snapshot import Published
from lake.text import literal, parquet_rows, quoted

if TYPE_CHECKING:
    from lake.read.relation import SystemRelation

CACHED_RESULTS: Final = 100
"""Greatest number of bound queries that a database caches."""


def open_database(
    settings: Settings,
    edition: Edition,
    tables: Iterable[Published],
    relations: Sequence[SystemRelation] = (),
    *,
    is_limited: bool,
) -> duckdb.DuckDBPyConnection:
    """Return a connection to a new locked database, with the limits of a remote reader's query if `is_limited`.

    Raises duckdb.Error if a file is unreadable.
    """
    copies = [relation for relation in relations if relation.copied]
    views = [relation for relation in relations if not relation.copied]
    tables = [*tables]
    sources: list[Published | SystemRelation] = [*tables, *views]
    con = connect_spilling(settings)
    if is_limited:
        con.execute(f"SET memory_limit = '{settings.serve.query_memory}B'")
        con.execute(f"SET max_temp_directory_size = '{settings.serve.query_disk}B'")
    for copy in copies:
        copy.create(con)
    _restrict(con, [answer_file().path, *(file for source in sources for file in source.files)])
    for layer in {table.layer for table in tables}:
        con.execute(f"CREATE SCHEMA {quoted(layer)}")
    for table in tables:
        name = quoted(table.name)
        con.execute(f"CREATE VIEW {quoted(table.layer)}.{name} AS {select(con, table)}")
        con.execute(f"CREATE VIEW {name} AS FROM {quoted(table.layer)}.{name}")
        create_as_of(con, edition, table)
    for view in views:
        view.create(con)
    con.execute("SET lock_configuration = true")
    return con


def _restrict(con: duckdb.DuckDBPyConnection, files: Iterable[str]) -> None:
    con.execute(
        f"""SET allowed_paths = [{", ".join(map(literal, files))}];
            SET allowed_directories = [];
            SET enable_external_access = false;
            SET autoinstall_known_extensions = false;
            SET autoload_known_extensions = false;
            SET python_enable_replacements = false;
            SET parquet_metadata_cache = true;
            SET default_transaction_invalidation_policy = 'SYNTACTIC_ERRORS_DO_NOT_INVALIDATE'"""
    )


@dataclass
class SharedDatabase:
    """Locked database of the tables that queries of an edition named so far. Used by one query at a time."""

    settings: Settings
    edition: Edition
    is_limited: bool
    tables: dict[str, Published] = field(default_factory=dict)
    _con: duckdb.DuckDBPyConnection | None = None
    _results: dict[str, QueryResult] = field(default_factory=dict)

    def cursor(self, tables: Iterable[Published]) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Return a connection for one query of `tables`. Raises duckdb.Error if one of them is unreadable."""
        new = {table.name: table for table in tables}
        if self._con is None or not new.keys() <= self.tables.keys():
            self._open(new)
        return self._query()

    def result(self, con: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
        """Return the result of `query`, cached if it is repeated. `con` is of `cursor`."""
        if query in self._results:
            return self._results[query]
        result = run_query(con, query)
        if result.is_lazy:
            if len(self._results) >= CACHED_RESULTS:
                self._results.clear()
            self._results[query] = result
        return result

    def close(self) -> None:
        if self._con is not None:
            self._con.close()
        self._con, self.tables, self._results = None, {}, {}

    def _open(self, new: dict[str, Published]) -> None:
        wanted = {**self.tables, **new}
        self.close()
        try:
            self._con = self._connect(wanted)
        except duckdb.Error:  # a table of an earlier query may be damaged
            if wanted == new:
                raise
            self._con, wanted = self._connect(new), new
        self.tables = wanted

    def _connect(self, tables: dict[str, Published]) -> duckdb.DuckDBPyConnection:
        return open_database(self.settings, self.edition, tables.values(), is_limited=self.is_limited)

    @contextmanager
    def _query(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor. The database is closed after any error that is not one of the query."""
        assert self._con is not None
        con = self._con.cursor()
        try:
            con.execute("BEGIN TRANSACTION READ ONLY")
            yield con
        except (duckdb.ProgrammingError, duckdb.DataError, LakeError, OSError):
            raise
        except BaseException:
            self.close()
            raise
        finally:
            with suppress(duckdb.Error):
                con.rollback()
            con.close()


class AnswerFile:
    """File descriptor of this process that an answer is written to: the only file that a query may write."""

    def __init__(self) -> None:
        unused, self._number = os.pipe()  # the path of a pipe stays as it is, although it is a link
        os.close(unused)
        self._closed = os.dup(self._number)
        self._lock = Lock()
        self.path = f"/dev/fd/{self._number}"

    @contextmanager
    def pipe(self) -> Iterator[int]:
        """Yield the reading end of a pipe, which the caller closes. It is written until the block ends."""
        read_end, write_end = os.pipe()
        with self._lock:
            os.dup2(write_end, self._number, inheritable=False)
            os.close(write_end)
            try:
                yield read_end
            finally:
                os.dup2(self._closed, self._number, inheritable=False)


@cache
def answer_file() -> AnswerFile:
    return AnswerFile()


def as_of_macro(table: str) -> str:
    return f"{table}_at"


def create_as_of(con: duckdb.DuckDBPyConnection, edition: Edition, table: Published) -> None:
    """Create the macro that reads a table with versions as of a moment, unless a table has its name."""
    if table.has_versions and as_of_macro(table.name.lower()) not in {name.lower() for name in edition.tables}:
        rows = f"FROM {quoted(table.name)} WHERE valid_from <= moment AND (valid_to IS NULL OR moment < valid_to)"
        con.execute(f"CREATE MACRO {quoted(as_of_macro(table.name))}(moment) AS TABLE {rows}")


def select(con: duckdb.DuckDBPyConnection, table: Published) -> str:
    """Return SQL of the table's rows; a column that an older file lacks is null."""
    if not table.files:
        columns = (f"CAST(NULL AS {column.type}) AS {quoted(column.name)}" for column in table.columns)
        return f"SELECT {', '.join(columns)} WHERE false"
    source = parquet_rows(table.files)
    stored = {row[0] for row in con.execute(f"DESCRIBE FROM {source}").fetchall()}
    columns = (
        f"CAST({quoted(column.name) if column.name in stored else 'NULL'} AS {column.type}) AS {quoted(column.name)}"
        for column in table.columns
    )
    return f"SELECT {', '.join(columns)} FROM {source}"


def connect_spilling(settings: Settings, file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Connect with a new folder for spilling: DuckDB lets a query read it, so each connection has its own."""
    con = connect(file)
    folder = _spill_folder(settings) / f"headwater-{os.getpid()}-{secrets.token_hex(8)}"
    con.execute(f"SET temp_directory = {literal(str(folder))}")
    return con


def spill_folders(settings: Settings, pid: int) -> list[Path]:
    """Return the folders for spilling that process `pid` has left behind."""
    return [*_spill_folder(settings).glob(f"headwater-{pid}-*")]


def _spill_folder(settings: Settings) -> Path:
    try:
        folder = file_modes.scratch(settings, "sql")
    except OSError:
        folder = settings.path(".lake/sql")
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
