"""Diff of a table's affected keys: their rows are absorbed, or evaluated if the kind cannot absorb, and compared.

Few keys are compared in this process, many by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lake import cost
from lake.engine.affected_keys import ALL, NOTHING, AffectedKeys, restrict
from lake.engine.compare import check_identity, compare, compare_local
from lake.engine.inputs import Evaluation
from lake.errors import DeclarationError
from lake.kinds.columns import AGAIN
from lake.lazy import DataFrame, pa
from lake.project.declaration import Declaration
from lake.store.comparison import WAS
from lake.store.proof.fingerprints import hashes
from lake.store.rows import Rows
from lake.store.scan import to_arrow, to_frame
from lake.store.table_head import CHANGE
from lake.store.tables import Table


def difference(evaluation: Evaluation, affected: AffectedKeys) -> Rows:
    """Return the diff that corrects the `affected` keys, and brings all other rows to the horizon."""
    table, version = evaluation.table, evaluation.table.version()
    changed = evaluation.kind.changed_by_horizon(*evaluation.horizons)
    empty = empty_diff(table)
    few = empty if affected is NOTHING else _of_few(evaluation, affected, version)
    updates = _at_horizon(evaluation, changed, version, without=affected.rows) if changed and few is not None else empty
    if few is None or updates is None:
        return _of_many(evaluation, ALL if changed else affected, version)
    parts = [few, updates] if changed else [few]
    return Rows(pa.concat_tables(part.select(empty.column_names).cast(empty.schema) for part in parts))


def empty_diff(table: Table) -> pa.Table:
    return table.schema().append(pa.field(CHANGE, pa.string())).append(pa.field(WAS, pa.uint64())).empty_table()


def _of_few(evaluation: Evaluation, affected: AffectedKeys, version: int) -> pa.Table | None:
    keys, table = affected.rows, evaluation.table
    if keys is None or keys.in_memory is None:
        return None
    old = table.rows_of(keys.in_memory, version, limit=cost.COMPARE_ROWS)
    if old.num_rows == cost.COMPARE_ROWS:
        return None
    rows = _rows(evaluation, affected, Rows(old))
    if rows.in_memory is None:
        return None
    _check_columns(evaluation.declaration, rows.columns, old.column_names)
    check_identity(evaluation.declaration, rows)
    return compare_local(rows.in_memory, old.select(rows.columns), evaluation.identity, _key(table))


def _of_many(evaluation: Evaluation, affected: AffectedKeys, version: int) -> Rows:
    old = evaluation.table.read(evaluation.spark, version)
    if affected.rows is not None:
        old = affected.rows.matching(old)
    rows: DataFrame = _rows(evaluation, affected, Rows(old)).held
    _check_columns(evaluation.declaration, rows.columns, old.columns)
    narrower = {name: kind for name, kind in old.dtypes if name.startswith("_") and kind != dict(rows.dtypes)[name]}
    rows = rows.withColumns({name: rows[name].cast(kind) for name, kind in narrower.items()}) if narrower else rows
    rows = check_identity(evaluation.declaration, Rows(rows)).held
    return collected_if_small(evaluation, compare(rows, old, evaluation.identity))


def collected_if_small(evaluation: Evaluation, diff: DataFrame) -> Rows:
    return Rows(diff).within(evaluation.inputs.collected_rows)


def _check_columns(declaration: Declaration, columns: Sequence[str], present: Sequence[str]) -> None:
    lost, new = (", ".join(sorted({*a} - {*b})) for a, b in ((present, columns), (columns, present)))
    if lost or new:
        what = " and ".join([*([f"no longer have {lost}"] if lost else []), *([f"now have {new}"] if new else [])])
        fix = f"lake rebuild {declaration.name} adopts the new columns"
        raise declaration.fault(f"its rows {what}, unlike its table", fix=fix)


def _key(table: Table) -> str | None:
    with suppress(DeclarationError):
        return table.content_key
    return None


def _rows(evaluation: Evaluation, affected: AffectedKeys, old: Rows) -> Rows:
    """Return the correct rows of the keys: absorbed if the kind can, but for keys marked as AGAIN."""
    kind, local = evaluation.kind, old.in_memory is not None
    if affected.changes is None:
        rows = evaluation.all_rows() if affected.rows is None else evaluated_keys(evaluation, affected.rows)
        return _local(evaluation, rows) if local else Rows(rows)
    absorbed = evaluation.inputs.absorbed(evaluation.declaration, old.frame(evaluation.spark), affected.changes)
    kept, again = _split(Rows(to_arrow(absorbed) if local else absorbed), kind.key)
    again = again.within(evaluation.inputs.collected_rows)
    if again.is_empty:
        return kept
    if not kind.key:
        return Rows(evaluation.all_rows())
    rows = evaluated_keys(evaluation, again)
    if not local:
        return kept.union(Rows(rows))
    some = _local(evaluation, rows)
    return some if some.in_memory is None else kept.union(some)


def _local(evaluation: Evaluation, rows: DataFrame) -> Rows:
    many = evaluation.inputs.rows(evaluation.declaration) > cost.COMPARE_ROWS
    return Rows(rows).within(cost.COMPARE_ROWS) if many else Rows(to_arrow(rows))


def _split(absorbed: Rows, key: Sequence[str]) -> tuple[Rows, Rows]:
    named = list(key) or [AGAIN]  # Arrow does not count rows without columns
    kept = absorbed.where(AGAIN, False).select([name for name in absorbed.columns if name != AGAIN])
    return kept, absorbed.where(AGAIN, True).select(named).distinct()


def evaluated_keys(evaluation: Evaluation, keys: Rows) -> DataFrame:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    return inputs.evaluated(declaration, restrict(inputs, declaration, keys))


def _at_horizon(evaluation: Evaluation, changed: str, version: int, *, without: Rows | None) -> pa.Table | None:
    """Return the updates of rows that the horizon has `changed`; None if they are many."""
    table = evaluation.table
    keys = without.in_memory if without is not None else None
    old = table.rows_where(changed, version, without=keys, limit=cost.COMPARE_ROWS)
    if old.num_rows == cost.COMPARE_ROWS:
        return None
    rows = evaluation.kind.at_horizon(to_frame(evaluation.spark, old), *evaluation.horizons).select(*old.column_names)
    updates = to_arrow(rows)
    diff = updates.append_column(CHANGE, pa.array(["update"] * updates.num_rows, pa.string()))
    key = _key(table)
    return diff.append_column(WAS, pa.nulls(old.num_rows, pa.uint64()) if key is None else hashes(old, key))
