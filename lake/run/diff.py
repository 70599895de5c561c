"""What differs between a table's rows and the rows it should have: one query, run by Spark or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.store.commit import CHANGE
from lake.store.delta import connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows to insert, update and delete so that `old` becomes `rows`: the columns of `rows`, and CHANGE.

    Both sides have the same columns and at most one row per `identity`. A deleted row shows its old values.
    """
    from pyspark.sql import functions as F

    # Renamed, because `rows` may descend from `old`, and then the two sides' columns are one to Spark.
    there = old.select(*[F.col(column).alias(_was(column)) for column in rows.columns], F.lit(True).alias("_there"))
    joined = rows.withColumn("_new", F.lit(True)).join(there, F.expr(_match(identity, "`")), "full_outer")
    return joined.selectExpr(*_images(rows.columns, identity, "`")).where(f"{CHANGE} is not null")


def compare_local(rows: pa.Table, old: pa.Table, identity: Sequence[str]) -> pa.Table:
    """As `compare`, for rows in this process's memory."""
    columns, quote = rows.column_names, '"'
    renamed = ", ".join(f'"{column}" as "{_was(column)}"' for column in columns)
    with connection() as con:
        con.register("rows", rows)
        con.register("old", old)
        found = con.sql(
            f"""SELECT {", ".join(_images(columns, identity, quote))}
                FROM (SELECT *, true AS _new FROM rows)
                FULL OUTER JOIN (SELECT {renamed}, true AS _there FROM old) ON {_match(identity, quote)}"""
        ).to_arrow_table()
    changed = found.filter(pa.compute.is_valid(found.column(CHANGE)))
    return changed.cast(rows.schema.append(pa.field(CHANGE, pa.string())))


def _was(column: str) -> str:
    return f"_was_{column}"


def _match(identity: Sequence[str], quote: str) -> str:
    pairs = (f"{quote}{c}{quote} is not distinct from {quote}{_was(c)}{quote}" for c in identity)
    return " and ".join(pairs)


def _images(columns: Sequence[str], identity: Sequence[str], quote: str) -> list[str]:
    """SQL of each column's value after the change, and of CHANGE, which is null of a row that stays."""
    names = {column: (f"{quote}{column}{quote}", f"{quote}{_was(column)}{quote}") for column in columns}
    differs = [f"{new} is distinct from {old}" for column, (new, old) in names.items() if column not in identity]
    change = (
        "case when _new is null then 'delete' when _there is null then 'insert' "
        f"when {' or '.join(differs) or 'false'} then 'update' end"
    )
    images = [f"case when _new is null then {old} else {new} end as {new}" for new, old in names.values()]
    return [*images, f"{change} as {CHANGE}"]
