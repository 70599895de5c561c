"""What must change in a table: its touched keys by absorption, by evaluation where that cannot be, and the diff.

What touches few keys is compared in this process; the rest by Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.evaluation.affected_keys import Touched, restrict, touched
from lake.evaluation.compare import WAS, compare, compare_local
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import check_unique, unique
from lake.kinds.kind import AGAIN, same
from lake.store.commit import CHANGE
from lake.store.delta import Position
from lake.store.fingerprints import hashes
from lake.store.scan import distinct, to_arrow, to_frame
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The rows of the touched keys that one process takes, beside their old images.
LOCAL_ROWS: Final = 500_000


def difference(inputs: Inputs, declaration: Declaration, table: Table, position: Position) -> pa.Table | DataFrame:
    """The rows to insert, update and delete, given what changed in the inputs since `position`."""
    return difference_of(inputs, declaration, table, touched(inputs, declaration, table, position))


def difference_of(
    inputs: Inputs, declaration: Declaration, table: Table, found: Touched | None
) -> pa.Table | DataFrame:
    """As `difference`, given what was found to be touched."""
    kind, version = declaration.kind, table.version()
    due = kind.due(inputs.horizon(declaration))
    empty = nothing(table)
    diffs, keys = [empty], None
    if found is not None:
        keys = found.keys
        old = table.rows_of(keys, version, limit=LOCAL_ROWS) if isinstance(keys, pa.Table) else None
        if old is None or old.num_rows == LOCAL_ROWS:
            return _by_spark(inputs, declaration, table, Touched(None) if due else found, version)
        rows = _rows(inputs, declaration, found, keys, old)
        _must_fit(declaration, rows.column_names, old.column_names)
        check_unique(declaration, rows)
        diffs.append(compare_local(rows, old.select(rows.column_names), kind.identity, _key(table)))
    if due:
        diffs.append(_aged(inputs, declaration, table, due, version, without=keys))
    told = all(WAS in diff.column_names for diff in diffs)
    wanted = pa.schema([field for field in empty.schema if told or field.name != WAS])
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


def _rows(inputs: Inputs, declaration: Declaration, found: Touched, keys: pa.Table, old: pa.Table) -> pa.Table:
    """The rows that the touched `keys` should have, in this process."""
    kind = declaration.kind
    if found.changes is None:
        return to_arrow(inputs.evaluated(declaration, restrict(inputs, declaration, keys)))
    held = to_frame(inputs.spark, old)
    absorbed = to_arrow(kind.aged(kind.absorb(held, *found.changes), inputs.horizon(declaration)))
    again = absorbed.column(AGAIN)
    kept = absorbed.filter(pa.compute.invert(again)).drop_columns(AGAIN)
    if kept.num_rows == absorbed.num_rows:
        return kept
    keys = distinct(absorbed.filter(again).select(list(kind.key)))
    evaluated = to_arrow(inputs.evaluated(declaration, restrict(inputs, declaration, keys)))
    return pa.concat_tables([kept, evaluated.select(kept.column_names).cast(kept.schema)])


def _by_spark(
    inputs: Inputs, declaration: Declaration, table: Table, found: Touched, version: int
) -> pa.Table | DataFrame:
    """The diff of all keys, or of more than one process takes."""
    kind = declaration.kind
    old = table.read(inputs.spark, version)
    if found.keys is not None:
        old = _of(old, found.keys)
    if found.changes is not None:
        rows = _absorbed(inputs, declaration, found.changes, old)
    elif found.keys is None:
        rows = inputs.evaluate(declaration)
    else:
        rows = inputs.evaluated(declaration, restrict(inputs, declaration, found.keys))
    _must_fit(declaration, rows.columns, old.columns)
    return gathered(inputs, compare(unique(rows, kind.identity), old, kind.identity))


def _absorbed(inputs: Inputs, declaration: Declaration, changes: tuple[DataFrame, ...], old: DataFrame) -> DataFrame:
    """The rows that the touched keys, which have the rows `old`, should have."""
    kind = declaration.kind
    rows = kind.aged(kind.absorb(old, *changes), inputs.horizon(declaration))
    kept, again = rows.where(f"not {AGAIN}").drop(AGAIN), rows.where(AGAIN)
    if not kind.key:  # Arrow does not count rows without columns
        return kept if again.isEmpty() else inputs.evaluate(declaration)
    keys = to_arrow(again.select(*kind.key).distinct())
    if not keys.num_rows:
        return kept
    return kept.unionByName(inputs.evaluated(declaration, restrict(inputs, declaration, keys)))


def _of(rows: DataFrame, keys: pa.Table | DataFrame) -> DataFrame:
    """Those of `rows` whose key columns equal one of `keys`, nulls included."""
    wanted = to_frame(rows.sparkSession, keys) if isinstance(keys, pa.Table) else keys
    return rows.join(wanted, same(rows, wanted, wanted.columns), "left_semi")


def _aged(  # noqa: PLR0913 which rows of which table, at which version
    inputs: Inputs, declaration: Declaration, table: Table, due: str, version: int, *, without: pa.Table | None
) -> pa.Table:
    """The updates of the `due` rows, but those of some keys: nothing touches them but the log's event time."""
    rows = table.rows_where(due, version, without=without)
    frame = to_frame(inputs.spark, rows)
    aged = to_arrow(declaration.kind.aged(frame, inputs.horizon(declaration)).select(*rows.column_names))
    diff = aged.append_column(CHANGE, pa.array(["update"] * aged.num_rows, pa.string()))
    key = _key(table)
    return diff if key is None else diff.append_column(WAS, hashes(rows, key))
