"""Net changes of a table between two editions, whatever happened in between.

Rows are compared, so a rebuild with equal rows changes nothing. For two versions of one Delta table, only rows of the
change feed are compared if it is proven complete, else those of files that only one version has. DuckDB sorts and may
spill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import duckdb

from lake.config import Settings
from lake.lazy import pa
from lake.read.locked_database import connect_spilling, select
from lake.read.sql import EditionReader
from lake.store.comparison import FEED, SIGN, changed_pairs, proven_feed
from lake.store.ledger.editions import Edition, EditionTable
from lake.store.snapshot import Published, published
from lake.store.table_head import CHANGE
from lake.store.warehouse import Warehouse
from lake.text import literal, quoted

BATCH_ROWS: Final = 10_000
NO_CHANGES: Final = "SELECT NULL::VARCHAR AS change, NULL::VARCHAR AS before, NULL::VARCHAR AS after WHERE false"


def stream(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader of all batches but the first, which has the schema and no rows."""
    return pa.RecordBatchReader.from_batches(next(batches).schema, batches)


@dataclass(frozen=True)
class NetChange:
    """`before` or `after` is None if it does not exist."""

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class TableInEdition:
    """`identity` is all columns if the edition records none."""

    edition: Edition
    table: Published
    identity: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings, name: str, edition: Edition | None) -> TableInEdition | None:
        """Return None if the edition lacks the table. Raises LakeError."""
        if edition is None or name not in edition.tables:
            return None
        table = published(settings, name, edition)
        columns = tuple(column.name for column in table.columns)
        return cls(edition, table, tuple(edition.tables[name].identity) or columns)

    @property
    def entry(self) -> EditionTable:
        return self.edition.tables[self.table.name]

    @property
    def row(self) -> str:
        return f"{{{', '.join(f'{literal(name)}: {quoted(name)}' for name in self.types)}}}"

    @property
    def keyed(self) -> list[tuple[str, str]]:
        return [(name, self.types[name]) for name in self.identity]

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.table.columns}

    def sql(self, con: duckdb.DuckDBPyConnection, *, without: Collection[str] = ()) -> str:
        files = tuple(file for file in self.table.files if file not in without)
        return select(con, replace(self.table, files=files))


@dataclass(frozen=True)
class NetChanges:
    """Changes from `before` to `after`, ordered by identity; None if an edition lacks the table."""

    settings: Settings
    before: TableInEdition | None
    after: TableInEdition | None

    @property
    def identity(self) -> tuple[str, ...]:
        side = self.after or self.before
        return side.identity if side else ()

    def arrow(self) -> pa.RecordBatchReader:
        """Return batches of `change`, and `before` and `after` as structs. Raises StorageError, also while read."""
        return stream(self._batches())

    def __iter__(self) -> Iterator[NetChange]:
        for batch in self.arrow():
            yield from map(self._change, batch.to_pylist(maps_as_pydicts="strict"))

    def _change(self, row: dict[str, Any]) -> NetChange:
        before, after = row["before"], row["after"]
        image, side = (before, self.before) if after is None else (after, self.after)
        key = {column: image[column] for column in side.identity} if side else {}
        return NetChange(row["change"], key, before, after)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with connect_spilling(self.settings) as con:
            try:
                reader = con.sql(self._sql(con)).to_arrow_reader(BATCH_ROWS)
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
                yield from reader
            except duckdb.Error as error:
                sides = [side for side in (self.after, self.before) if side]
                unreadable = EditionReader(self.settings, sides[0].edition).unreadable
                raise unreadable(error, [side.table for side in sides]) from None

    def _sql(self, con: duckdb.DuckDBPyConnection) -> str:
        before, after = self.before, self.after
        if before and after and before.keyed == after.keyed:
            alike = before.types == after.types
            rows = self._changed_rows_sql(con, before, after) if alike else (before.sql(con), after.sql(con))
            con.execute(f"CREATE TEMP VIEW old AS {rows[0]}")
            con.execute(f"CREATE TEMP VIEW rows AS {rows[1]}")
            pairs = changed_pairs(list(after.types), after.identity, before=None if alike else list(before.types))
            order = ", ".join(f"coalesce(after.{column}, before.{column})" for column in map(quoted, after.identity))
            return f"SELECT {CHANGE} AS change, before, after FROM ({pairs}) ORDER BY {order}"
        return self._all_rows_sql(con)

    def _changed_rows_sql(
        self, con: duckdb.DuckDBPyConnection, before: TableInEdition, after: TableInEdition
    ) -> tuple[str, str]:
        old, new = before.entry, after.entry
        path = Warehouse(self.settings).root / new.path
        for first, last, sign in ((old, new, 1), (new, old, -1)):
            if old.path == new.path and proven_feed(con, path, first, last):
                columns = ", ".join(map(quoted, after.types))
                net = f"SELECT {columns} FROM {FEED} GROUP BY ALL HAVING {sign} * sum({SIGN})"
                return f"{net} < 0", f"{net} > 0"
        shared = {*before.table.files} & {*after.table.files}
        return before.sql(con, without=shared), after.sql(con, without=shared)

    def _all_rows_sql(self, con: duckdb.DuckDBPyConnection) -> str:
        parts, order = list[str](), ["change"]
        for change, image, side in (("delete", "before", self.before), ("insert", "after", self.after)):
            if side is not None:
                none = "NULL" if self.before and self.after else f"CASE WHEN false THEN {side.row} END"
                images = {"before": none, "after": none, image: side.row}
                columns = ", ".join(f"{sql} AS {name}" for name, sql in images.items())
                parts.append(f"SELECT '{change}' AS change, {columns} FROM ({side.sql(con)})")
                order += [f"{image}.{quoted(column)}" for column in side.identity]
        return f"SELECT * FROM ({' UNION ALL '.join(parts) or NO_CHANGES}) ORDER BY {', '.join(order)}"


def net_changes(settings: Settings, name: str, old: Edition | None, new: Edition) -> NetChanges:
    """Return the changes from `old` (None: empty) to `new`. Raises LakeError."""
    return NetChanges(settings, TableInEdition.of(settings, name, old), TableInEdition.of(settings, name, new))
