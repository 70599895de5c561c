from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("customer_id", sequence=("changed_at", "change")), log("customers"))
def customer_latest(customers: DataFrame) -> DataFrame:
    """Newest state of a customer."""
    return customers.select("customer_id", "change", "region", "tier", "changed_at")
