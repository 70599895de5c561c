from __future__ import annotations

from typing import TYPE_CHECKING

from lake import History, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(History("meter", sequence="at", track="mode"), log("readings"))
def meter_mode(readings: DataFrame) -> DataFrame:
    """A period in which a meter was in one mode."""
    return readings.select("meter", "at", "mode")
