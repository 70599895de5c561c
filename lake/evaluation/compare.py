"""What differs between a table's rows and the rows it should have: one query, run by Spark or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.quoting import DUCKDB, SPARK, literal, quoted
from lake.store.delta import connection
from lake.store.proof.fingerprints import duck_hash, fields_of
from lake.store.scan import to_arrow
from lake.store.table_head import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


WAS: Final = "_was"
"""The column of a diff that holds the hash of the row that an update or a delete takes away."""


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows to insert, update and delete so that `old` becomes `rows`: the columns of `rows`, and CHANGE.

    Both sides have the same columns and at most one row per `identity`. A deleted row shows its old values.
    """
    from pyspark.sql import functions as F

    # Renamed, because `rows` may descend from `old`, and then the two sides' columns are one to Spark.
    before = old.select(
        *[F.col(quoted(column, SPARK)).alias(_was(column)) for column in rows.columns], F.lit(True).alias("_there")
    )
    joined = rows.withColumn("_new", F.lit(True)).join(before, F.expr(_match(identity, SPARK)), "full_outer")
    return joined.selectExpr(*_images(rows.columns, identity, SPARK)).where(f"{CHANGE} is not null")


def compare_local(rows: pa.Table, old: pa.Table, identity: Sequence[str], key: str | None = None) -> pa.Table:
    """As `compare`, for rows in this process's memory. With a `key`, WAS too: the hash of the row that was there."""
    columns = rows.column_names
    with connection() as con:
        con.register("rows", rows)
        con.register("old", old)
        images = ", ".join([*_images(columns, identity, DUCKDB), *([WAS] if key is not None else [])])
        was = "NULL" if key is None else duck_hash(fields_of(old.schema), literal(key))
        pairs = con.sql(f"SELECT {images} FROM {_pairs(columns, identity, was)}").to_arrow_table()
    changed = pairs.filter(pa.compute.is_valid(pairs.column(CHANGE)))
    more = [pa.field(CHANGE, pa.string()), *([pa.field(WAS, pa.uint64())] if key is not None else [])]
    return changed.cast(pa.schema([*rows.schema, *more]))


def changed_pairs(columns: Sequence[str], identity: Sequence[str]) -> str:
    """DuckDB's SQL of what differs between its tables `rows` and `old`: CHANGE, and both rows as structs, null where
    there is none: `before` and `after`.
    """
    after = ", ".join(f"{literal(column)}: {quoted(column)}" for column in columns)
    before = ", ".join(f"{literal(column)}: {quoted(_was(column))}" for column in columns)
    return f"""SELECT {_change(columns, identity, DUCKDB)} AS {CHANGE},
            CASE WHEN _there THEN {{{before}}} END AS before, CASE WHEN _new THEN {{{after}}} END AS after
        FROM {_pairs(columns, identity)} WHERE {CHANGE} IS NOT NULL"""


def _pairs(columns: Sequence[str], identity: Sequence[str], was: str = "NULL") -> str:
    """DuckDB's SQL of each row of its table `rows` (`_new`) beside that of `old` (`_there`) with the same identity."""
    renamed = ", ".join(f"{quoted(column)} AS {quoted(_was(column))}" for column in columns)
    return f"""(SELECT *, true AS _new FROM rows)
        FULL OUTER JOIN (SELECT {renamed}, true AS _there, {was} AS {WAS} FROM old) ON {_match(identity, DUCKDB)}"""


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


def _was(column: str) -> str:
    return f"_was_{column}"


def _match(identity: Sequence[str], quote: str) -> str:
    pairs = (f"{quoted(c, quote)} is not distinct from {quoted(_was(c), quote)}" for c in identity)
    return " and ".join(pairs)


def _images(columns: Sequence[str], identity: Sequence[str], quote: str) -> list[str]:
    """SQL of each column's value after the change, and of CHANGE, which is null of a row that stays."""
    images = [f"case when _new is null then {old} else {new} end as {new}" for new, old in _names(columns, quote)]
    return [*images, f"{_change(columns, identity, quote)} as {CHANGE}"]


def _change(columns: Sequence[str], identity: Sequence[str], quote: str) -> str:
    """SQL of what becomes of a row; null of one that stays."""
    others = [column for column in columns if column not in identity]
    differs = [f"{new} is distinct from {old}" for new, old in _names(others, quote)]
    return (
        "case when _new is null then 'delete' when _there is null then 'insert' "
        f"when {' or '.join(differs) or 'false'} then 'update' end"
    )


def _names(columns: Sequence[str], quote: str) -> list[tuple[str, str]]:
    """Each column's quoted name after and before the change."""
    return [(quoted(column, quote), quoted(_was(column), quote)) for column in columns]
