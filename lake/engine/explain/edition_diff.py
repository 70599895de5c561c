"""Difference of a table between two editions: changed rows, and their causes.

DuckDB compares the rows, without a JVM, and skips files that both editions have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from lake.engine.engines import by_either
from lake.engine.explain.explain import Cause, ExplainedRow, InputCauses, attach_causes, key_values
from lake.engine.explain.lineage import WAS, trace_changes
from lake.engine.inputs import Inputs
from lake.engine.lookup import Few, Finding, Found, Values
from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import visible
from lake.lazy import DataFrame
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.read.locked_database import select
from lake.session import SessionFactory
from lake.store import duckdb_tables
from lake.store.comparison import changed_pairs, equal
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import Edition, EditionTable, get_edition
from lake.store.scan import Scan
from lake.store.snapshot import Published, published
from lake.store.storage import Address
from lake.store.table_head import CHANGE, Counts, TableHead
from lake.store.tables import FeedGap, heads
from lake.store.warehouse import Location, Warehouse
from lake.text import quoted

COPY: Final = "_copy"
"""Column with the number of a row among its equals."""
Key = tuple[Any, ...]
Images = tuple[Values | None, Values | None]
"""A row before and after a change, with state columns."""


@dataclass(frozen=True)
class RowChange:
    """Row that differs between the editions: inserted (`before` is None), deleted (`after` is None) or updated."""

    change: str
    identity: Values
    before: Values | None
    after: Values | None
    sides: tuple[InputCauses, ...] = ()

    @property
    def columns(self) -> dict[str, tuple[Any, Any]]:
        if self.before is None or self.after is None:
            return {}
        both = {name: (self.before[name], new) for name, new in self.after.items()}
        return {name: pair for name, pair in both.items() if not equal(*pair)}


@dataclass(frozen=True)
class ColumnChanges:
    added: tuple[str, ...]
    removed: tuple[str, ...]
    retyped: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class TableVersions:
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

    def narrowed(self, table: Published) -> Published:
        """Return `table` with the common columns (as VARCHAR if types differ) and without the common files."""
        types = {column.name: column for column in table.columns}
        retyped, shared = self.columns.retyped, {*self.before.files} & {*self.after.files}
        columns = (replace(types[name], type="VARCHAR") if name in retyped else types[name] for name in self.common)
        return replace(table, files=tuple(file for file in table.files if file not in shared), columns=tuple(columns))


@dataclass(frozen=True)
class EditionDiff:
    """Changes of `table`: a `sample` of rows for each kind of change, and `notes` with causes other than events."""

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


def diff_editions(  # noqa: PLR0913 two editions of a table, and options
    project: Project,
    connect: SessionFactory | None,
    name: str,
    *,
    old: int,
    new: int,
    limit: int = 10,
) -> EditionDiff:
    """Compare table `name` in two editions, with at most `limit` rows per kind of change.

    Without `connect`, no causes are searched. Raises DeclarationError if an edition or its table is unknown.
    """
    settings = project.settings
    editions = get_edition(settings, old), get_edition(settings, new)
    entries = _entry(editions[0], name), _entry(editions[1], name)
    pair = TableVersions(*(published(settings, name, edition) for edition in editions))
    declaration = project.tables.get(name)
    identity = _identity(entries, declaration, pair.common)
    counts, rows = _compare(pair, identity, limit)
    notes = list(_notes(name, editions, entries, declaration))
    if not identity:
        notes.append(
            "no columns identify its rows in both: they are compared as a whole, without the events behind them"
        )
    if connect is not None and rows and declaration is not None and identity == declaration.kind.identity:
        keys = [row.identity for row in rows]
        causes, unknown = find_causes(project, connect, declaration, editions, keys, Few.of(limit))
        rows = [replace(row, sides=sides) for row, sides in zip(rows, causes, strict=True)]
        notes += unknown
    return EditionDiff(name, editions, counts, pair.columns, tuple(rows), tuple(notes))


def _entry(edition: Edition, name: str) -> EditionTable:
    if name not in edition.tables:
        raise DeclarationError(
            f"edition {edition.number} has no table {name!r}", fix=did_you_mean(name, edition.tables)
        )
    return edition.tables[name]


def _identity(
    entries: Sequence[EditionTable], declaration: Declaration | None, common: Collection[str]
) -> tuple[str, ...]:
    """Return the columns that identify a row in both editions; () if they differ or are not common."""
    declared = declaration.kind.identity if declaration else ()
    was, now = (tuple(entry.identity) or declared for entry in entries)
    return now if was == now and {*now} <= {*common} else ()


def _compare(pair: TableVersions, identity: Sequence[str], limit: int) -> tuple[Counts, list[RowChange]]:
    """Return counts and at most `limit` rows per kind of change. Without identity, match equal rows one to one."""
    columns, key, selected = pair.common, identity, "*"
    if not identity:
        columns = key = [*pair.common, COPY]
        selected = f"*, row_number() OVER (PARTITION BY {', '.join(map(quoted, pair.common))}) AS {COPY}"
    order = ", ".join(f"coalesce(after, before).{quoted(column)}" for column in key)
    nth = f"row_number() OVER (PARTITION BY {CHANGE} ORDER BY {order})"
    with duckdb_tables.connection() as con:
        for view, table in (("old", pair.before), ("rows", pair.after)):
            con.execute(f"CREATE TEMP VIEW {view} AS SELECT {selected} FROM ({select(con, pair.narrowed(table))})")
        con.execute(f"CREATE TEMP TABLE changed AS {changed_pairs(columns, key)}")
        counted = dict(con.sql(f"SELECT {CHANGE}, count(*) FROM changed GROUP BY ALL").fetchall())
        first = con.sql(
            f"SELECT {CHANGE}, before, after FROM changed QUALIFY {nth} <= {limit} ORDER BY {CHANGE} DESC, {nth}"
        )
        rows = first.to_arrow_table().to_pylist()
    counts = Counts(counted.get("insert", 0), counted.get("update", 0), counted.get("delete", 0))
    return counts, [_row_change(row, identity or pair.common) for row in rows]


def _row_change(row: Mapping[str, Any], key: Sequence[str]) -> RowChange:
    before, after = (
        image and {name: image[name] for name in image if name != COPY} for image in (row["before"], row["after"])
    )
    image = after or before
    return RowChange(row[CHANGE], {column: image[column] for column in key}, before, after)


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
        yield "its job was removed: the events behind its rows are not known"


def find_causes(  # noqa: PLR0913, PLR0917 rows of a table in two editions, and a limit
    project: Project,
    connect: SessionFactory,
    declaration: Declaration,
    editions: tuple[Edition, Edition],
    keys: Sequence[Values],
    few: Few,
) -> tuple[list[tuple[InputCauses, ...]], list[str]]:
    """Return the input changes behind rows `keys` of a table, one `InputCauses` per row and input, and notes.

    Notes name inputs whose changes are unknown.
    """
    name = declaration.name
    earlier, later = sorted(editions, key=lambda edition: edition.cut_of(name))
    entries = [edition.tables[name] for edition in (earlier, later)]
    versions = [(Warehouse(project.settings).root / e.path, e.version) for e in entries]
    head = _head_at(*versions[0])
    if head is None or earlier.cut_of(name) == later.cut_of(name):
        return [() for _ in keys], []
    cut, images = get_cut(project.settings, later.cut_of(name)), _row_images(versions, keys)

    def search_causes(session: SessionFactory) -> tuple[list[tuple[InputCauses, ...]], list[str]]:
        search = CauseSearch(Inputs(session, project, cut))
        return search.sides(declaration, head, images, few), search.notes

    return by_either(project.settings, connect, search_causes)


@dataclass(frozen=True)
class CauseSearch:
    inputs: Inputs
    notes: list[str] = field(default_factory=list)

    def sides(
        self, declaration: Declaration, head: TableHead, rows: Sequence[Images], few: Few
    ) -> list[tuple[InputCauses, ...]]:
        frames = [self._changes(source, head) for source in declaration.inputs]
        images = [image for row in rows for image in row if image is not None]
        by_image = trace_changes(self.inputs, declaration, frames, images, few) if images else [[] for _ in frames]
        findings = [_findings_by_row(of_input, rows) for of_input in by_image]

        def parents(parent: Declaration, shown: Sequence[Found]) -> list[Cause]:
            return self._parent_causes(parent, head, shown, few.fewer())

        return attach_causes(self.inputs, declaration, findings, parents)

    def _changes(self, source: Input, head: TableHead) -> DataFrame | None:
        if source.name not in head.inputs:
            self.notes.append(f"{source.name} was not an input before")
            return None
        try:
            return self.inputs.changes(source, head)
        except FeedGap:
            self.notes.append(f"{source.name} was rebuilt in between: which of its rows changed is not known")
            return None

    def _parent_causes(self, parent: Declaration, child: TableHead, shown: Sequence[Found], few: Few) -> list[Cause]:
        last = {key_values(version.order): version for version in shown}
        if not last:
            return []
        table, before = self.inputs.table(parent), child.inputs[parent.name]
        after = self.inputs.version(Input(parent.name, parent))
        versions = [(table.path, table.last_repeat(before)), (table.path, after)]
        images = dict(zip(last, _row_images(versions, [version.order for version in last.values()]), strict=True))
        head, sides = _head_at(table.path, before), dict[Key, tuple[InputCauses, ...]]()
        if head is not None:
            sides = dict(zip(last, self.sides(parent, head, list(images.values()), few), strict=True))
        causes = []
        for version in shown:
            key = key_values(version.order)
            was, now = images[key]
            image = (was if version.role == WAS else now) or version.order
            values = {column: image[column] for column in visible(image)}
            row = ExplainedRow(parent.name, version.order, values, sides.get(key, ()) if version is last[key] else ())
            causes.append(Cause(version.role, version.nth, version.values, row=row))
        return causes


def _findings_by_row(findings: Sequence[Finding], rows: Sequence[Images]) -> list[Finding]:
    """Return a finding per row: the sum of the findings of its images, equal ones counted once."""
    remaining, by_row = iter(findings), []
    for images in rows:
        of_row = islice(remaining, sum(image is not None for image in images))
        different = {repr(finding): finding for finding in of_row}  # compared as text: NaN differs from itself
        by_row.append(sum(different.values(), Finding()))
    return by_row


def _head_at(path: Address, version: int) -> TableHead | None:
    return next((head for head in heads(Location("table", path)) if head.version == version), None)


def _row_images(versions: Sequence[tuple[Address, int]], keys: Sequence[Values]) -> list[Images]:
    before, after = (_rows(path, version, keys) for path, version in versions)
    return list(zip(before, after, strict=True))


def _rows(path: Address, version: int, keys: Sequence[Values]) -> list[Values | None]:
    scan, columns = Scan(path, version), list(keys[0])
    if not set(columns) <= set(scan.schema().names):
        return [None for _ in keys]
    rows = scan.arrow(keys=scan.keys(keys)).to_pylist()
    by_key = {key_values({column: row[column] for column in columns}): row for row in rows}
    return [by_key.get(key_values(key)) for key in keys]
