"""Tables of a SQLite file as a source. Rows are only added to them, with growing values of `rowid`.

Progress is {stream: rowid of the last row read}.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from lake.errors import DeclarationError, Unavailable
from lake.sources.source import (
    Gap,
    Lag,
    Progress,
    Source,
    SourceDeclaration,
    SourceFact,
    SourceKind,
    SourceRecord,
    Spool,
)

ROWS = 10_000
"""Maximum number of rows of a table in one range."""
ROWID = SourceFact("sqlite.rowid", "long", "the row's number in its table")


class SqliteSource:
    """Source of the tables of `file`, given by stream."""

    def __init__(self, file: Path, tables: Mapping[str, str], where: str) -> None:
        self.file, self.tables, self.where = file, tables, where
        self.more = False

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.tables)

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        progress = {**dict.fromkeys(self.tables, 0), **(after or {})}
        self.more = False
        with self._connection() as database:
            for stream, table in self.tables.items():
                self._check_kept(database, table, progress[stream])
                rows = database.execute(
                    f'SELECT rowid, * FROM "{table}" WHERE rowid > ? ORDER BY rowid LIMIT {ROWS}', [progress[stream]]
                ).fetchall()
                for rowid, *values in rows:
                    record = dict(zip(_columns(database, table), values, strict=True))
                    facts = {ROWID.name: str(rowid)}
                    spool.put(stream, SourceRecord(json.dumps(record), place=f"{table}:{rowid}", facts=facts))
                    progress[stream] = rowid
                self.more = self.more or len(rows) == ROWS
        return progress if progress != after and any(progress.values()) else None

    def acknowledge(self, upto: Progress) -> None:
        """Do nothing: the file keeps its rows."""

    def lag(self, after: Progress | None) -> Lag:
        with self._connection() as database:
            counts = [
                database.execute(f'SELECT count(*) FROM "{table}" WHERE rowid > ?', [(after or {}).get(stream, 0)])
                for stream, table in self.tables.items()
            ]
            return Lag(events=sum(count for cursor in counts for (count,) in cursor))

    def skip_gap(self, after: Progress | None) -> Progress:
        """Return a position from which all rows that exist are read again."""
        return dict.fromkeys(self.tables, 0)

    def close(self) -> None:
        """Do nothing: each call opens the file."""

    def _check_kept(self, database: sqlite3.Connection, table: str, rowid: int) -> None:
        (newest,) = database.execute(f'SELECT coalesce(max(rowid), 0) FROM "{table}"').fetchone()
        if newest < rowid:
            raise Gap(
                f"{table} ends at row {newest}, and rows up to {rowid} have been read",
                where=str(self.file),
                fix="find out who removed them; lake ingest NAME --give-up reads the table again from its first row",
            )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as database:
                yield database
        except sqlite3.OperationalError as error:
            raise Unavailable(f"SQLite: {error}", where=str(self.file), fix="check the file, and try again") from None


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, *_ in database.execute(f'PRAGMA table_info("{table}")')]


def _open(declaration: SourceDeclaration) -> Source:
    options, where = declaration.values, declaration.where
    file, tables = options.get("file"), options.get("streams")
    if not isinstance(file, str) or not isinstance(tables, dict) or not tables:
        raise DeclarationError("expected file and [streams]", where=where, fix='file = "shop.sqlite"')
    return SqliteSource(declaration.settings.path(file), tables, where)


KIND = SourceKind(_open, transactional=False, facts=[ROWID])
