from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest(key="order_id", sequence="changed_at"), log("orders"))
def current_order(orders: DataFrame) -> DataFrame:
    """An order as it stands: its newest change.

    amount: what it costs
    placed_at: UTC
    changed_at: of the newest change, UTC
    """
    return orders.select("order_id", "customer", "status", "amount", "placed_at", "changed_at")
