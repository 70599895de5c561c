"""Contract, records and ingestion of a test stream: meter readings."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import Contract, load_contracts
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.ingest import ingest
from lake.store.log import EventFilter, Log
from tests import shop

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)
READING: dict[str, Any] = shop.contract(
    "readings",
    {
        "meter": ["null", "string"],
        "at": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        "value": "decimal(8, 2)",
        "count": (["null", "int"], {"default": None, "minimum": 0, "maximum": 100}),
        "kind": ({"type": "enum", "name": "Kind", "symbols": ["GAS", "POWER"]}, {"default": "POWER"}),
        "day": "date?",
        "tags": shop.optional({"type": "array", "items": "int"}),
    },
    id=["meter", "at"],
    time="at",
    buckets=3,
    max_ahead="1 hour",
)


def declare(project: Settings, **changes: Any) -> Contract:
    """Write the contract with `changes` and load it."""
    project.path("schemas/readings.avsc").write_text(json.dumps(READING | changes, indent=1))
    return load_contracts(project)["readings"]


def fields(*replaced: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of the contract, with fields of the same name replaced and others added."""
    new = {field["name"]: field for field in replaced}
    return [new.pop(field["name"], field) for field in READING["fields"]] + list(new.values())


def reading(meter: str = "a", hour: int = 0, value: Any = "1.50", **more: Any) -> dict[str, Any]:
    return {"meter": meter, "at": f"2024-03-01T{hour:02}:00:00Z", "value": value, **more}


def take(project: Settings, spark: SparkSession, *, now: datetime = NOW) -> BatchCounts:
    """Ingest the landed files."""
    return ingest(project, lambda: spark, load_contracts(project), now=now)["readings"]


def events(project: Settings, spark: SparkSession, *, after: int = 0, **bounds: int) -> list[dict[str, Any]]:
    """Return the events of the log in log order."""
    contract, log = load_contracts(project)["readings"], Log(project, "readings")
    rows = log.read(spark, contract, **{"upto": log.head().batch, **bounds}, events=EventFilter(after=after))
    return [row.asDict(recursive=True) for row in rows.orderBy("_batch", "_bucket", "_offset").collect()]


Land = Callable[..., Any]
