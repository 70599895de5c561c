from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from lake import Aggregate, Avg, Count, CountIf, Hopping, Max, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="origin",
        window=Hopping(
            length=timedelta(hours=3), every=timedelta(hours=1), on="_scheduled_at", zone="America/New_York"
        ),
        measures={
            "flights": Count(),
            "cancelled": CountIf("dep_time is null"),
            "departure_delay": Avg("dep_delay", scale=2),
            "longest_delay": Max("dep_delay"),
        },
        lateness=timedelta(hours=12),
        is_final=True,
    ),
    log("flights"),
)
def airport_hour(flights: DataFrame) -> DataFrame:
    """Departures of a New York airport in three hours, every hour, by scheduled departure.

    flights: scheduled
    cancelled: never departed
    departure_delay: mean minutes after schedule of those that departed
    longest_delay: minutes after schedule of the latest to depart
    is_final: the window ended more than twelve hours before the latest scheduled departure that is known
    """
    return flights.selectExpr(
        "origin", "timestampadd(MINUTE, minute, time_hour) as _scheduled_at", "dep_time", "dep_delay"
    )
