from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from jobs.silver.flight import flight
from lake import Aggregate, Count, FirstValue, LastValue, Session, Sum, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="tailnum",
        window=Session(gap=timedelta(hours=6), on="departed_at"),
        measures={
            "legs": Count(),
            "miles": Sum("distance"),
            "first_airport": FirstValue("origin", by=("departed_at", "leg_id")),
            "last_airport": LastValue("dest", by=("departed_at", "leg_id")),
        },
    ),
    flight,
)
def aircraft_day(flights: DataFrame) -> DataFrame:
    """A run of an aircraft's legs out of New York, each less than six hours after the one before.

    window_start: the first departure, UTC
    window_end: six hours after the last departure, UTC
    legs: flown
    miles: flown on these legs
    first_airport: where the first leg started
    last_airport: where the last leg went
    """
    return flights.where("tailnum is not null and departed_at is not null").select(
        "tailnum", "departed_at", "leg_id", "origin", "dest", "distance"
    )
