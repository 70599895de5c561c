"""Difference of a table between two editions: changed rows, and their causes.

Needs no JVM to compare rows. Files that both editions have are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lake.engine.explain.blame import find_causes
from lake.engine.explain.explain import InputCauses
from lake.engine.lookup import Few, Values
from lake.errors import DeclarationError, did_you_mean
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.read.sql import select
from lake.store import duckdb_tables
from lake.store.comparison import changed_pairs
from lake.store.ledger.editions import Edition, EditionTable, get_edition
from lake.store.snapshot import Published, published
from lake.store.table_head import CHANGE, Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RowChange:
    """A row that differs: `change` is insert, update or delete; `before` or `after` is None if there is no such row."""

    change: str
    identity: Values
    before: Values | None
    after: Values | None
    sides: tuple[InputCauses, ...] = ()

    @property
    def columns(self) -> dict[str, tuple[Any, Any]]:
        if self.before is None or self.after is None:
            return {}
        return {name: (self.before[name], new) for name, new in self.after.items() if self.before[name] != new}


@dataclass(frozen=True)
class ColumnChanges:
    """Columns that differ; `retyped` has the old and the new type."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    retyped: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class TableVersions:
    """One table in two editions."""

    before: Published
    after: Published

    @property
    def columns(self) -> ColumnChanges:
        was, now = ({column.name: column.type for column in table.columns} for table in (self.before, self.after))
        return ColumnChanges(
            tuple(name for name in now if name not in was),
            tuple(name for name in was if name not in now),
            {name: (was[name], now[name]) for name in now if name in was and was[name] != now[name]},
        )

    @property
    def common(self) -> list[str]:
        return [column.name for column in self.after.columns if column.name not in self.columns.added]

    def identity(self, declaration: Declaration | None) -> list[str]:
        """Return the columns that identify a row: the key, or all if an edition lacks a key column."""
        key = list(declaration.kind.identity) if declaration is not None else self.common
        return key if set(key) <= set(self.common) else self.common

    def narrowed(self, table: Published) -> Published:
        """Return `table` with only common columns (VARCHAR if types differ) and unshared files."""
        types = {column.name: column for column in table.columns}
        retyped, shared = self.columns.retyped, {*self.before.files} & {*self.after.files}
        columns = (replace(types[name], type="VARCHAR") if name in retyped else types[name] for name in self.common)
        return replace(table, files=tuple(file for file in table.files if file not in shared), columns=tuple(columns))


@dataclass(frozen=True)
class EditionDiff:
    """Difference of `table`, with a `sample` per kind of change; `notes` name reasons other than events."""

    table: str
    editions: tuple[Edition, Edition]
    counts: Counts
    columns: ColumnChanges
    sample: tuple[RowChange, ...]
    notes: tuple[str, ...]

    @property
    def cuts(self) -> tuple[int, int]:
        old, new = self.editions
        return old.cut_of(self.table), new.cut_of(self.table)


def diff_editions(  # noqa: PLR0913 which editions, and how much
    project: Project,
    connect: Callable[[], SparkSession] | None,
    name: str,
    *,
    old: int,
    new: int,
    limit: int = 10,
) -> EditionDiff:
    """Compare table `name` in two editions, with at most `limit` rows per kind of change.

    Without `connect`, causes are not searched. Raises DeclarationError for an unknown edition or table.
    """
    settings = project.settings
    editions = get_edition(settings, old), get_edition(settings, new)
    entries = _entry(editions[0], name), _entry(editions[1], name)
    pair = TableVersions(*(published(settings, name, edition) for edition in editions))
    declaration = project.tables.get(name)
    counts, rows = _compare(pair, pair.identity(declaration), limit)
    notes = list(_notes(name, editions, entries, declaration))
    if connect is not None and rows and declaration is not None:
        causes = find_causes(project, connect, declaration, editions, [row.identity for row in rows], Few.of(limit))
        rows = [replace(row, sides=sides) for row, sides in zip(rows, causes.sides, strict=True)]
        notes += causes.notes
    return EditionDiff(name, editions, counts, pair.columns, tuple(rows), tuple(notes))


def _entry(edition: Edition, name: str) -> EditionTable:
    if name not in edition.tables:
        raise DeclarationError(
            f"edition {edition.number} has no table {name!r}", fix=did_you_mean(name, edition.tables)
        )
    return edition.tables[name]


def _compare(pair: TableVersions, identity: Sequence[str], limit: int) -> tuple[Counts, list[RowChange]]:
    order = ", ".join(f'coalesce(after, before)."{column}"' for column in identity)
    nth = f"row_number() OVER (PARTITION BY {CHANGE} ORDER BY {order})"
    with duckdb_tables.connection() as con:
        for view, table in (("old", pair.before), ("rows", pair.after)):
            con.execute(f"CREATE TEMP VIEW {view} AS {select(con, pair.narrowed(table))}")
        con.execute(f"CREATE TEMP TABLE changed AS {changed_pairs(pair.common, identity)}")
        counted = dict(con.sql(f"SELECT {CHANGE}, count(*) FROM changed GROUP BY ALL").fetchall())
        first = con.sql(
            f"SELECT {CHANGE}, before, after FROM changed QUALIFY {nth} <= {limit} ORDER BY {CHANGE} DESC, {nth}"
        )
        rows = first.to_arrow_table().to_pylist()
    counts = Counts(counted.get("insert", 0), counted.get("update", 0), counted.get("delete", 0))
    return counts, [_row_change(row, identity) for row in rows]


def _row_change(row: Mapping[str, Any], identity: Sequence[str]) -> RowChange:
    image = row["after"] or row["before"]
    return RowChange(row[CHANGE], {column: image[column] for column in identity}, row["before"], row["after"])


def _notes(
    name: str,
    editions: tuple[Edition, Edition],
    entries: tuple[EditionTable, EditionTable],
    declaration: Declaration | None,
) -> Iterator[str]:
    (old, new), (before, after) = editions, entries
    was, now = old.cut_of(name), new.cut_of(name)
    if (before.path, before.version) == (after.path, after.version):
        yield "both editions have the same version of the table"
    elif before.fingerprint != after.fingerprint:
        yield f"its definition changed between them ({before.fingerprint}, then {after.fingerprint})"
    elif was == now:
        yield f"both are of cut {now}: the table was rebuilt in between"
    if was > now:
        yield f"edition {new.number} is of the earlier cut: the events shown are those only in edition {old.number}"
    if declaration is None:
        yield "its job was removed: rows are compared as a whole, without the events behind them"
