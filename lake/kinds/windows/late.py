"""Lateness of a log's row, decided once by the log and the same in every recomputation."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake.kinds.columns import TIME, WATERMARK
from lake.kinds.windows.zones import interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def late(frame: DataFrame, *, by: timedelta = timedelta(0)) -> DataFrame:
    """Return the rows of a log whose event time is more than `by` behind the watermark of earlier batches or horizon.

    For a table of late events: `late(flights, by=timedelta(hours=1)).selectExpr("_id as event_id", …)`.
    """
    return frame.where(is_late(by))


def is_late(by: timedelta) -> str:
    """Return SQL over a log's rows, true of a row more than `by` behind the watermark; false in the first batch."""
    return f"coalesce({TIME} < {WATERMARK} - {interval(by)}, false)"
