from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.gold.meter_total import meter_total
from jobs.silver.meter_latest import meter_latest
from lake import View, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(View("meter"), meter_latest, meter_total)
def meter_state(meters: DataFrame, totals: DataFrame) -> DataFrame:
    """A meter that is not removed: its newest reading beside the mean of all."""
    return meters.sparkSession.sql(
        "select meter, at, value, mean, readings from {meters} join {totals} using (meter)",
        meters=meters,
        totals=totals,
    )
