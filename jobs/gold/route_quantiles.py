from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.flight import flight
from lake import Aggregate, ApproxDistinct, Count, Quantile, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key=("origin", "dest"),
        measures={
            "flights": Count(),
            "aircraft": ApproxDistinct("tailnum"),
            "median_delay": Quantile("arrival_delay"),
            "worst_tenth": Quantile("arrival_delay", 0.9),
        },
    ),
    flight,
)
def route_quantiles(flights: DataFrame) -> DataFrame:
    """How late a route arrives: quantiles of its legs' arrival delays.

    flights: scheduled
    aircraft: how many different ones, with a standard error of 1.6 %
    median_delay: minutes after schedule at arrival, within 1 % of itself; negative is early
    worst_tenth: minutes after schedule that one leg in ten exceeds, within 1 % of itself
    """
    return flights.select("origin", "dest", "tailnum", "arrival_delay")
