from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.order_latest import order_latest
from lake import Aggregate, Calendar, Count, Sum, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DAY = Calendar(unit="day", on="changed_at", zone="UTC")


@table(Aggregate("status", {"orders": Count(), "revenue": Sum("amount")}, window=DAY), order_latest)
def daily_revenue(orders: DataFrame) -> DataFrame:
    """Orders that were not cancelled, and their amount, by status and day of the last change."""
    return orders.where("status <> 'cancelled'").select("status", "amount", "changed_at")
