"""A stream to test with: readings of meters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import Contract, load_contracts
from lake.ingest.append import BatchCounts
from lake.ingest.ingest import ingest
from lake.store.log import Log

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)
READING: dict[str, Any] = {
    "type": "record",
    "name": "readings",
    "doc": "One reading of a meter.",
    "lake": {"key": ["meter"], "id": ["meter", "at"], "time": "at", "buckets": 3, "max_ahead": "1 hour"},
    "fields": [
        {"name": "meter", "type": ["null", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "value", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "count", "type": ["null", "int"], "default": None, "minimum": 0, "maximum": 100},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["GAS", "POWER"]}, "default": "POWER"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "tags", "type": ["null", {"type": "array", "items": "int"}], "default": None},
    ],
}


def declare(project: Settings, **changes: Any) -> Contract:
    """Writes the contract, changed, and reads it."""
    project.path("schemas/readings.avsc").write_text(json.dumps(READING | changes, indent=1))
    return load_contracts(project)["readings"]


def fields(*replaced: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a reading, those of the same name replaced, the others added."""
    new = {field["name"]: field for field in replaced}
    return [new.pop(field["name"], field) for field in READING["fields"]] + list(new.values())


def reading(meter: str = "a", hour: int = 0, value: Any = "1.50", **more: Any) -> dict[str, Any]:
    return {"meter": meter, "at": f"2024-03-01T{hour:02}:00:00Z", "value": value, **more}


def take(project: Settings, spark: SparkSession, *, now: datetime = NOW) -> BatchCounts:
    """Ingests what has landed."""
    return ingest(project, spark, load_contracts(project), now=now)["readings"]


def events(project: Settings, spark: SparkSession, **where: int) -> list[dict[str, Any]]:
    """The log's events in log order."""
    contract = load_contracts(project)["readings"]
    bounds: dict[str, Any] = {"upto": Log(project, "readings").head().batch} | where
    rows = Log(project, contract.name).read(spark, contract, **bounds)
    return [row.asDict(recursive=True) for row in rows.orderBy("_batch", "_bucket", "_offset").collect()]


Land = Callable[..., Any]
