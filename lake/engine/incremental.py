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
from lake.evaluation.compare import WAS, compare, compare_local
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import check_unique, unique
from lake.kinds.kind import AGAIN, same
from lake.store.fingerprints import hashes
from lake.store.scan import distinct, to_arrow, to_frame
from lake.store.table_head import CHANGE
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def difference(evaluation: Evaluation, affected: Keys) -> pa.Table | DataFrame:
    """The rows to insert, update and delete so that the `affected` keys are right, and what is due is closed."""
    kind, table, version = evaluation.kind, evaluation.table, evaluation.table.version()
    due = kind.due(evaluation.horizon)
    empty = nothing(table)
    diffs, keys = [empty], None
    if affected is not NOTHING:
        keys = affected.rows
        old = table.rows_of(keys, version, limit=cost.COMPARE_ROWS) if isinstance(keys, pa.Table) else None
        if old is None or old.num_rows == cost.COMPARE_ROWS:
            return _by_spark(evaluation, ALL if due else affected, version)
        rows = _rows(evaluation, affected, keys, old)
        _must_fit(evaluation.declaration, rows.column_names, old.column_names)
        check_unique(evaluation.declaration, rows)
        diffs.append(compare_local(rows, old.select(rows.column_names), kind.identity, _key(table)))
    if due:
        diffs.append(_aged(evaluation, due, version, without=keys))
    hashed = all(WAS in diff.column_names for diff in diffs)
    wanted = pa.schema([field for field in empty.schema if hashed or field.name != WAS])
    return pa.concat_tables(diff.select(wanted.names).cast(wanted) for diff in diffs)


def _must_fit(declaration: Declaration, columns: Sequence[str], there: Sequence[str]) -> None:
    """Raises DeclarationError where the rows of a table have other columns than it has itself."""
    lost, new = (", ".join(sorted({*a} - {*b})) for a, b in ((there, columns), (columns, there)))
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
    limit = inputs.project.settings.small_diff_rows
    rows = to_arrow(diff.limit(limit + 1))
    return rows if rows.num_rows <= limit else diff


def _rows(evaluation: Evaluation, affected: Keys, keys: pa.Table, old: pa.Table) -> pa.Table:
    """The rows that the affected `keys` should have, in this process."""
    kind = evaluation.kind
    if affected.changes is None:
        return to_arrow(evaluated(evaluation, keys))
    held = to_frame(evaluation.spark, old)
    absorbed = to_arrow(kind.aged(kind.absorb(held, *affected.changes), evaluation.horizon))
    again = absorbed.column(AGAIN)
    kept = absorbed.filter(pa.compute.invert(again)).drop_columns(AGAIN)
    if kept.num_rows == absorbed.num_rows:
        return kept
    keys = distinct(absorbed.filter(again).select(list(kind.key)))
    anew = to_arrow(evaluated(evaluation, keys))
    return pa.concat_tables([kept, anew.select(kept.column_names).cast(kept.schema)])


def evaluated(evaluation: Evaluation, keys: pa.Table | DataFrame) -> DataFrame:
    """The rows of `keys`, evaluated from the inputs restricted to them."""
    return evaluation.rows_from(restrict(evaluation.inputs, evaluation.declaration, keys))


def _by_spark(evaluation: Evaluation, affected: Keys, version: int) -> pa.Table | DataFrame:
    """The diff of all keys, or of more than one process takes."""
    kind, keys = evaluation.kind, affected.rows
    old = evaluation.table.read(evaluation.spark, version)
    if keys is not None:
        old = _of(old, keys)
    if affected.changes is not None:
        rows = _absorbed(evaluation, affected.changes, old)
    else:
        rows = evaluation.all_rows() if keys is None else evaluated(evaluation, keys)
    _must_fit(evaluation.declaration, rows.columns, old.columns)
    return gathered(evaluation.inputs, compare(unique(rows, kind.identity), old, kind.identity))


def _absorbed(evaluation: Evaluation, changes: tuple[DataFrame, ...], old: DataFrame) -> DataFrame:
    """The rows that the affected keys, which have the rows `old`, should have."""
    kind = evaluation.kind
    rows = kind.aged(kind.absorb(old, *changes), evaluation.horizon)
    kept, again = rows.where(f"not {AGAIN}").drop(AGAIN), rows.where(AGAIN)
    if not kind.key:  # Arrow does not count rows without columns
        return kept if again.isEmpty() else evaluation.all_rows()
    keys = to_arrow(again.select(*kind.key).distinct())
    if not keys.num_rows:
        return kept
    return kept.unionByName(evaluated(evaluation, keys))


def _of(rows: DataFrame, keys: pa.Table | DataFrame) -> DataFrame:
    """Those of `rows` whose key columns equal one of `keys`, nulls included."""
    wanted = to_frame(rows.sparkSession, keys) if isinstance(keys, pa.Table) else keys
    return rows.join(wanted, same(rows, wanted, wanted.columns), "left_semi")


def _aged(evaluation: Evaluation, due: str, version: int, *, without: pa.Table | None) -> pa.Table:
    """The updates of the `due` rows, but those of some keys: nothing affects them but the log's event time."""
    table = evaluation.table
    rows = table.rows_where(due, version, without=without)
    frame = to_frame(evaluation.spark, rows)
    aged = to_arrow(evaluation.kind.aged(frame, evaluation.horizon).select(*rows.column_names))
    diff = aged.append_column(CHANGE, pa.array(["update"] * aged.num_rows, pa.string()))
    key = _key(table)
    return diff if key is None else diff.append_column(WAS, hashes(rows, key))
