"""Broadcast rows of a log that record rejections, repairs and acceptances (see lake.store.log_rows)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.kinds.columns import DELIVERED, ORDER, SIGN
from lake.store.log_rows import BROADCAST, REFUSAL, REFUSED
from lake.store.quarantine import mark
from lake.store.scan import to_frame
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake.contracts.contract import Contract
    from lake.ingest.delivery import QuarantineEvent

TEXTS: Final = ("_source", "_id", REFUSAL)
SCHEMA: Final = pa.schema({"_position": pa.int64(), **dict.fromkeys(TEXTS, pa.string()), "_bucket": pa.int32()})


def event_rows(spark: SparkSession, batch: int, events: Iterable[QuarantineEvent]) -> DataFrame:
    rows = [
        {
            "_position": event.position,
            "_source": event.source,
            "_id": event.mark if event.what == REFUSED else f"{event.mark} {event.what} {batch}",
            REFUSAL: event.what,
            "_bucket": BROADCAST,
        }
        for event in events
    ]
    return to_frame(spark, pa.Table.from_pylist(rows, SCHEMA))


def rejected_rows(refused: DataFrame, contract: Contract, batch: int) -> DataFrame:
    dump = [quoted(contract.dump, SPARK)] if contract.dump else []
    name = mark(batch, 0).removesuffix("0")
    return refused.selectExpr(
        "_position",
        "_source",
        f"concat('{name}', _number) AS _id",
        f"'{REFUSED}' AS {REFUSAL}",
        f"{BROADCAST} AS _bucket",
        *dump,
    )


def with_delivery(rows: DataFrame, contract: Contract) -> DataFrame:
    """Add the events' delivery: see lake.kinds.snapshots."""
    from pyspark.sql import functions as F

    file = "regexp_replace(_source, ':[0-9]+$', '')"
    own = f"cast({quoted(contract.dump, SPARK)} as string)" if contract.dump else "cast(null as string)"
    event = "'refusal', cast(null as string), 'id', cast(null as string)"
    return rows.withColumn(DELIVERED, F.expr(f"named_struct('file', {file}, 'dump', {own}, {event})"))


def without_fields(rows: DataFrame, contract: Contract) -> DataFrame:
    """Return the rows of rejections with their delivery, and without columns of events."""
    from pyspark.sql import functions as F

    refusals = with_delivery(rows, contract)
    for name, value in {"refusal": F.col(REFUSAL), "id": F.expr("substring_index(_id, ' ', 1)")}.items():
        refusals = refusals.withColumn(DELIVERED, F.col(DELIVERED).withField(name, value))
    return refusals.select(ORDER, SIGN, DELIVERED)
