"""Avro container files in a landing folder: events in the log, and records in quarantine."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.store.log import Log
from tests.records.test_avro import MICROS, container, of, record
from tests.shop import avro as declared
from tests.shop import contract, declare

NOW = datetime(2024, 4, 2, tzinfo=UTC)


def test_avro_files_in_a_landing_folder_are_ingested_and_faults_quarantined(
    project: Settings, spark: SparkSession
) -> None:
    fields = {"k": "string", "at": "timestamp", "day": "date?", "price": declared("decimal(9, 2)"), "ratio": "float"}
    declare(project, contract("rows", fields, id=["k"], time="at"))
    folder = project.path("landing/rows")
    folder.mkdir()
    kinds: dict[str, Any] = {"k": "string", "at": of("long", "timestamp-millis"), "day": ["null", of("int", "date")]}
    kinds |= {"price": of("bytes", "decimal", precision=12, scale=3), "ratio": "float", "more": "int"}
    row = {"k": "a", "at": MICROS // 1000, "day": 1, "price": (1500).to_bytes(2, "big"), "ratio": 0.1, "more": 7}
    rows = [row, row | {"k": "b", "day": 10**9}, row | {"k": "c", "day": None}, row | {"k": "d", "price": b"\x01"}]
    content = container(record(**kinds), rows, "deflate", every=2)
    (folder / "a b.avro").write_bytes(content)
    (folder / "again.avro").write_bytes(content[:-25])
    late_bomb = [row | {"k": "before it"}, row | {"k": "x" * 20_000_000}]
    (folder / "bomb.avro").write_bytes(container(record(**kinds), late_bomb, "deflate", every=1))
    (folder / "none.avro").write_bytes(b"Obj\x01")
    (folder / "empty.avro").touch()
    contracts = load_contracts(project)
    ingest(project, lambda: spark, contracts, now=NOW)
    log = Log(project, "rows").read(spark, contracts["rows"], upto=1).orderBy("_arrival").collect()
    at = datetime(2024, 3, 31, 10, 5, 0, 123000)
    assert [(row["k"], row["at"], row["day"], row["price"], row["ratio"], row["_source"]) for row in log] == [
        ("a", at, date(1970, 1, 2), Decimal("1.50"), pytest.approx(0.1), "rows/a b.avro:1"),
        ("c", at, None, Decimal("1.50"), pytest.approx(0.1), "rows/a b.avro:3"),
    ]
    assert json.loads(log[0]["_extra"]) == {"more": 7}
    said = [f"{row.reason}: {row.detail} ({row.source})" for row in quarantined_records(project, ["rows"])]
    assert said[0].startswith("file: oversized: unpacked, its ")
    assert said[1].startswith("file: not an Avro container file that can be read")
    assert said.pop().startswith("unparseable: cannot be read after record 2: a block of ")
    assert said[2:] == [
        "wrong type: day: 1000000000 days since 1970 is not date (rows/a b.avro:2)",
        "wrong type: price: 0.001 is not decimal(9,2) (rows/a b.avro:4)",
        "wrong type: day: 1000000000 days since 1970 is not date (rows/again.avro:2)",
    ]
