from __future__ import annotations

from typing import TYPE_CHECKING

from lake import History, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(History("customer_id", sequence=("changed_at", "_change"), track=("region", "tier")), log("customers"))
def customer_history(customers: DataFrame) -> DataFrame:
    """Versions of a customer: one row per uninterrupted period in one region and tier."""
    return customers.selectExpr("customer_id", "region", "tier", "changed_at", "change as _change")
