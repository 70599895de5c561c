from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("order_id", sequence=("changed_at", "change")), log("orders"))
def order_latest(orders: DataFrame) -> DataFrame:
    """Newest state of an order."""
    return orders.select("order_id", "change", "customer_id", "status", "amount", "changed_at")
