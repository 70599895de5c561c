"""A SQLite file as a target: each table has a row's name and the row as JSON, of one edition."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, Target, TargetTable

if TYPE_CHECKING:
    import pyarrow as pa

POSITION = "headwater_position"


class SqliteTarget:
    """Target in `file`. Rows and position change in one transaction."""

    def __init__(self, name: str, file: Path) -> None:
        self.name, self.file = name, file
        self._database: sqlite3.Connection | None = None

    def position(self) -> SinkPosition | None:
        with self._transaction() as database:
            return self._position(database)

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        with self._transaction() as database:
            if not delivery.anew:
                delivery.check_position(self._position(database))
            for changes in delivery.tables:
                self._apply(database, delivery, changes)
            position = delivery.position()
            database.execute(f"CREATE TABLE IF NOT EXISTS {POSITION} (sink TEXT PRIMARY KEY, position TEXT)")
            database.execute(f"INSERT OR REPLACE INTO {POSITION} VALUES (?, ?)", [self.name, position.to_json()])
            return position

    def rows(self, table: TargetTable) -> pa.RecordBatchReader:
        """Return the rows for `lake verify --sink`."""
        with self._transaction() as database:
            return named_rows(table, [database.execute(f'SELECT name, row FROM "{table.far}"').fetchall()], self._wrong)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _apply(self, database: sqlite3.Connection, delivery: SinkDelivery, changes: TableChanges) -> None:
        table = changes.table.far
        if _exists(database, table) and delivery.shape_in_target(changes.table) is None and not delivery.anew:
            fix = f"give the table another `name`; or lake deliver {self.name} --resync replaces it"
            raise DeclarationError(f"{table} exists, and is not of this sink", where=str(self.file), fix=fix)
        if changes.whole:
            database.execute(f'DROP TABLE IF EXISTS "{table}"')
        database.execute(f'CREATE TABLE IF NOT EXISTS "{table}" (name TEXT PRIMARY KEY, row TEXT)')
        for batch in json_rows(changes):
            for row in batch.to_pylist():
                if row["after"] is None:
                    database.execute(f'DELETE FROM "{table}" WHERE name = ?', [row["name"]])
                else:
                    database.execute(f'INSERT OR REPLACE INTO "{table}" VALUES (?, ?)', [row["name"], row["after"]])

    def _position(self, database: sqlite3.Connection) -> SinkPosition | None:
        if not _exists(database, POSITION):
            return None
        found = database.execute(f"SELECT position FROM {POSITION} WHERE sink = ?", [self.name]).fetchone()
        return SinkPosition.from_json(found[0]) if found else None

    def _wrong(self, table: TargetTable, name: str) -> LakeError:
        fix = f"lake deliver {self.name} --resync"
        return LakeError(f"the row named {name} of {table.far} is another", where=str(self.file), fix=fix)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._database is None:
                self._database = sqlite3.connect(self.file, isolation_level=None)
            self._database.execute("BEGIN IMMEDIATE")  # another deliverer waits here
            try:
                yield self._database
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            raise Unavailable(f"SQLite: {error}", where=str(self.file), fix="check the file, and try again") from None


def _exists(database: sqlite3.Connection, table: str) -> bool:
    return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall())


def _open(declaration: SinkDeclaration) -> Target:
    return SqliteTarget(declaration.name, declaration.settings.path(declaration.options["file"]))


KIND = SinkKind(_open, modes=("mirror",), options={"file": (str, None)})
