"""Diff: which rows of a table changed between two editions, and the events responsible.

The rows are compared without a JVM, and where both editions hold versions of one Delta table, only those in files that
the two do not share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lake.declaration import Declaration
from lake.errors import DeclarationError, did_you_mean
from lake.evaluation.lookup import Few, Values
from lake.explain.blame import responsible
from lake.explain.explain import Side
from lake.project import Project
from lake.read.sql import select
from lake.store import small
from lake.store.comparison import changed_pairs
from lake.store.ledger.editions import Edition, EditionTable, get_edition
from lake.store.snapshot import Published, published
from lake.store.table_head import CHANGE, Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RowChange:
    """A row that differs from one edition to another: `change` is insert, update or delete.

    `before` and `after` are its columns, None where it is not there; `sides` are the changes of inputs that made it.
    """

    change: str
    identity: Values
    before: Values | None
    after: Values | None
    sides: tuple[Side, ...] = ()

    @property
    def columns(self) -> dict[str, tuple[Any, Any]]:
        """The columns that an update changed, with both values."""
        if self.before is None or self.after is None:
            return {}
        return {name: (self.before[name], new) for name, new in self.after.items() if self.before[name] != new}


@dataclass(frozen=True)
class Columns:
    """How the columns of a table differ between two editions: names, of `retyped` ones with both types."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    retyped: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Pair:
    """A table as two editions have it."""

    before: Published
    after: Published

    @property
    def columns(self) -> Columns:
        was, now = ({column.name: column.type for column in table.columns} for table in (self.before, self.after))
        return Columns(
            tuple(name for name in now if name not in was),
            tuple(name for name in was if name not in now),
            {name: (was[name], now[name]) for name in now if name in was and was[name] != now[name]},
        )

    @property
    def common(self) -> list[str]:
        """The columns that both have."""
        return [column.name for column in self.after.columns if column.name not in self.columns.added]

    def identity(self, declaration: Declaration | None) -> list[str]:
        """What tells rows apart: the key; where that cannot be said of both, all of a row."""
        key = list(declaration.kind.identity) if declaration is not None else self.common
        return key if set(key) <= set(self.common) else self.common

    def narrowed(self, table: Published) -> Published:
        """The common columns of `table`, text where the types differ, and only the files that the other has not."""
        types = {column.name: column for column in table.columns}
        retyped, shared = self.columns.retyped, {*self.before.files} & {*self.after.files}
        columns = (replace(types[name], type="VARCHAR") if name in retyped else types[name] for name in self.common)
        return replace(table, files=tuple(file for file in table.files if file not in shared), columns=tuple(columns))


@dataclass(frozen=True)
class EditionDiff:
    """What differs in `table` from one edition to another; `sample` has some rows of each change.

    `notes` say why rows may differ beside the events between the cuts, and what could not be told.
    """

    table: str
    editions: tuple[Edition, Edition]
    counts: Counts
    columns: Columns
    sample: tuple[RowChange, ...]
    notes: tuple[str, ...]

    @property
    def cuts(self) -> tuple[int, int]:
        """The cuts that the table is at in both."""
        old, new = self.editions
        return old.cut_of(self.table), new.cut_of(self.table)


def diff_editions(  # noqa: PLR0913 which editions, and how much
    project: Project,
    connect: Callable[[], SparkSession],
    name: str,
    *,
    old: int,
    new: int,
    limit: int = 10,
    events: bool = True,
) -> EditionDiff:
    """What differs in table `name` from edition `old` to edition `new`, with `limit` rows of each change.

    Without `events`, no session is asked for. Raises DeclarationError for an unknown edition or table.
    """
    settings = project.settings
    editions = get_edition(settings, old), get_edition(settings, new)
    entries = _entry(editions[0], name), _entry(editions[1], name)
    pair, declaration = Pair(*(published(settings, name, edition) for edition in editions)), project.tables.get(name)
    counts, rows = _compared(pair, pair.identity(declaration), limit)
    notes = list(_notes(name, editions, entries, declaration))
    if events and rows and declaration is not None:
        causes = responsible(project, connect, declaration, editions, [row.identity for row in rows], Few.of(limit))
        rows = [replace(row, sides=sides) for row, sides in zip(rows, causes.sides, strict=True)]
        notes += causes.notes
    return EditionDiff(name, editions, counts, pair.columns, tuple(rows), tuple(notes))


def _entry(edition: Edition, name: str) -> EditionTable:
    if name not in edition.tables:
        raise DeclarationError(
            f"edition {edition.number} has no table {name!r}", fix=did_you_mean(name, edition.tables)
        )
    return edition.tables[name]


def _compared(pair: Pair, identity: Sequence[str], limit: int) -> tuple[Counts, list[RowChange]]:
    """How many rows changed, and the first of each change by identity."""
    order = ", ".join(f'coalesce(after, before)."{column}"' for column in identity)
    nth = f"row_number() OVER (PARTITION BY {CHANGE} ORDER BY {order})"
    with small.connection() as con:
        for view, table in (("old", pair.before), ("rows", pair.after)):
            con.execute(f"CREATE TEMP VIEW {view} AS {select(con, pair.narrowed(table))}")
        con.execute(f"CREATE TEMP TABLE changed AS {changed_pairs(pair.common, identity)}")
        counted = dict(con.sql(f"SELECT {CHANGE}, count(*) FROM changed GROUP BY ALL").fetchall())
        first = con.sql(
            f"SELECT {CHANGE}, before, after FROM changed QUALIFY {nth} <= {limit} ORDER BY {CHANGE} DESC, {nth}"
        )
        rows = first.to_arrow_table().to_pylist()
    counts = Counts(counted.get("insert", 0), counted.get("update", 0), counted.get("delete", 0))
    return counts, [_change(row, identity) for row in rows]


def _change(row: Mapping[str, Any], identity: Sequence[str]) -> RowChange:
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
