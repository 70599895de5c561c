"""Log with recorded batches, written without Spark, for tests of the archive."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract
from lake.store import delta_writer
from lake.store.ledger import contract_versions, cuts
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.rows import Rows
from tests.shop import contract, declare, empty

BEGAN: Final = datetime(2024, 3, 1, tzinfo=UTC)
READING: Final = {"device": "string", "at": "timestamp", "volts": "double?", "tags": "string?"}
COLUMNS: Final = pa.schema(
    [
        ("_batch", pa.int64()),
        ("_arrival", pa.int64()),
        ("_bucket", pa.int32()),
        ("_offset", pa.int64()),
        ("_id", pa.string()),
        ("_time", pa.timestamp("us", "UTC")),
        ("_watermark", pa.timestamp("us", "UTC")),
        ("_ingested_at", pa.timestamp("us", "UTC")),
        ("_source", pa.string()),
        ("_version", pa.int32()),
        ("_extra", pa.string()),
        ("device", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("volts", pa.float64()),
        ("tags", pa.string()),
    ]
)


def project(folder: Path, settings: str = "") -> Settings:
    """Return a project with one empty stream, `readings`."""
    settled = empty(folder, settings)
    declare(settled, contract("readings", READING, time="at", id=["device", "at"]))
    return settled


def readings(settings: Settings) -> Contract:
    found = load_contract(settings, "readings")
    contract_versions.register(settings, found)
    return found


def append(settings: Settings, chance: random.Random, batches: int = 1) -> None:
    """Append batches of a few events, some late, and record a cut of them."""
    log, declared = Log(settings, "readings"), readings(settings)
    for _ in range(batches):
        head = log.head()
        rows, offsets = _rows(chance, head.batch + 1, dict(head.offsets), head.watermark)
        latest = max([row["_time"] for row in rows] + [head.watermark or BEGAN])
        table = pa.Table.from_pylist(rows, schema=COLUMNS)
        content = chain.entry(head.content, head.batch + 1, chain.of_batch(table), [])
        counts = {"read": len(rows), "accepted": len(rows), "duplicates": 0, "quarantined": 0, "control": 0}
        position = head.next(
            offsets={str(bucket): offset for bucket, offset in offsets.items()},
            watermark=latest.isoformat(),
            counts=counts,
            files=[],
            contract=1,
            at=BEGAN.isoformat(),
            content=content,
        )
        log.commit(declared, Rows(table), position)
    cuts.record_cut(settings, {"readings": log.head().batch}, 0)


def _rows(
    chance: random.Random, batch: int, offsets: dict[int, int], watermark: datetime | None
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    rows = []
    for arrival in range(chance.randrange(1, 6)):
        bucket = chance.randrange(2)
        offset = offsets.get(bucket, 0)
        offsets[bucket] = offset + 1
        at = BEGAN + timedelta(hours=chance.randrange(10 * batch), seconds=100 * batch + arrival)
        rows.append(
            {
                "_batch": batch, "_arrival": arrival, "_bucket": bucket, "_offset": offset,
                "_id": f"{batch}-{arrival}", "_time": at, "_watermark": watermark, "_ingested_at": BEGAN,
                "_source": f"{batch}.jsonl:{arrival + 1}", "_version": 1, "_extra": None,
                "device": f"d{bucket}", "at": at, "volts": chance.choice([None, 0.25, -1.5, float("nan")]),
                "tags": chance.choice([None, "", "ünï'code", "a,b"]),
            }
        )  # fmt: skip
    return rows, offsets


def compact(settings: Settings) -> None:
    """Compact all batches of each bucket into one file."""
    log = Log(settings, "readings")
    with delta_writer.changing(log.path, log.head().position.again()) as (table, properties):
        table.optimize.compact(target_size=1 << 20, commit_properties=properties)
