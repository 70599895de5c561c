"""Two made streams: readings of meters, and a fifth as many changes of the meters' tariffs.

All of an event is a hash of its number. Events come in the order of their times; in a batch with late ones, each
hundredth event's time is somewhere in the four weeks of the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract, read_contract
from lake.contracts.expressions import bucket, identity
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.rows import Rows

START: Final = datetime(2024, 1, 4, tzinfo=UTC)
WEEKS: Final = timedelta(weeks=4)
READINGS_PER_TARIFF: Final = 5

# {stream: {field: (Avro type, SQL over `number`)}} beside number, meter and at.
FIELDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "readings": {
        "value": ("int", "cast(pmod(xxhash64(number, 'value'), 1000) as int)"),
        "mode": ("string", "if(pmod(xxhash64(number, 'mode'), 4) = 0, 'off', 'on')"),
        "removed": ("boolean", "pmod(xxhash64(number, 'removed'), 50) = 0"),
    },
    "tariffs": {"tariff": ("int", "cast(pmod(xxhash64(number, 'tariff'), 5) as int)")},
}


def contract(stream: str) -> Contract:
    """Return the contract of a stream, whose events are identified by their number."""
    types: dict[str, Any] = {"number": "long", "meter": "string"}
    types["at"] = {"type": "long", "logicalType": "timestamp-micros"}
    types |= {name: avro for name, (avro, _) in FIELDS[stream].items()}
    schema = {
        "type": "record",
        "name": stream,
        "doc": "Made events.",
        "lake": {"key": ["meter"], "id": ["number"], "time": "at"},
        "fields": [{"name": name, "type": avro} for name, avro in types.items()],
    }
    return read_contract(json.dumps(schema), file=f"{stream}.avsc")


@dataclass(frozen=True)
class Meters:
    """Makes the events of `meters` meters, of which the first `readings` fill four weeks."""

    spark: SparkSession
    readings: int
    meters: int

    def events(self, stream: str, first: int, count: int, *, late: bool) -> DataFrame:
        """The events of `stream` from number `first` on, made of readings `first` to `first` + `count`."""
        every = READINGS_PER_TARIFF if stream == "tariffs" else 1
        us = WEEKS // timedelta(microseconds=1)
        in_order = f"number * {us * every // self.readings}"
        anywhere = f"pmod(xxhash64(number, 'late'), {us}L)"
        after = f"if(number % 100 = 0, {anywhere}, {in_order})" if late else in_order
        numbers = self.spark.range(first // every, (first + count) // every).withColumnRenamed("id", "number")
        return numbers.selectExpr(
            "number",
            f"concat('M', pmod(xxhash64(number, '{stream}'), {self.meters})) as meter",
            f"timestamp_micros({int(START.timestamp())}000000 + {after}) as at",
            *[f"{sql} as {name}" for name, (_, sql) in FIELDS[stream].items()],
        )


def append(settings: Settings, contract: Contract, rows: DataFrame) -> None:
    """`rows` as the next batch of the log, as `lake append` commits it."""
    head = Log(settings, contract.name).head()
    contract_versions.register(settings, contract)
    placed = rows.selectExpr("*", "at as _time", f"{bucket(contract)} as _bucket")
    tally = placed.groupBy("_bucket").agg(F.count("*").alias("rows"), F.max("at").alias("latest")).toArrow().to_pylist()
    rows_of = {each["_bucket"]: each["rows"] for each in tally}
    offsets = {b: head.offsets.get(b, 0) + rows_of.get(b, 0) for b in sorted({*head.offsets, *rows_of})}
    before = ", ".join(f"{b}, {offsets[b] - count}L" for b, count in rows_of.items())
    watermark = f"timestamp '{head.watermark}'" if head.watermark else "cast(null as timestamp)"
    latest = [each["latest"] for each in tally] + ([head.watermark] if head.watermark else [])
    events = placed.selectExpr(
        f"{head.batch + 1}L as _batch",
        "number as _arrival",
        "_bucket",
        f"map({before})[_bucket] + row_number() over (partition by _bucket order by number) - 1 as _offset",
        f"{identity(contract)} as _id",
        "_time",
        f"{watermark} as _watermark",
        f"timestamp '{START}' as _ingested_at",
        "'made' as _source",
        "1 as _version",
        "cast(null as string) as _extra",
        *[field.name for field in contract.fields],
    )
    read = sum(rows_of.values())
    rows, prints = chain.fingerprinted(events, [], few=read <= cost.APPENDED_ROWS)
    position = head.next(
        offsets={str(b): offset for b, offset in offsets.items()},
        watermark=max(latest).isoformat(),
        counts={"read": read, "accepted": read, "duplicates": 0, "quarantined": 0, "control": 0},
        files=[],
        contract=1,
        at=START.isoformat(),
        content=chain.entry(head.content, head.batch + 1, prints, []),
    )
    Log(settings, contract.name).commit(contract, Rows(rows), position)
