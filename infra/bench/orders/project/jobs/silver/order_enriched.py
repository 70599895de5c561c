from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.silver.customer_history import customer_history
from lake import AsOf, Enrich, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Enrich("change", AsOf("customer_id"), time="changed_at"), log("orders"), customer_history)
def order_enriched(orders: DataFrame, customers: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Each change of an order with the version of its customer at that time."""
    changes = orders.select("change", "order_id", "customer_id", "status", "amount", "changed_at")
    return changes, customers.select("customer_id", "region", "tier", "valid_from", "valid_to")
