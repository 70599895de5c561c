"""DuckDB in this process: its connections, queries over files of Delta tables, and appends of few rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import duckdb
from arro3.core import Schema, Table
from deltalake.exceptions import TableNotFoundError

from lake.errors import LakeError, StorageError
from lake.lazy import SparkSession, pa
from lake.session.duck import FILE_SYSTEMS, connect
from lake.store import archive_tier
from lake.store.delta import Position, exists, opened
from lake.store.delta_writer import KEEP_LOGS, add, read_back, write
from lake.store.storage import Address
from lake.store.storage.objects import FETCHED
from lake.store.table_log import TableState
from lake.text import parquet_rows, quoted

FILE: Final = "_file"
PARTITION_TYPES: Final = {"integer": "INTEGER", "long": "BIGINT"}


@cache
def _database(file_systems: Sequence[str]) -> duckdb.DuckDBPyConnection:
    del file_systems  # a database keeps those of its creation
    return connect()


def connection() -> duckdb.DuckDBPyConnection:
    return _database(tuple(FILE_SYSTEMS)).cursor()


def in_process_session() -> SparkSession:
    """Return a session that DuckDB answers. Each holds what it has translated, so it is for one piece of work."""
    from lake.session.in_process.session import session_of

    return session_of(_database(tuple(FILE_SYSTEMS)))


@dataclass(frozen=True)
class TableFiles:
    """Files `paths` of `table`, the one at `path`, or of its archived parts."""

    path: Address
    table: TableState
    paths: Sequence[str]


@contextmanager
def open_files(
    files: TableFiles, *, by_file: bool = False, on: duckdb.DuckDBPyConnection | None = None, name: str = "t"
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Sequence[str]]]:
    """Yield a DuckDB connection with the rows of the files registered as `name`, and their column names.

    A column that only some files have is null in the others. Partition columns are read from folder names below the
    table. With `by_file`, the column FILE is the file of a row. Raises StorageError if a file is missing or damaged.
    """
    path, paths = files.path, files.paths
    if 1 < len(paths) <= FETCHED:
        wait(path.storage.begin(path.storage.to_read, paths).values())
    partitions = files.table.metadata().partition_columns
    fields = files.table.schema().fields
    types = {field.name: PARTITION_TYPES.get(str(field.type.type), "VARCHAR") for field in fields}
    with connection() if on is None else nullcontext(on) as con:
        try:
            # DuckDB's hive partitioning would also use the names of folders above the table.
            filename = [f"filename = '{FILE}'"] if partitions or by_file else []
            rows = con.sql(f"FROM {parquet_rows(paths, *filename)}") if paths else con.from_arrow(_no_rows(files.table))
            if partitions and paths:
                own = [name for name in rows.columns if name not in partitions and (by_file or name != FILE)]
                part = f"regexp_extract({FILE}, '.*/{{}}=([^/]*)/', 1)"
                named = [f"CAST({part.format(name)} AS {types[name]}) AS {quoted(name)}" for name in partitions]
                rows = rows.project(", ".join([*map(quoted, own), *named]))
            con.register(name, rows)
            yield con, rows.columns
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:
            if broken := _unreadable(path, paths):
                raise broken from None
            raise


def _no_rows(table: TableState) -> Table:
    return Table.from_batches([], schema=Schema.from_arrow(table.schema()))


def rows(
    path: Address, query: str, *parameters: Any, version: int | None = None, **more_tables: Iterable[pa.RecordBatch]
) -> list[dict[str, Any]]:
    try:
        with opened(path, version) as table:
            return query_files(
                TableFiles(path, table, archive_tier.files(path, table)), query, *parameters, **more_tables
            )
    except TableNotFoundError:
        return []


def greatest(path: Address, column: str, where: str = "true", *parameters: Any) -> int:
    """Return the greatest value of a numeric `column`; 0 without rows."""
    found = rows(path, f"SELECT max({column}) AS n FROM t WHERE {where}", *parameters)
    return max((row["n"] or 0 for row in found), default=0)


def query_files(
    files: TableFiles, query: str, *parameters: Any, **more_tables: Iterable[pa.RecordBatch]
) -> list[dict[str, Any]]:
    """Return the rows of a DuckDB `query` over the files as `t`; [] without files.

    `more_tables` are loaded beside `t` under their names, one batch at a time.
    """
    if not files.paths:
        return []
    with open_files(files) as (con, _):
        for name, parts in more_tables.items():
            for part in parts:
                con.register("part", part)
                con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {quoted(name)} AS FROM part LIMIT 0")
                con.execute(f"INSERT INTO {quoted(name)} FROM part")
        result = con.execute(query, list(parameters))
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _unreadable(path: Address, paths: Sequence[str]) -> LakeError | None:
    for file in paths:
        if path.missing([file]):
            return StorageError(f"a file of {path.name} is gone", where=file, fix="restore it from a backup")
        with connection() as con:
            try:
                con.execute("SELECT max(hash(t)) FROM read_parquet(?) t", [file]).fetchall()
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error:
                return StorageError(f"a file of {path.name} is damaged", where=file, fix="restore it from a backup")
    return None


def append(path: Address, schema: str, records: Sequence[Sequence[Any]], position: Position | None = None) -> None:
    """Append `records` (tuples in the order of `schema`, e.g. `cut BIGINT, made_at TIMESTAMPTZ`) in one commit.

    Creates the table on first use. Raises Beaten if the table is not just before `position`.
    """
    with connection() as con:
        con.execute(f"CREATE TEMP TABLE t ({schema})")
        if records:
            con.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(records[0]))})", records)
        data = Table.from_arrow(con.table("t"))
    how: dict[str, Any] = {"schema_mode": "merge"} if exists(path) else {"configuration": KEEP_LOGS}
    if position is None:
        add(path, data, **how)
        return
    with read_back(path, position.writer):
        write(path, data, position, **how)
