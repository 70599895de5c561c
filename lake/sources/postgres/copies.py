"""The published tables exactly as they are at one place of the log, while others write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lake.errors import DeclarationError, Unavailable
from lake.sources.postgres.options import Options
from lake.sources.postgres.publication import REWRITTEN, Ask, Table, faults, locking, published
from lake.sources.postgres.server import Server

if TYPE_CHECKING:
    from lake.sources.postgres.connection import Connection

ATTEMPTS: Final = 20
"""So often a place for a copy is taken before it is given up for now."""


@dataclass(frozen=True)
class Exported:
    """The published tables as of `lsn`, over a connection that sees them so; `at` is microseconds since 1970."""

    lsn: int
    at: int
    tables: Mapping[str, Table]
    connection: Connection

    def rows(self, table: Table) -> Iterator[tuple[str | None, ...]]:
        with self.connection.cursor() as cursor, cursor.copy(f"COPY ({table.query}) TO STDOUT".encode()) as copy:
            yield from copy.rows()


def fitting(ask: Ask, options: Options, version: int) -> Mapping[str, Table]:
    """The published tables, as `ask` sees them. Raises DeclarationError for all that does not fit the streams."""
    tables, lacking = published(ask, options.publication, version=version, where=options.where)
    wrong = faults(tables, lacking, options)
    if wrong:
        raise DeclarationError.all(wrong)
    return tables


@contextmanager
def exporting(server: Server, options: Options, streams: Sequence[str], version: int) -> Iterator[Exported]:
    """The tables of `streams` as of a place. Waits until the transactions that are running have ended.

    What empties or rewrites a table shows at once to those who look at an earlier state too (PostgreSQL's
    documentation, "Caveats" of concurrency control). So that is kept out while the block lasts, and where it came
    between the place and that, another place is taken. Raises Unavailable, and DeclarationError as `fitting` does.
    """
    for _ in range(ATTEMPTS):
        with server.exported(options.slot) as (lsn, connection), server.asking():
            at = server.place().at

            def ask(sql: str, *parameters: object, of: Connection = connection) -> list[tuple[Any, ...]]:
                return of.execute(sql.encode(), parameters).fetchall()

            export = fitting(ask, options, version)
            connection.execute(locking([export[options.tables[stream]] for stream in streams]).encode())
            tables = fitting(ask, options, version)
            if not ask(REWRITTEN, [tables[options.tables[stream]].id for stream in streams]):
                yield Exported(lsn, at, tables, connection)
                return
    raise Unavailable(
        "the tables are emptied or rewritten faster than they can be copied", where=options.where, fix="try again"
    )
