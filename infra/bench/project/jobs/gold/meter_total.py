from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Aggregate, Avg, Count, Max, Sum, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate("meter", {"readings": Count(), "total": Sum("value"), "mean": Avg("value"), "peak": Max("value")}),
    log("readings"),
)
def meter_total(readings: DataFrame) -> DataFrame:
    """All of a meter's readings."""
    return readings.select("meter", "value")
