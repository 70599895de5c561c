"""What evaluating rows of a table again would change in it: how many rows, which ones, and what to commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.engine.fingerprint import fingerprints
from lake.engine.incremental import gathered, nothing
from lake.engine.write import first_rows, write, write_all
from lake.evaluation.compare import compare, first, shown
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.unique import unique
from lake.kinds.columns import visible
from lake.store.table_head import CHANGE, Counts, TableHead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMERIC: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
SAMPLE: Final = 10
"""So many rows of a diff are shown."""


@dataclass(frozen=True)
class Change:
    """What would change in a table since its head; `rows` are a diff, or with `whole` all that the table is to hold.

    `sample` holds the first rows by identity, as `shown` has them; `columns` says which columns come, go, or change
    their type: {column: what}.
    """

    evaluation: Evaluation
    rows: pa.Table | DataFrame
    counts: Counts
    whole: bool = False
    sample: tuple[dict[str, Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def commit(self, *, verb: str) -> TableHead:
        """Makes the change in one commit, after the gate."""
        return (write_all if self.whole else write)(self.evaluation, self.rows, verb=verb)


def first_build(evaluation: Evaluation) -> Change:
    """The change that makes a table that is not there; its rows are counted where they are in memory."""
    rows = first_rows(evaluation)
    return Change(evaluation, rows, Counts(rows.num_rows) if isinstance(rows, pa.Table) else Counts(), whole=True)


def of_all(evaluation: Evaluation) -> Change:
    """The change of the whole table. What differs is looked for only where fingerprints do."""
    table = evaluation.table
    rows, old = evaluation.all_rows(), table.read(evaluation.spark, table.version())
    if evaluation.is_built() and not column_changes(dict(old.dtypes), dict(rows.dtypes)):
        stored, wanted = fingerprints(old, rows)
        if stored == wanted:
            return Change(evaluation, nothing(table), Counts())
    return of_rows(evaluation, rows, old)


def of_rows(evaluation: Evaluation, rows: DataFrame, old: DataFrame) -> Change:
    """The change from the rows `old` of the table to `rows`, whose columns may be others."""
    identity, before = evaluation.identity, evaluation.table.rows(evaluation.table.version())
    columns = column_changes(dict(old.dtypes), dict(rows.dtypes))
    common = comparable(old, rows)
    # Without the identity, or with several rows of one, no diff could say which row is meant.
    if not set(identity) <= set(common) or not old.groupBy(*identity).count().where("count > 1").isEmpty():
        return Change(evaluation, rows, Counts(rows.count(), 0, before), True, (), columns)
    diff = compare(unique(rows.select(*common), identity), old.select(*common), identity)
    small = gathered(evaluation.inputs, diff)
    if isinstance(small, pa.Table) and not columns:
        return of_diff(evaluation, small)
    counts, sample = _counted(evaluation, small)
    return Change(evaluation, rows, counts, True, sample, columns)


def of_diff(evaluation: Evaluation, diff: pa.Table | DataFrame) -> Change:
    """The change that a diff makes."""
    counts, sample = _counted(evaluation, diff)
    return Change(evaluation, diff, counts, sample=sample)


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
        return before[name] == kind or all(dtype.partition("(")[0] in NUMERIC for dtype in (before[name], kind))

    return [name for name, kind in new.dtypes if name in before and alike(name, kind)]


def _counted(evaluation: Evaluation, diff: pa.Table | DataFrame) -> tuple[Counts, tuple[dict[str, Any], ...]]:
    """How many rows a diff changes, and the first ones beside what they replace."""
    if isinstance(diff, pa.Table):
        return Counts.of(diff), _sample(evaluation, diff)
    kept = diff.persist()
    try:
        return Counts.of(kept), _sample(evaluation, kept)
    finally:
        kept.unpersist()


def _sample(evaluation: Evaluation, diff: pa.Table | DataFrame) -> tuple[dict[str, Any], ...]:
    identity, table = list(evaluation.identity), evaluation.table
    few = first(diff, identity, SAMPLE)
    old = table.rows_of(few.select(identity), table.version()) if few.num_rows else few
    return shown(few.select([*visible(few.column_names), CHANGE]), old, identity)
