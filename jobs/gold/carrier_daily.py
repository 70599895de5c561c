from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Aggregate, Calendar, Count, CountIf, Sum, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="carrier",
        window=Calendar(unit="day", on="scheduled_at", zone="America/New_York"),
        measures={
            "flights": Count(),
            "cancelled": CountIf("dep_time is null"),
            "arrived": CountIf("arr_delay is not null"),
            "arrived_late": CountIf("arr_delay > 15"),
            "arrival_delay": Sum("arr_delay"),
            "distance": Sum("distance"),
        },
    ),
    log("flights"),
)
def carrier_daily(flights: DataFrame) -> DataFrame:
    """A carrier's flights of one day, by scheduled departure in New York.

    flights: scheduled
    cancelled: never departed
    arrived: arrived as planned, neither cancelled nor diverted
    arrived_late: arrived more than 15 minutes after schedule
    arrival_delay: minutes after schedule, added up over arrived flights; early ones count negative
    distance: miles, added up over scheduled flights
    """
    return flights.selectExpr(
        "carrier",
        "timestampadd(MINUTE, minute, time_hour) as scheduled_at",
        "dep_time",
        "arr_delay",
        "distance",
    )
