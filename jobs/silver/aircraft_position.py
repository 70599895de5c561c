from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest(key="tailnum", sequence=("at", "carrier", "flight")), log("flights"))
def aircraft_position(flights: DataFrame) -> DataFrame:
    """Where an aircraft last went: the destination of the last leg it departed on.

    airport: where that leg went
    at: when it departed, UTC
    carrier: who operated it
    flight: the leg's flight number
    """
    return flights.where("tailnum is not null and dep_time is not null").selectExpr(
        "tailnum",
        "dest as airport",
        "timestampadd(MINUTE, minute + dep_delay, time_hour) as at",
        "carrier",
        "flight",
    )
