from __future__ import annotations

from typing import TYPE_CHECKING

from lake import History, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    History("tailnum", sequence=("_scheduled_at", "carrier", "_flight", "_origin"), track="carrier"),
    log("flights"),
)
def aircraft_operator(flights: DataFrame) -> DataFrame:
    """Who operated an aircraft and when: one row per uninterrupted period with one carrier.

    carrier: the operator, IATA code
    valid_from: scheduled departure of its first flight for that carrier, UTC
    valid_to: scheduled departure of its first flight for the next carrier, UTC; null while there is none
    version_id: identifies the period for ever
    """
    return flights.where("tailnum is not null").selectExpr(
        "tailnum",
        "carrier",
        "timestampadd(MINUTE, minute, time_hour) as _scheduled_at",
        "flight as _flight",
        "origin as _origin",
    )
