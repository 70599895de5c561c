from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.flight import flight
from lake import Count, FirstOf, LastOf, Max, Pattern, Step, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Pattern(
        "tailnum",
        sequence=("departed_at", "leg_id"),
        steps=[Step("late", "arrival_delay > 30", times="{3,}")],
        measures={
            "started_at": FirstOf("departed_at"),
            "ended_at": LastOf("departed_at"),
            "legs": Count(),
            "worst": Max("arrival_delay"),
        },
    ),
    flight,
)
def delay_streak(flights: DataFrame) -> DataFrame:
    """Three or more legs of one aircraft in a row that each arrived more than 30 minutes late.

    started_at: departure of the first of them, UTC
    ended_at: departure of the last of them, UTC
    legs: how many were late in a row
    worst: minutes after schedule of the latest to arrive
    """
    return flights.where("tailnum is not null and departed_at is not null").select(
        "tailnum", "departed_at", "leg_id", "arrival_delay"
    )
