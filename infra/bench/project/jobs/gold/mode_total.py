from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.meter_latest import meter_latest
from lake import Aggregate, Count, Sum, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Aggregate("mode", {"meters": Count(), "total": Sum("value")}), meter_latest)
def mode_total(meters: DataFrame) -> DataFrame:
    """The meters that are in one mode now, by their newest readings."""
    return meters.select("mode", "value")
