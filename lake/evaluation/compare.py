"""What differs between a table's rows and the rows it should have: one query, run by Spark or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.quoting import DUCKDB, SPARK, literal, quoted
from lake.store.comparison import WAS, images, match, pairs, was
from lake.store.proof.fingerprints import duck_hash, fields_of
from lake.store.scan import to_arrow
from lake.store.small import connection
from lake.store.table_head import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows to insert, update and delete so that `old` becomes `rows`: the columns of `rows`, and CHANGE.

    Both sides have the same columns and at most one row per `identity`. A deleted row shows its old values.
    """
    from pyspark.sql import functions as F

    # Renamed, because `rows` may descend from `old`, and then the two sides' columns are one to Spark.
    before = old.select(
        *[F.col(quoted(column, SPARK)).alias(was(column)) for column in rows.columns], F.lit(True).alias("_there")
    )
    joined = rows.withColumn("_new", F.lit(True)).join(before, F.expr(match(identity, SPARK)), "full_outer")
    return joined.selectExpr(*images(rows.columns, identity, SPARK)).where(f"{CHANGE} is not null")


def compare_local(rows: pa.Table, old: pa.Table, identity: Sequence[str], key: str | None = None) -> pa.Table:
    """As `compare`, for rows in this process's memory. With a `key`, WAS too: the hash of the row that was there."""
    columns = rows.column_names
    with connection() as con:
        con.register("rows", rows)
        con.register("old", old)
        selected = ", ".join([*images(columns, identity, DUCKDB), *([WAS] if key is not None else [])])
        hashed = "NULL" if key is None else duck_hash(fields_of(old.schema), literal(key))
        beside = con.sql(f"SELECT {selected} FROM {pairs(columns, identity, hashed)}").to_arrow_table()
    changed = beside.filter(pa.compute.is_valid(beside.column(CHANGE)))
    more = [pa.field(CHANGE, pa.string()), *([pa.field(WAS, pa.uint64())] if key is not None else [])]
    return changed.cast(pa.schema([*rows.schema, *more]))


def shown(diff: pa.Table, old: pa.Table, identity: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Rows of a diff for a person, `old` being those they replace: the identity, `change`, and for an update `columns`:
    {column: [old value, new value]}.
    """
    replaced = {repr([row[k] for k in identity]): row for row in old.to_pylist()}
    changes = []
    for row in diff.to_pylist():
        key = {k: row[k] for k in identity}
        change: dict[str, Any] = {**key, "change": row[CHANGE]}
        if row[CHANGE] == "update":
            was = replaced[repr(list(key.values()))]
            change["columns"] = {
                c: [was[c], row[c]] for c in row if c != CHANGE and c not in identity and was[c] != row[c]
            }
        changes.append(change)
    return tuple(changes)


def first(diff: pa.Table | DataFrame, identity: Sequence[str], count: int) -> pa.Table:
    """The first `count` rows of a diff, in the order of their identity."""
    if isinstance(diff, pa.Table):
        sortable = [(c, "ascending") for c in identity if not pa.types.is_nested(diff.schema.field(c).type)]
        return diff.sort_by(sortable).slice(0, count) if sortable else diff.slice(0, count)
    return to_arrow(diff.orderBy(*identity).limit(count))
