from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest(key="leg_id"), log("flights"))
def flight(flights: DataFrame) -> DataFrame:
    """One leg of a scheduled flight out of New York: what was planned and what became of it.

    leg_id: carrier, flight number, origin and scheduled hour (UTC)
    scheduled_at: scheduled departure, UTC
    departed_at: actual departure, UTC; null of a cancelled leg
    departure_delay: minutes after schedule at departure; negative is early
    arrival_delay: minutes after schedule at arrival; negative is early; null of a leg that did not arrive as planned
    cancelled: it never departed
    distance: miles
    """
    scheduled = "timestampadd(MINUTE, minute, time_hour)"
    return flights.selectExpr(
        "concat_ws('-', carrier, flight, origin, date_format(time_hour, 'yyyyMMdd\\'T\\'HH')) as leg_id",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        f"{scheduled} as scheduled_at",
        f"timestampadd(MINUTE, dep_delay, {scheduled}) as departed_at",
        "dep_delay as departure_delay",
        "arr_delay as arrival_delay",
        "dep_time is null as cancelled",
        "distance",
    )
