"""Net changes: what became of the rows of a table between two editions, whatever led from the one to the other.

The rows of the two are compared, so a rebuild that gives the same rows changes nothing, a rollback changes what was
changed back, and it does not matter whether a deploy came between. Of two versions of one Delta table, the change feed
tells the rows that may differ, where it is proven to be whole; else only those of files are read that the two do not
share. DuckDB compares and sorts, on disk where memory does not do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.config import Settings
from lake.duck import connect
from lake.quoting import literal, quoted
from lake.read.sql import Reader, select, spill
from lake.store.comparison import changed_pairs
from lake.store.feed import FEED, SIGN, proven_feed
from lake.store.ledger.editions import Edition, EditionTable
from lake.store.snapshot import Published, published
from lake.store.table_head import CHANGE
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 10_000
"""The most rows of one batch."""
NOTHING: Final = "SELECT NULL::VARCHAR AS change, NULL::VARCHAR AS before, NULL::VARCHAR AS after WHERE false"


@dataclass(frozen=True)
class Change:
    """What became of a row: `change` is insert, update or delete; `before` and `after` are its visible columns, None
    where it is not there. `key` are the columns that tell it from all others.
    """

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class Side:
    """A table as an edition has it, and the columns that tell its rows apart: all, where the edition does not say."""

    edition: Edition
    table: Published
    identity: tuple[str, ...]

    @classmethod
    def of(cls, settings: Settings, name: str, edition: Edition | None) -> Side | None:
        """None where the edition has no such table. Raises LakeError where it cannot be read."""
        if edition is None or name not in edition.tables:
            return None
        table = published(settings, name, edition)
        columns = tuple(column.name for column in table.columns)
        return cls(edition, table, tuple(edition.tables[name].identity) or columns)

    @property
    def entry(self) -> EditionTable:
        """What the edition says of the table."""
        return self.edition.tables[self.table.name]

    @property
    def row(self) -> str:
        """SQL of a row as a struct."""
        return f"{{{', '.join(f'{literal(name)}: {quoted(name)}' for name in self.types)}}}"

    @property
    def keyed(self) -> list[tuple[str, str]]:
        """The columns that tell rows apart, with their types."""
        return [(name, self.types[name]) for name in self.identity]

    @property
    def types(self) -> dict[str, str]:
        """The visible columns with their types."""
        return {column.name: column.type for column in self.table.columns}

    def sql(self, con: duckdb.DuckDBPyConnection, *, without: Collection[str] = ()) -> str:
        """SQL of its rows, without those of some of its files."""
        files = tuple(file for file in self.table.files if file not in without)
        return select(con, replace(self.table, files=files))


@dataclass(frozen=True)
class NetChanges:
    """What leads from one side of a table to the other; None where it is not there: before it joined, once it retired.

    Rows come in the order of their identity.
    """

    settings: Settings
    before: Side | None
    after: Side | None

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell rows apart, those of a deleted row too where that is not told apart by others."""
        side = self.after or self.before
        return side.identity if side else ()

    def arrow(self) -> pa.RecordBatchReader:
        """The changes as record batches: `change`, and the rows `before` and `after` as structs, null where there is
        none. Raises StorageError, also while it is read, where files cannot be.
        """
        import pyarrow as pa

        batches = self._batches()
        return pa.RecordBatchReader.from_batches(next(batches).schema, batches)

    def __iter__(self) -> Iterator[Change]:
        """The changes as rows of Python. Raises as `arrow` does."""
        for batch in self.arrow():
            yield from map(self._change, batch.to_pylist(maps_as_pydicts="strict"))

    def _change(self, row: dict[str, Any]) -> Change:
        before, after = row["before"], row["after"]
        image, side = (before, self.before) if after is None else (after, self.after)
        key = {column: image[column] for column in side.identity} if side else {}
        return Change(row["change"], key, before, after)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """An empty batch, which tells the columns, then those with rows."""
        import pyarrow as pa

        with connect() as con:
            con.execute(f"SET temp_directory = {literal(str(spill(self.settings)))}")
            try:
                reader = con.sql(self._sql(con)).to_arrow_reader(BATCH_ROWS)
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)
                yield from reader
            except duckdb.Error as error:
                sides = [side for side in (self.after, self.before) if side]
                unreadable = Reader(self.settings, sides[0].edition).unreadable
                raise unreadable(error, [side.table for side in sides]) from None

    def _sql(self, con: duckdb.DuckDBPyConnection) -> str:
        """The changes in order; makes the views that it reads."""
        before, after = self.before, self.after
        if before and after and before.keyed == after.keyed:
            alike = before.types == after.types
            rows = self._differing(con, before, after) if alike else (before.sql(con), after.sql(con))
            con.execute(f"CREATE TEMP VIEW old AS {rows[0]}")
            con.execute(f"CREATE TEMP VIEW rows AS {rows[1]}")
            pairs = changed_pairs(list(after.types), after.identity, before=None if alike else list(before.types))
            order = ", ".join(f"coalesce(after.{column}, before.{column})" for column in map(quoted, after.identity))
            return f"SELECT {CHANGE} AS change, before, after FROM ({pairs}) ORDER BY {order}"
        return self._replaced(con)

    def _differing(self, con: duckdb.DuckDBPyConnection, before: Side, after: Side) -> tuple[str, str]:
        """SQL of the rows of both sides that the other may not have: by the feed, else those of files of its own."""
        old, new = before.entry, after.entry
        path = Warehouse(self.settings).root / new.path
        for first, last, sign in ((old, new, 1), (new, old, -1)):
            if old.path == new.path and proven_feed(con, path, first, last):
                columns = ", ".join(map(quoted, after.types))
                net = f"SELECT {columns} FROM {FEED} GROUP BY ALL HAVING {sign} * sum({SIGN})"
                return f"{net} < 0", f"{net} > 0"
        shared = {*before.table.files} & {*after.table.files}
        return before.sql(con, without=shared), after.sql(con, without=shared)

    def _replaced(self, con: duckdb.DuckDBPyConnection) -> str:
        """All rows before as deletes, then all rows after as inserts: no row of one side is one of the other."""
        parts, order = list[str](), ["change"]
        for change, image, side in (("delete", "before", self.before), ("insert", "after", self.after)):
            if side is not None:
                none = "NULL" if self.before and self.after else f"CASE WHEN false THEN {side.row} END"
                images = {"before": none, "after": none, image: side.row}
                columns = ", ".join(f"{sql} AS {name}" for name, sql in images.items())
                parts.append(f"SELECT '{change}' AS change, {columns} FROM ({side.sql(con)})")
                order += [f"{image}.{quoted(column)}" for column in side.identity]
        return f"SELECT * FROM ({' UNION ALL '.join(parts) or NOTHING}) ORDER BY {', '.join(order)}"


def net_changes(settings: Settings, name: str, old: Edition | None, new: Edition) -> NetChanges:
    """What became of the rows of table `name` from edition `old` to edition `new`; all are inserts from none.

    A table that one of them does not have has no rows there. Raises LakeError where one cannot be read.
    """
    return NetChanges(settings, Side.of(settings, name, old), Side.of(settings, name, new))
