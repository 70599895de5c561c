"""Producers in a batch: their event times, and rejection above the contract's limit."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.contracts.contract import Contract
from lake.contracts.reasons import CONTROL, PUNCTUATION, Reason
from lake.store.scan import to_frame
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PUNCTUATED: Final = f"_reason = '{CONTROL}' AND _detail = '{PUNCTUATION}'"


def latest_times(records: DataFrame, contract: Contract) -> dict[str, datetime]:
    named = records.where(f"{_name(contract)} IS NOT NULL")
    rows = named.groupBy(named[_field(contract)].cast("string").alias("name")).agg({"_time": "max"}).toArrow()
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def reject_excess(parsed: DataFrame, contract: Contract, names: Collection[str]) -> DataFrame | None:
    """Reject the records of excess producers; return None if the limit is kept.

    The producers `names`, and after them the first new ones by name, are accepted: a repeated batch rejects the same.
    """
    from pyspark.sql import functions as F

    if contract.horizon is None:
        return None
    spark, limit = parsed.sparkSession, contract.horizon.limit
    named = parsed.where(f"(_reason IS NULL OR {PUNCTUATED}) AND {_name(contract)} IS NOT NULL")
    named = named.withColumn("_producer", F.expr(_name(contract)))
    before = F.broadcast(to_frame(spark, _names(names)))
    free = max(limit - len(names), 0)
    new = named.join(before, "_producer", "left_anti").select("_producer").distinct()
    first = new.orderBy("_producer").limit(free + 1).toArrow()
    if first.num_rows <= free:
        return None
    accepted = F.broadcast(to_frame(spark, _names([*names, *first.column(0).to_pylist()[:free]])))
    excess = named.join(accepted, "_producer", "left_anti").select("_position", "_producer")
    detail = F.expr(f"concat(_producer, ' is not among the {limit} producers that the horizon waits for')")
    is_excess = F.col("_producer").isNotNull()
    checked = parsed.join(excess, "_position", "left").withColumns(
        {
            "_reason": F.when(is_excess, str(Reason.TOO_MANY_PRODUCERS)).otherwise(F.col("_reason")),
            "_detail": F.when(is_excess, detail).otherwise(F.col("_detail")),
            "_bucket": F.when(~is_excess, F.col("_bucket")),
        }
    )
    return checked.select(*parsed.columns)


def _names(names: Collection[str]) -> pa.Table:
    return pa.table({"_producer": pa.array(sorted(names), pa.string())})


def _field(contract: Contract) -> str:
    assert contract.horizon is not None
    return contract.horizon.producer


def _name(contract: Contract) -> str:
    return f"cast({quoted(_field(contract), SPARK)} AS string)"
