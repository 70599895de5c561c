"""A row's place: the values by which a key's rows are ordered, log order last, so that no two share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lake.kinds.columns import ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AT: Final = "_at"  # state: the place of what a table's row shows

KEPT: Final = f"struct({ORDER}._batch, {ORDER}._arrival)"


def place(*sequence: str) -> str:
    """SQL of a row's place: a struct of its values of `sequence` and its log order; a null is older than any value."""
    return f"struct({', '.join(f'`{column}`' for column in (*sequence, ORDER))})"


def kept(rows: DataFrame) -> DataFrame:
    """`rows` with their order as state keeps it: (batch, arrival) of an event, which no other event of its log has."""
    from pyspark.sql import functions as F

    logged = "_arrival" in rows.select(f"{ORDER}.*").columns
    return rows.withColumn(ORDER, F.expr(KEPT)) if logged else rows


def in_log_order(rows: DataFrame) -> bool:
    """Whether `rows` are of a log, where what comes later is newer, and not of a table."""
    return "_batch" in rows.select(f"{ORDER}.*").columns


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of each `key` the last row in log order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*key).orderBy(F.desc(ORDER))
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")
