"""Rows of a log, and the events that they are by its newest contract.

A log's own columns: `_batch` (1, 2, 3 … without gaps), `_arrival` (an ordinal over the batch in the order of the
source; unique there, with gaps), `_bucket`, `_offset` (gap-free within a bucket, in the order of batch and arrival),
`_id`, `_time` (event time), `_watermark` (the greatest `_time` of earlier batches; if the contract names producers,
their horizon), `_ingested_at` (for people; no derivation may read it), `_source`, `_version` (of the contract),
`_extra` (members that the contract does not know, as JSON).

A log also has, as broadcasts, a row with REFUSAL for each record that was quarantined, for each that was accepted
later, and for each acceptance of everything rejected. `Log.refusals` returns these, `Log.read` the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lake.contracts import encryption, evolution, origins
from lake.contracts.contract import Contract
from lake.lazy import DataFrame, SparkSession, pa
from lake.store.scan import TIME
from lake.text import SPARK, quoted

BROADCAST: Final = -1  # the bucket of events without a key
REFUSAL: Final = "_refusal"  # REFUSED, REPAIRED or ACCEPTED; null for events, absent if nothing was ever rejected
REFUSED, REPAIRED, ACCEPTED = "refused", "repaired", "accepted"
OWN: Final = {
    "_batch": "bigint",
    "_arrival": "bigint",
    "_bucket": "int",
    "_offset": "bigint",
    "_id": "string",
    "_time": "timestamp",
    "_watermark": "timestamp",
    "_ingested_at": "timestamp",
    "_source": "string",
    "_version": "int",
    "_extra": "string",
}


def current(
    rows: DataFrame,
    contracts: Sequence[Contract],
    keys: DataFrame | None = None,
    more: Sequence[str] = (),
    *,
    upcast: bool = True,
) -> DataFrame:
    """Read stored `rows` as the newest of its `contracts`, followed by the log's own columns and `more` columns.

    Personal values are decrypted by `keys`, and null for persons without a key. Without `upcast`, events of older
    versions keep their original values.
    """
    from lake.store import dialects, spark_upcast  # imports Arrow

    if keys is not None:
        rows = encryption.with_keys(rows, keys)
        extra = encryption.decrypted_sql(encryption.EXTRA, encryption.place(contracts[-1], encryption.EXTRA))
        rows = rows.selectExpr("* EXCEPT (_extra)", f"{extra} AS {encryption.EXTRA}")
    stored = set(rows.columns)
    kinds = {column: kind for (_, kind), column in origins.columns(contracts).items()} | OWN
    missing = [
        f"cast(NULL AS {kind}) AS {quoted(column, SPARK)}" for column, kind in kinds.items() if column not in stored
    ]
    read = spark_upcast.with_members(rows.selectExpr("*", *missing), contracts)
    read = read.selectExpr(*dialects.fields_sql(contracts), *OWN, *more)
    return spark_upcast.upcast(read, contracts[-1], evolution.steps_of_log(contracts)) if upcast else read


def people(rows: pa.Table) -> list[str]:
    tokens: list[str] = rows.column(encryption.SUBJECT).drop_null().unique().to_pylist()
    return tokens


def empty(spark: SparkSession, contract: Contract) -> DataFrame:
    return spark.createDataFrame(
        [], ", ".join(f"{quoted(name, SPARK)} {kind}" for name, kind in types(contract).items())
    )


def types(contract: Contract) -> dict[str, str]:
    return {field.name: field.type for field in contract.fields} | OWN


def clustered(contract: Contract) -> list[str]:
    """Return the columns by which compaction sorts a log: event time, which most queries ask for; else the key."""
    return [TIME] if contract.time else ranged(contract) or ["_offset"]


def ranged(contract: Contract) -> list[str]:
    return [
        name
        for name in contract.key
        if name not in contract.sealed and contract.field(name).type in {"string", "int", "bigint", "date", "timestamp"}
    ]
