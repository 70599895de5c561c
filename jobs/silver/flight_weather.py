from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.silver.aircraft_operator import aircraft_operator
from jobs.silver.flight import flight
from lake import AsOf, Enrich, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Enrich(
        "leg_id",
        AsOf("origin", time="observed_at", tolerance=timedelta(hours=2)),
        AsOf("tailnum"),
        time="scheduled_at",
    ),
    flight,
    log("weather"),
    aircraft_operator,
)
def flight_weather(
    flights: DataFrame, weather: DataFrame, operators: DataFrame
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """A leg with the weather at its origin when it should have left, and with its aircraft's operator then.

    The weather is the last observed at the origin, at most two hours before; null where there is none.

    departure_delay: minutes after schedule at departure; null of a cancelled leg
    temperature: degrees Fahrenheit
    wind_speed: miles per hour
    precipitation: inches in the hour
    visibility: miles; 10 is the most that is reported
    operator_version: the version_id in aircraft_operator
    """
    return (
        flights.select("leg_id", "carrier", "tailnum", "origin", "scheduled_at", "departure_delay", "cancelled"),
        weather.selectExpr(
            "origin",
            "time_hour as observed_at",
            "temp as temperature",
            "wind_speed",
            "precip as precipitation",
            "visib as visibility",
        ),
        operators.selectExpr("tailnum", "valid_from", "valid_to", "version_id as operator_version"),
    )
