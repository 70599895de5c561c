"""What evaluating rows of a table again would change in it: how many rows, which ones, and what to commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.declaration import Declaration
from lake.engine.advance import first_rows, put, put_all
from lake.engine.fingerprint import fingerprints
from lake.engine.incremental import gathered, nothing
from lake.evaluation.compare import compare, first, shown
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import unique
from lake.kinds.kind import visible
from lake.store.commit import CHANGE, Counts
from lake.store.delta import Position, standing
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMERIC: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
SAMPLE: Final = 10
"""So many rows of a diff are shown."""


@dataclass(frozen=True)
class Change:
    """What would change in `table` since `position`; `rows` are a diff, or with `whole` all that the table is to hold.

    `sample` holds the first rows by identity, as `shown` has them; `columns` says which columns come, go, or change
    their type: {column: what}.
    """

    table: Table
    position: Position
    rows: pa.Table | DataFrame
    counts: Counts
    whole: bool = False
    sample: tuple[dict[str, Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def commit(self, inputs: Inputs, declaration: Declaration, *, verb: str) -> Position:
        """Makes the change in one commit, after the gate."""
        write = put_all if self.whole else put
        return write(inputs, declaration, self.table, self.position, self.rows, verb=verb)


def first_build(inputs: Inputs, declaration: Declaration, table: Table) -> Change:
    """The change that makes a table that is not there; its rows are counted where they are in memory."""
    rows = first_rows(inputs, declaration)
    counts = Counts(rows.num_rows) if isinstance(rows, pa.Table) else Counts()
    return Change(table, standing(table.path, table.app), rows, counts, whole=True)


def of_all(inputs: Inputs, declaration: Declaration, table: Table, position: Position) -> Change:
    """The change of the whole table. What differs is looked for only where fingerprints do."""
    rows, old = inputs.evaluate(declaration), table.read(inputs.spark, table.version())
    same = inputs.project.is_built(declaration, position)
    if same and not column_changes(dict(old.dtypes), dict(rows.dtypes)):
        there, wanted = fingerprints(old, rows)
        if there == wanted:
            return Change(table, position, nothing(table), Counts())
    return of_rows(inputs, declaration, table, position, rows, old)


def of_rows(  # noqa: PLR0913, PLR0917 the two sides, and which table they are of
    inputs: Inputs, declaration: Declaration, table: Table, position: Position, rows: DataFrame, old: DataFrame
) -> Change:
    """The change from the rows `old` of the table to `rows`, whose columns may be others."""
    version, identity = table.version(), declaration.kind.identity
    columns = column_changes(dict(old.dtypes), dict(rows.dtypes))
    common = comparable(old, rows)
    if not set(identity) <= set(common):
        return Change(table, position, rows, Counts(rows.count(), 0, table.rows(version)), True, (), columns)
    if not old.groupBy(*identity).count().where("count > 1").isEmpty():  # no diff could say which of them is meant
        return Change(table, position, rows, Counts(rows.count(), 0, table.rows(version)), True, (), columns)
    diff = compare(unique(rows.select(*common), identity), old.select(*common), identity)
    small = gathered(inputs, diff)
    if isinstance(small, pa.Table) and not columns:
        return of_diff(declaration, table, position, small)
    counts, sample = _told(declaration, table, version, small)
    return Change(table, position, rows, counts, True, sample, columns)


def of_diff(declaration: Declaration, table: Table, position: Position, diff: pa.Table | DataFrame) -> Change:
    """The change that a diff makes."""
    counts, sample = _told(declaration, table, table.version(), diff)
    return Change(table, position, diff, counts, sample=sample)


def column_changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Which of the columns `{name: type}` come, go, or change their type."""
    gone = {name: f"removed ({kind})" for name, kind in old.items() if name not in new}
    come = {name: f"added ({kind})" for name, kind in new.items() if name not in old}
    other = {name: f"{old[name]} → {kind}" for name, kind in new.items() if old.get(name, kind) != kind}
    return gone | come | other


def comparable(old: DataFrame, new: DataFrame) -> list[str]:
    """The columns of both whose values can be compared: of one type, or numbers."""
    before = dict(old.dtypes)

    def alike(name: str, kind: str) -> bool:
        return before[name] == kind or all(each.partition("(")[0] in NUMERIC for each in (before[name], kind))

    return [name for name, kind in new.dtypes if name in before and alike(name, kind)]


def _told(
    declaration: Declaration, table: Table, version: int, diff: pa.Table | DataFrame
) -> tuple[Counts, tuple[dict[str, Any], ...]]:
    """How many rows a diff changes, and the first ones beside what they replace."""
    if isinstance(diff, pa.Table):
        return Counts.of(diff), _sample(declaration, table, version, diff)
    kept = diff.persist()
    try:
        return Counts.of(kept), _sample(declaration, table, version, kept)
    finally:
        kept.unpersist()


def _sample(
    declaration: Declaration, table: Table, version: int, diff: pa.Table | DataFrame
) -> tuple[dict[str, Any], ...]:
    identity = list(declaration.kind.identity)
    few = first(diff, identity, SAMPLE)
    old = table.rows_of(few.select(identity), version) if few.num_rows else few
    return shown(few.select([*visible(few.column_names), CHANGE]), old, identity)
