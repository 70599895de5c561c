"""Place of a row: the values that order a key's rows, log order last, so that no two rows share one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lake.kinds.columns import ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AT: Final = "_at"  # state: the place of the row that gave a table's row

STORED_ORDER: Final = f"struct({ORDER}._batch, {ORDER}._arrival)"


def place(*sequence: str) -> str:
    """Return SQL of a row's place: a struct of `sequence` and log order; a null is older than any value."""
    return f"struct({', '.join(f'`{column}`' for column in (*sequence, ORDER))})"


def with_stored_order(rows: DataFrame) -> DataFrame:
    """Reduce the order of a log's rows to the form of state, (batch, arrival), which is unique in its log."""
    from pyspark.sql import functions as F

    is_log = "_arrival" in rows.select(f"{ORDER}.*").columns
    return rows.withColumn(ORDER, F.expr(STORED_ORDER)) if is_log else rows


def in_log_order(rows: DataFrame) -> bool:
    """Return whether `rows` come from a log, where later rows are newer, and not from a table."""
    return "_batch" in rows.select(f"{ORDER}.*").columns


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the last row of each `key` in log order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*key).orderBy(F.desc(ORDER))
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")
