from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.flight import flight
from lake import Fold, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Fold(
        "tailnum",
        sequence=("departed_at", "leg_id"),
        state="legs int, miles bigint, airports array<string>, last_airport string, displaced int",
        start={"legs": 0, "miles": 0, "airports": [], "displaced": 0},
        step={
            "legs": "state.legs + 1",
            "miles": "state.miles + event.distance",
            "airports": "array_sort(array_union(state.airports, array(event.origin, event.dest)))",
            "last_airport": "event.dest",
            "displaced": "state.displaced + if(event.origin = state.last_airport or state.legs = 0, 0, 1)",
        },
    ),
    flight,
)
def aircraft_log(flights: DataFrame) -> DataFrame:
    """What an aircraft has done, leg after leg in the order of departure.

    legs: flown
    miles: flown on these legs
    airports: those it has been seen at, by code
    last_airport: where its last leg went
    displaced: legs that started elsewhere than the one before ended; the data has departures from New York only
    """
    return flights.where("tailnum is not null and departed_at is not null").select(
        "tailnum", "departed_at", "leg_id", "origin", "dest", "distance"
    )
