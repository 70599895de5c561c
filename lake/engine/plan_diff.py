"""Effect of a changed definition on a table's values, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lake.engine.analysis import analyse
from lake.engine.faults import python_faults
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.pending_change import NUMERIC, change_between, column_changes, comparable
from lake.engine.plan import stale
from lake.kinds.columns import visible
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.store.ledger.cuts import get_cut
from lake.store.table_head import Counts
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ColumnChange:
    """Change of a column: rows with another value, and for numbers the sums `before` and `after`, of all rows.

    Sums are exact to six decimals; None if one side lacks the column, or the sum is out of range.
    """

    column: str
    type: str
    rows: int
    before: Decimal | None = None
    after: Decimal | None = None


@dataclass(frozen=True)
class TableChange:
    """Change of a table at its own `cut` by the declared definition."""

    table: str
    cut: int
    counts: Counts
    columns: tuple[ColumnChange, ...]
    sample: tuple[dict[str, Any], ...]


def table_change(connect: Callable[[], SparkSession], project: Project, declaration: Declaration) -> TableChange:
    """Evaluate the declared definition at the table's cut, with changed tables above, and compare.

    Raises DeclarationError if the table was never built.
    """
    table = project.table(declaration)
    head = table.head()
    if head is None:
        raise declaration.fault("not built yet: there is nothing to compare with", fix="lake run, or lake deploy")
    changed = stale(project, connect)
    cut = get_cut(project.settings, head.cut)
    unchanged = {name: project.table(project.tables[name]).head_at(cut.number) for name in {*project.tables} - changed}
    proved = {name: at_cut.version for name, at_cut in unchanged.items() if at_cut is not None}
    inputs = Inputs(connect, project, cut, recompute=True, proved=proved, declared={declaration.name, *changed})
    with python_faults(declaration):
        analyse(inputs, declaration)
        rows = inputs.evaluate(declaration).persist()
        try:
            old = table.read(inputs.spark, head.version)
            change = change_between(Evaluation(inputs, declaration, table, head), rows, old)
            columns = _columns(rows, old, declaration.kind.identity)
        finally:
            rows.unpersist()
    return TableChange(declaration.name, cut.number, change.counts, columns, change.sample)


def _columns(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> tuple[ColumnChange, ...]:
    new_types, old_types = dict(rows.dtypes), dict(old.dtypes)
    changed = column_changes(old_types, new_types)
    names = visible([*new_types, *(name for name in old_types if name not in new_types)])
    both = comparable(old, rows)
    differing = _differing(rows, old, identity, both) if set(identity) <= set(both) else {}
    before, after = _sums(old, names), _sums(rows, names)
    types = new_types | changed
    return tuple(
        ColumnChange(name, types[name], differing.get(name, 0), before.get(name), after.get(name))
        for name in names
        if name not in identity
    )


def _differing(rows: DataFrame, old: DataFrame, identity: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    from pyspark.sql import functions as F

    before = old.select(*[F.col(name).alias(f"_was_{name}") for name in names])
    same = [F.col(name).eqNullSafe(F.col(f"_was_{name}")) for name in identity]
    counts = [F.count_if(~F.col(name).eqNullSafe(F.col(f"_was_{name}"))).alias(name) for name in names]
    counted = rows.select(*names).join(before, same).agg(*counts).first()
    return counted.asDict() if counted is not None else {}


def _sums(rows: DataFrame, names: Sequence[str]) -> dict[str, Decimal | None]:
    summed = [name for name, kind in rows.dtypes if name in names and kind.partition("(")[0] in NUMERIC]
    if not summed:
        return {}
    columns = [quoted(name, SPARK) for name in summed]
    sums = rows.selectExpr(*[f"try_sum(try_cast({c} as decimal(32, 6))) as {c}" for c in columns]).first()
    return sums.asDict() if sums is not None else {}
