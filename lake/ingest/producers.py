"""What a batch says of the producers that its contract names: how far each has come, and who is one too many."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.contracts.contract import Contract
from lake.contracts.reasons import CONTROL, PUNCTUATION, Reason
from lake.quoting import SPARK, quoted
from lake.store.scan import to_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PUNCTUATED: Final = f"_reason = '{CONTROL}' AND _detail = '{PUNCTUATION}'"


def latest_times(records: DataFrame, contract: Contract) -> dict[str, datetime]:
    """The greatest time that `records` tell of each producer that they name."""
    named = records.where(f"{_name(contract)} IS NOT NULL")
    rows = named.groupBy(named[_field(contract)].cast("string").alias("name")).agg({"_time": "max"}).toArrow()
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def reject_excess(parsed: DataFrame, contract: Contract, names: Collection[str]) -> DataFrame | None:
    """`parsed` with the records refused that are of more producers than the contract takes; None where all are taken.

    Those that are `names` stay. Of the others the first by name are taken, so that a batch made again takes the same.
    """
    from pyspark.sql import functions as F

    if contract.horizon is None:
        return None
    spark, limit = parsed.sparkSession, contract.horizon.limit
    heard = parsed.where(f"(_reason IS NULL OR {PUNCTUATED}) AND {_name(contract)} IS NOT NULL")
    heard = heard.withColumn("_producer", F.expr(_name(contract)))
    before = F.broadcast(to_frame(spark, _names(names)))
    free = max(limit - len(names), 0)
    new = heard.join(before, "_producer", "left_anti").select("_producer").distinct()
    first = new.orderBy("_producer").limit(free + 1).toArrow()
    if first.num_rows <= free:
        return None
    taken = F.broadcast(to_frame(spark, _names([*names, *first.column(0).to_pylist()[:free]])))
    many = heard.join(taken, "_producer", "left_anti").select("_position", "_producer")
    detail = F.expr(f"concat(_producer, ' is not among the {limit} producers that the horizon waits for')")
    is_many = F.col("_producer").isNotNull()
    judged = parsed.join(many, "_position", "left").withColumns(
        {
            "_reason": F.when(is_many, str(Reason.TOO_MANY_PRODUCERS)).otherwise(F.col("_reason")),
            "_detail": F.when(is_many, detail).otherwise(F.col("_detail")),
            "_bucket": F.when(~is_many, F.col("_bucket")),
        }
    )
    return judged.select(*parsed.columns)


def _names(names: Collection[str]) -> pa.Table:
    return pa.table({"_producer": pa.array(sorted(names), pa.string())})


def _field(contract: Contract) -> str:
    assert contract.horizon is not None
    return contract.horizon.producer


def _name(contract: Contract) -> str:
    return f"cast({quoted(_field(contract), SPARK)} AS string)"
