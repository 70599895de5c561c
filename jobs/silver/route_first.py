from __future__ import annotations

from typing import TYPE_CHECKING

from lake import First, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(First(key=("origin", "dest"), sequence=("departed_at", "carrier", "flight")), log("flights"))
def route_first(flights: DataFrame) -> DataFrame:
    """Who flew a route first: the earliest departure from `origin` to `dest`.

    departed_at: that departure, UTC
    carrier: who operated it
    flight: its flight number
    """
    return flights.where("dep_time is not null").selectExpr(
        "origin",
        "dest",
        "timestampadd(MINUTE, minute + dep_delay, time_hour) as departed_at",
        "carrier",
        "flight",
    )
