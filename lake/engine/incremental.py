"""What must change in a table: its affected keys by absorption, by evaluation where that cannot be, and the diff.

What affects few keys is compared in this process; the rest by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from lake import cost
from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.evaluation.affected_keys import ALL, NOTHING, Keys, restrict
from lake.evaluation.compare import compare, compare_local
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import check_unique, unique
from lake.kinds.columns import AGAIN, same
from lake.store.comparison import WAS
from lake.store.proof.fingerprints import hashes
from lake.store.scan import distinct, to_arrow, to_frame, within
from lake.store.table_head import CHANGE
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def difference(evaluation: Evaluation, affected: Keys) -> pa.Table | DataFrame:
    """The rows to insert, update and delete so that the `affected` keys are right, and all rows as of the horizon."""
    kind, table, version = evaluation.kind, evaluation.table, evaluation.table.version()
    changed = kind.changed_by_horizon(*evaluation.horizons)
    empty = nothing(table)
    diffs, keys = [empty], None
    if affected is not NOTHING:
        keys = affected.rows
        old = table.rows_of(keys, version, limit=cost.COMPARE_ROWS) if isinstance(keys, pa.Table) else None
        if old is None or old.num_rows == cost.COMPARE_ROWS:
            return _by_spark(evaluation, ALL if changed else affected, version)
        rows = _rows(evaluation, affected, old)
        if not isinstance(rows, pa.Table):  # they have turned out to be many
            return _by_spark(evaluation, ALL if changed else affected, version)
        _must_fit(evaluation.declaration, rows.column_names, old.column_names)
        check_unique(evaluation.declaration, rows)
        diffs.append(compare_local(rows, old.select(rows.column_names), kind.identity, _key(table)))
    if changed:
        at_horizon = _at_horizon(evaluation, changed, version, without=keys)
        if at_horizon is None:
            return _by_spark(evaluation, ALL, version)
        diffs.append(at_horizon)
    hashed = all(WAS in diff.column_names for diff in diffs)
    wanted = pa.schema([field for field in empty.schema if hashed or field.name != WAS])
    return pa.concat_tables(diff.select(wanted.names).cast(wanted) for diff in diffs)


def _must_fit(declaration: Declaration, columns: Sequence[str], present: Sequence[str]) -> None:
    """Raises DeclarationError where the rows of a table have other columns than it has itself."""
    lost, new = (", ".join(sorted({*a} - {*b})) for a, b in ((present, columns), (columns, present)))
    if lost or new:
        what = " and ".join([*([f"no longer have {lost}"] if lost else []), *([f"now have {new}"] if new else [])])
        fix = f"lake rebuild {declaration.name} adopts the new columns"
        raise declaration.fault(f"its rows {what}, unlike its table", fix=fix)


def nothing(table: Table) -> pa.Table:
    """A diff without rows."""
    return table.schema().append(pa.field(CHANGE, pa.string())).append(pa.field(WAS, pa.uint64())).empty_table()


def _key(table: Table) -> str | None:
    """What fingerprints of the table are keyed by, None where that cannot be known: then none is kept up."""
    with suppress(DeclarationError):
        return table.content_key
    return None


def gathered(inputs: Inputs, diff: DataFrame) -> pa.Table | DataFrame:
    """`diff` in memory if it turns out small, else as it is."""
    return within(diff, inputs.project.settings.small_diff_rows)


def _rows(evaluation: Evaluation, affected: Keys, old: pa.Table | DataFrame) -> pa.Table | DataFrame:
    """The rows that the affected keys should have, which have the rows `old`; in memory where these are, unless they
    are too many.

    The kind absorbs the changes where it may; keys that it marks as AGAIN are evaluated.
    """
    kind, local = evaluation.kind, isinstance(old, pa.Table)
    if affected.changes is None:
        rows = evaluation.all_rows() if affected.rows is None else evaluated(evaluation, affected.rows)
        return _local(evaluation, rows) if local else rows
    held = to_frame(evaluation.spark, old) if isinstance(old, pa.Table) else old
    absorbed = evaluation.inputs.absorbed(evaluation.declaration, held, affected.changes)
    limit = evaluation.inputs.project.settings.small_diff_rows
    kept, again = _split(to_arrow(absorbed) if local else absorbed, kind.key, limit)
    if isinstance(again, pa.Table) and not again.num_rows:
        return kept
    if not kind.key:
        return evaluation.all_rows()
    rows = evaluated(evaluation, again)
    if isinstance(kept, pa.Table):
        some = _local(evaluation, rows)
        if not isinstance(some, pa.Table):
            return some
        return pa.concat_tables([kept, some.select(kept.column_names)], promote_options="permissive")
    return kept.unionByName(rows)


def _local(evaluation: Evaluation, rows: DataFrame) -> pa.Table | DataFrame:
    """Rows in this process's memory, unless they turn out to be too many; no rows are of inputs that are small."""
    many = evaluation.inputs.rows(evaluation.declaration) > cost.COMPARE_ROWS
    return within(rows, cost.COMPARE_ROWS) if many else to_arrow(rows)


def _split(
    absorbed: pa.Table | DataFrame, key: Sequence[str], limit: int
) -> tuple[pa.Table | DataFrame, pa.Table | DataFrame]:
    """The rows that absorption made, and the keys that it marked as AGAIN; of no key, the mark.

    The keys are in this process's memory where the rows are, or they are no more than `limit`.
    """
    named = list(key) or [AGAIN]  # Arrow does not count rows without columns
    if isinstance(absorbed, pa.Table):
        again = absorbed.column(AGAIN)
        kept = absorbed.filter(pa.compute.invert(again)).drop_columns(AGAIN)
        return kept, distinct(absorbed.filter(again).select(named))
    kept = absorbed.where(f"not {AGAIN}").drop(AGAIN)
    return kept, within(absorbed.where(AGAIN).select(*named).distinct(), limit)


def evaluated(evaluation: Evaluation, keys: pa.Table | DataFrame) -> DataFrame:
    """The rows of `keys`, evaluated from the inputs restricted to them."""
    return evaluation.rows_from(restrict(evaluation.inputs, evaluation.declaration, keys))


def _by_spark(evaluation: Evaluation, affected: Keys, version: int) -> pa.Table | DataFrame:
    """The diff of all keys, or of more than one process takes."""
    identity = evaluation.identity
    old = evaluation.table.read(evaluation.spark, version)
    if affected.rows is not None:
        old = _of(old, affected.rows)
    rows: DataFrame = _rows(evaluation, affected, old)
    _must_fit(evaluation.declaration, rows.columns, old.columns)
    narrower = {name: kind for name, kind in old.dtypes if name.startswith("_") and kind != dict(rows.dtypes)[name]}
    rows = rows.withColumns({name: rows[name].cast(kind) for name, kind in narrower.items()}) if narrower else rows
    return gathered(evaluation.inputs, compare(unique(rows, identity), old, identity))


def _of(rows: DataFrame, keys: pa.Table | DataFrame) -> DataFrame:
    """Those of `rows` whose key columns equal one of `keys`, nulls included."""
    wanted = to_frame(rows.sparkSession, keys) if isinstance(keys, pa.Table) else keys
    return rows.join(wanted, same(rows, wanted, wanted.columns), "left_semi")


def _at_horizon(evaluation: Evaluation, changed: str, version: int, *, without: pa.Table | None) -> pa.Table | None:
    """The updates of the rows that the horizon has `changed`, but those of some keys; None where they are many."""
    table = evaluation.table
    old = table.rows_where(changed, version, without=without, limit=cost.COMPARE_ROWS)
    if old.num_rows == cost.COMPARE_ROWS:
        return None
    rows = evaluation.kind.at_horizon(to_frame(evaluation.spark, old), *evaluation.horizons).select(*old.column_names)
    updates = to_arrow(rows)
    diff = updates.append_column(CHANGE, pa.array(["update"] * updates.num_rows, pa.string()))
    key = _key(table)
    return diff if key is None else diff.append_column(WAS, hashes(old, key))
