"""Small tables, read and written by DuckDB without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import duckdb
from arro3.core import Table
from deltalake.exceptions import TableNotFoundError

from lake.duck import FILE_SYSTEMS, connect
from lake.errors import LakeError, StorageError
from lake.quoting import literal, quoted
from lake.store import archive_tier
from lake.store.delta import (
    FETCHED,
    KEEP_LOGS,
    Position,
    add,
    committing,
    exists,
    missing,
    must_precede,
    opened,
    read_back,
    write,
)
from lake.store.storage import Address
from lake.store.table_log import TableState

if TYPE_CHECKING:
    import pyarrow as pa

FILE: Final = "_file"
PARTITION_TYPES: Final = {"integer": "INTEGER", "long": "BIGINT"}
"""Of columns whose values stand in the names of folders, as DuckDB has them."""


@cache
def _database(file_systems: Sequence[str]) -> duckdb.DuckDBPyConnection:
    del file_systems  # which a database has from its beginning
    return connect()


def connection() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads and writes timestamps in UTC. What is registered, and temporary tables, are its own."""
    return _database(tuple(FILE_SYSTEMS)).cursor()


@contextmanager
def open_files(  # noqa: PLR0913  which rows of which files, and where
    path: Address,
    table: TableState,
    paths: Sequence[str],
    *,
    by_file: bool = False,
    on: duckdb.DuckDBPyConnection | None = None,
    name: str = "t",
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Sequence[str]]]:
    """A DuckDB, `on` this connection, that has the rows of the files `paths` of the `table` at `path` by a `name`, and
    the names of its columns.

    A column that only some files have is null in the others; those by which the table is partitioned are read from the
    names of their folders below the table. With `by_file`, a column FILE says which of the files a row is of. Raises
    StorageError where one is gone or damaged.
    """
    if not path.storage.may_tear and 1 < len(paths) <= FETCHED:
        missing(path, paths, to_read=True)  # so that their ends are there together, not one after another
    partitions = table.metadata().partition_columns
    types = {field.name: PARTITION_TYPES.get(str(field.type.type), "VARCHAR") for field in table.schema().fields}
    with connection() if on is None else nullcontext(on) as con:
        try:
            # DuckDB's own reading of folders' names takes those above the table too, for columns of its files.
            filename = f", filename = '{FILE}'" if partitions or by_file else ""
            listed = ", ".join(map(literal, paths))
            rows = con.sql(f"FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false{filename})")
            if partitions:
                own = [name for name in rows.columns if name not in partitions and (by_file or name != FILE)]
                part = f"regexp_extract({FILE}, '.*/{{}}=([^/]*)/', 1)"
                named = [f"CAST({part.format(name)} AS {types[name]}) AS {quoted(name)}" for name in partitions]
                rows = rows.project(", ".join([*map(quoted, own), *named]))
            con.register(name, rows)
            yield con, rows.columns
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            if broken := _unreadable(path, paths):
                raise broken from None
            raise error


def rows(
    path: Address, query: str, *parameters: Any, version: int | None = None, **beside: Iterable[pa.RecordBatch]
) -> list[dict[str, Any]]:
    """The rows of a DuckDB `query` over the small table at `path`, which it calls `t`; [] where there is no table.

    Over a log, with its archived parts. What is `beside` it: see `selected`.
    """
    try:
        with opened(path, version) as table:
            return query_files(path, table, archive_tier.files(path, table), query, *parameters, **beside)
    except TableNotFoundError:
        return []


def query_files(
    path: Address,
    table: TableState,
    paths: Sequence[str],
    query: str,
    *parameters: Any,
    **beside: Iterable[pa.RecordBatch],
) -> list[dict[str, Any]]:
    """The rows of a DuckDB `query` over the files `paths` of the `table` at `path`, which it calls `t`; [] of none.

    It has what is `beside` it, as tables of these names; of each a part at a time is in this process.
    """
    if not paths:
        return []
    with open_files(path, table, paths) as (con, _):
        for name, parts in beside.items():
            for part in parts:
                con.register("part", part)
                con.execute(f"CREATE TEMP TABLE IF NOT EXISTS {quoted(name)} AS FROM part LIMIT 0")
                con.execute(f"INSERT INTO {quoted(name)} FROM part")
        result = con.execute(query, list(parameters))
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _unreadable(path: Address, paths: Sequence[str]) -> LakeError | None:
    """Which of the files `paths` of the table at `path` is gone, or cannot be read; None where all can."""
    for file in paths:
        if missing(path, [file]):
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
    """Appends `records` (tuples in the order of `schema`, e.g. `cut BIGINT, made_at TIMESTAMPTZ`) in one commit.

    The table is made on first use. Decimals, timestamps and nulls keep their types through DuckDB. Raises Beaten where
    the table is not just before the `position`.
    """
    with connection() as con:
        con.execute(f"CREATE TEMP TABLE t ({schema})")
        if records:
            con.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(records[0]))})", records)
        data = Table.from_arrow(con.table("t"))
    there = exists(path)
    how: dict[str, Any] = {"schema_mode": "merge"} if there else {"configuration": KEEP_LOGS}
    if position is None:
        add(path, data, **how)
        return
    with read_back(path, position.writer):
        if there:
            with committing(path) as table:
                must_precede(table, position)
                write(table, data, position, **how)
        else:
            write(path, data, position, **how)
