"""Copies of published tables as of one position of the log, while others write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from lake.connect.postgres.connection import Connection, fetch
from lake.connect.postgres.source.options import PostgresOptions
from lake.connect.postgres.source.publication import REWRITTEN, Ask, PublishedTable, faults, lock_sql, published_tables
from lake.connect.postgres.source.server import PostgresServer
from lake.errors import DeclarationError, Unavailable

ATTEMPTS: Final = 20


@dataclass(frozen=True)
class ExportedTables:
    """Published tables as of `lsn`, over a connection with that snapshot; `at` is in microseconds since 1970."""

    lsn: int
    at: int
    tables: Mapping[str, PublishedTable]
    connection: Connection

    def rows(self, table: PublishedTable) -> Iterator[tuple[str | None, ...]]:
        with self.connection.cursor() as cursor, cursor.copy(f"COPY ({table.query}) TO STDOUT".encode()) as copy:
            yield from copy.rows()


def matching_tables(ask: Ask, options: PostgresOptions, version: int) -> Mapping[str, PublishedTable]:
    """Return the published tables, queried by `ask`. Raises DeclarationError for all that does not fit the streams."""
    tables, lacking = published_tables(ask, options.publication, version=version, where=options.where)
    wrong = faults(tables, lacking, options)
    if wrong:
        raise DeclarationError.all(wrong)
    return tables


@contextmanager
def export_tables(
    server: PostgresServer, options: PostgresOptions, streams: Sequence[str], version: int
) -> Iterator[ExportedTables]:
    """Yield the tables of `streams` as of one position. Waits for running transactions to end.

    TRUNCATE and table rewrites are visible to older snapshots too (PostgreSQL's documentation, "Caveats" of concurrency
    control). So the tables are locked, and if one came before the lock, another position is taken. Raises Unavailable,
    and DeclarationError as `matching_tables` does.
    """
    for _ in range(ATTEMPTS):
        with server.export_snapshot(options.slot) as (lsn, connection), server.translated_errors():
            at = server.place().at
            ask = partial(fetch, connection)
            to_lock = matching_tables(ask, options, version)
            connection.execute(lock_sql([to_lock[options.tables[stream]] for stream in streams]).encode())
            tables = matching_tables(ask, options, version)
            if not ask(REWRITTEN, [tables[options.tables[stream]].id for stream in streams]):
                yield ExportedTables(lsn, at, tables, connection)
                return
    raise Unavailable(
        "the tables are emptied or rewritten faster than they can be copied", where=options.where, fix="try again"
    )
