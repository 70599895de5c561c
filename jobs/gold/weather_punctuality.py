from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.flight_weather import flight_weather
from lake import Aggregate, Avg, Count, CountIf, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="visibility_band",
        measures={
            "flights": Count(),
            "cancelled": CountIf("cancelled"),
            "left_late": CountIf("departure_delay > 15"),
            "departure_delay": Avg("departure_delay", scale=2),
        },
    ),
    flight_weather,
)
def weather_punctuality(flights: DataFrame) -> DataFrame:
    """Departures from New York by how far one could see at the airport when they were due.

    visibility_band: miles; unknown where no weather was observed in the two hours before
    flights: scheduled
    cancelled: never departed
    left_late: departed more than 15 minutes after schedule
    departure_delay: mean minutes after schedule of those that departed
    """
    return flights.selectExpr(
        """
        case when visibility is null then 'unknown'
             when visibility < 1 then 'under 1'
             when visibility < 3 then '1 to 3'
             when visibility < 10 then '3 to 10'
             else '10 and more'
        end as visibility_band
        """,
        "cancelled",
        "departure_delay",
    )
