from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.flight import flight
from lake import Aggregate, Avg, Calendar, Count, CountIf, Max, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="origin",
        window=Calendar(unit="month", on="scheduled_at", zone="America/New_York"),
        measures={
            "flights": Count(),
            "cancelled": CountIf("cancelled"),
            "departure_delay": Avg("departure_delay", scale=2),
            "longest_delay": Max("departure_delay"),
        },
    ),
    flight,
)
def airport_month(flights: DataFrame) -> DataFrame:
    """Departures of a New York airport in one month, by scheduled departure in New York.

    month: its first day
    flights: scheduled
    cancelled: never departed
    departure_delay: mean minutes after schedule of those that departed
    longest_delay: minutes after schedule of the latest to depart
    """
    return flights.select("origin", "scheduled_at", "cancelled", "departure_delay")
