from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("meter", sequence="at", deletes="_removed"), log("readings"))
def meter_latest(readings: DataFrame) -> DataFrame:
    """A meter's newest reading; none if the meter was removed since."""
    return readings.selectExpr("meter", "at", "value", "mode", "removed as _removed")
