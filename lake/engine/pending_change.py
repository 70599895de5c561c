"""Pending change of a table: its rows, columns that readers would lose, and the effect on values column by column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from lake.contracts.evolution import is_lossless
from lake.engine.analysis import analyse
from lake.engine.compare import as_json_rows, compare, failing_on_duplicates, fingerprints, first_changes
from lake.engine.faults import python_faults
from lake.engine.incremental import collected_if_small, empty_diff
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.plan import stale
from lake.engine.write import first_rows, write, write_all
from lake.errors import DeclarationError
from lake.kinds.columns import visible
from lake.lazy import Column, DataFrame, F
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.session import SessionFactory
from lake.session.in_process.mode import in_process
from lake.store import delta
from lake.store.comparison import map_columns
from lake.store.ledger import editions
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import EditionTable
from lake.store.proof.fingerprints import spark_text
from lake.store.rows import Rows
from lake.store.scan import Scan, to_arrow, to_frame
from lake.store.table_head import CHANGE, Counts, TableHead
from lake.store.warehouse import Warehouse
from lake.text import SPARK, quoted

NUMERIC: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
SAMPLE: Final = 10


@dataclass(frozen=True)
class PendingChange:
    """Change that an evaluation would make: `rows` are a diff, or if `whole` all rows of the new table.

    `sample`: see `as_json_rows`. `columns`: {changed column: description}.
    """

    rows: Rows
    counts: Counts
    whole: bool = False
    sample: tuple[dict[str, Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def commit(self, evaluation: Evaluation, *, verb: str, engine: str) -> TableHead:
        return (write_all if self.whole else write)(evaluation, self.rows, verb=verb, engine=engine)


def first_build(evaluation: Evaluation) -> PendingChange:
    rows = first_rows(evaluation)
    return PendingChange(rows, Counts() if rows.in_memory is None else Counts(rows.in_memory.num_rows), whole=True)


def change_of_all(evaluation: Evaluation) -> PendingChange:
    table = evaluation.table
    rows, old = evaluation.all_rows(), table.read(evaluation.spark, table.version())
    is_by_spark = in_process(evaluation.spark) is None
    if is_by_spark and evaluation.is_built() and not column_changes(dict(old.dtypes), dict(rows.dtypes)):
        stored, wanted = fingerprints(old, rows)
        if stored == wanted:
            return PendingChange(Rows(empty_diff(table)), Counts())
    return change_between(evaluation, rows, old)


def change_between(evaluation: Evaluation, rows: DataFrame, old: DataFrame) -> PendingChange:
    identity, before = evaluation.identity, evaluation.table.rows(evaluation.table.version())
    columns = column_changes(dict(old.dtypes), dict(rows.dtypes))
    common = comparable(old, rows)
    # Without the identity, or with several rows of one, no diff could say which row is meant.
    if (
        not set(identity) <= set(common)
        or to_arrow(old.groupBy(*identity).count().where("count > 1").selectExpr("1 as one").limit(1)).num_rows
    ):
        whole = Rows(rows).collected()
        return PendingChange(whole, Counts(whole.count(), 0, before), True, columns=columns)
    diff = compare(failing_on_duplicates(rows.select(*common), identity), old.select(*common), identity)
    small = collected_if_small(evaluation, diff)
    if small.in_memory is not None and not columns:
        return change_by_diff(evaluation, small)
    counts, sample = _counted(evaluation, small)
    return PendingChange(Rows(rows), counts, True, sample, columns)


def change_by_diff(evaluation: Evaluation, diff: Rows) -> PendingChange:
    counts, sample = _counted(evaluation, diff)
    return PendingChange(diff, counts, sample=sample)


def column_changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    removed = {name: f"removed ({kind})" for name, kind in old.items() if name not in new}
    added = {name: f"added ({kind})" for name, kind in new.items() if name not in old}
    retyped = {name: f"{old[name]} → {kind}" for name, kind in new.items() if old.get(name, kind) != kind}
    return removed | added | retyped


def comparable(old: DataFrame, new: DataFrame) -> list[str]:
    before = dict(old.dtypes)

    def alike(name: str, kind: str) -> bool:
        return before[name] == kind or all(dtype.partition("(")[0] in NUMERIC for dtype in (before[name], kind))

    return [name for name, kind in new.dtypes if name in before and alike(name, kind)]


def _counted(evaluation: Evaluation, diff: Rows) -> tuple[Counts, tuple[dict[str, Any], ...]]:
    if diff.in_memory is not None:
        return Counts.of(diff), _sample(evaluation, diff)
    kept = diff.held.persist()
    try:
        return Counts.of(diff), _sample(evaluation, diff)
    finally:
        kept.unpersist()


def _sample(evaluation: Evaluation, diff: Rows) -> tuple[dict[str, Any], ...]:
    identity, table = list(evaluation.identity), evaluation.table
    few = first_changes(diff, identity, SAMPLE)
    old = table.rows_of(few.select(identity), table.version()) if few.num_rows else few
    return as_json_rows(few.select([*visible(few.column_names), CHANGE]), old, identity)


def check_columns_kept(inputs: Inputs, tables: Iterable[Declaration]) -> None:
    """Raise DeclarationError if a build would remove published columns, or narrow their types."""
    fix, losses = "add --yes, or make the function return them as they were", column_losses(inputs, tables)
    DeclarationError.raise_any(inputs.project.tables[name].fault(what, fix=fix) for name, what in losses.items())


def column_losses(inputs: Inputs, tables: Iterable[Declaration]) -> dict[str, str]:
    latest = editions.latest_edition(inputs.project.settings)
    published = latest.tables if latest else {}
    return {
        declaration.name: what
        for declaration in tables
        if declaration.name in published and (what := _loss(inputs, declaration, published[declaration.name]))
    }


def _loss(inputs: Inputs, declaration: Declaration, entry: EditionTable) -> str:
    before, now = _published(inputs, entry), analyse(inputs, declaration).columns
    lost = {
        name: what
        for name, what in column_changes(before, now).items()
        if name in before and visible([name]) and not (name in now and is_lossless(before[name], now[name]))
    }
    changes = ", ".join(f"{name} {change}" for name, change in lost.items())
    return f"published columns would change: {changes}" if lost else ""


def _published(inputs: Inputs, entry: EditionTable) -> Mapping[str, str]:
    path = Warehouse(inputs.project.settings).root / entry.path
    if not delta.exists(path):
        return {}
    return dict(to_frame(inputs.spark, Scan(path, entry.version).schema().empty_table()).dtypes)


@dataclass(frozen=True)
class ColumnChange:
    """Change of a column: rows with another value, and for numbers the sums `before` and `after`, of all rows.

    Sums are exact to six decimals; None if one side lacks the column, or a value is 10^22 or more.
    """

    column: str
    type: str
    rows: int
    before: Decimal | None = None
    after: Decimal | None = None


@dataclass(frozen=True)
class TableChange:
    table: str
    cut: int
    counts: Counts
    columns: tuple[ColumnChange, ...]
    sample: tuple[dict[str, Any], ...]


def table_change(connect: SessionFactory, project: Project, declaration: Declaration) -> TableChange:
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
    maps = map_columns(rows.schema.json())

    def as_compared(name: str) -> Column:
        value = quoted(name, SPARK)
        return F.expr(spark_text(maps[name], value) if name in maps else value)

    before = old.select(*[as_compared(name).alias(f"_was_{name}") for name in names])
    same = [F.col(name).eqNullSafe(F.col(f"_was_{name}")) for name in identity]
    counts = [F.count_if(~as_compared(name).eqNullSafe(F.col(f"_was_{name}"))).alias(name) for name in names]
    return _only_row(rows.select(*names).join(before, same).agg(*counts)) if counts else {}


def _sums(rows: DataFrame, names: Sequence[str]) -> dict[str, Decimal | None]:
    summed = [name for name, kind in rows.dtypes if name in names and kind.partition("(")[0] in NUMERIC]
    if not summed:
        return {}
    sums = []
    for column in (quoted(name, SPARK) for name in summed):
        exact = f"try_cast({column} as decimal(28, 6))"
        sums.append(f"if(count({exact}) = count({column}), sum({exact}), null) as {column}")
    return _only_row(rows.selectExpr(*sums))


def _only_row(rows: DataFrame) -> dict[str, Any]:
    [row] = to_arrow(rows).to_pylist()
    return dict(row)
