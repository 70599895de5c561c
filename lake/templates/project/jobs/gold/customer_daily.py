from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.current_order import current_order
from lake import Aggregate, Calendar, Count, CountIf, Sum, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(
    Aggregate(
        key="customer",
        window=Calendar(unit="day", on="placed_at", zone="Europe/London"),
        measures={
            "orders": Count(),
            "cancelled": CountIf("status = 'cancelled'"),
            "amount": Sum("amount"),
        },
    ),
    current_order,
)
def customer_daily(orders: DataFrame) -> DataFrame:
    """A customer's orders of one day, by when they were placed in London.

    orders: placed that day
    cancelled: of those, how many have been cancelled since
    amount: of all of them
    """
    return orders.select("customer", "status", "amount", "placed_at")
