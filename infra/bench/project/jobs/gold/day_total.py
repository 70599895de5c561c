from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake import Aggregate, Count, CountIf, Sum, Tumbling, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        "mode",
        {"readings": Count(), "removed": CountIf("removed"), "total": Sum("value")},
        window=Tumbling(length=timedelta(days=1), on="at", zone="UTC"),
    ),
    log("readings"),
)
def day_total(readings: DataFrame) -> DataFrame:
    """A day's readings in one mode."""
    return readings.select("mode", "at", "removed", "value")
