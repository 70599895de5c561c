"""Small batches that need no session of Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings, load_settings
from lake.contracts.contract import load_contracts
from lake.ingest.append import BatchCounts
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.ops.scaffold import init
from lake.store import duckdb_tables
from lake.store.log import Log
from tests.checks import spark_forbidden
from tests.shop import order
from tests.store.events import NOW, READING, Land, declare, fields, reading

FLAT: Final = [field for field in fields() if field["name"] != "tags"]


@pytest.mark.parametrize("searched", [cost.DEDUPLICATED_LOG_ROWS, -1], ids=["by ids", "by frames"])
def test_batch_with_rejected_and_repeated_records_needs_no_spark(
    searched: int, project: Settings, land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "DEDUPLICATED_LOG_ROWS", searched)
    declare(project, fields=FLAT)
    land("readings", "1.jsonl", *(reading("a", hour) for hour in range(5)))
    assert ingested(project) == BatchCounts(1, read=5, accepted=5)
    conflict, wrong = reading("a", 3, "9.99"), reading("b", count="x")
    land("readings", "2.jsonl", reading("a", 4), conflict, wrong, "no JSON", reading("b", 1))
    assert ingested(project) == BatchCounts(2, read=5, accepted=1, duplicates=1, quarantined=3)
    assert [(row.reason, row.raw) for row in quarantined_records(project)] == [
        ("conflict", json.dumps(conflict)),
        ("wrong type", json.dumps(wrong)),
        ("unparseable", "no JSON"),
    ]
    assert check_log(project, "readings").faults == []


def test_batch_with_undeclared_members_needs_no_spark(project: Settings, land: Land) -> None:
    declare(project, fields=FLAT)
    land("readings", "1.jsonl", reading("a"), reading("b", unit="kWh"), reading("c", unit="kWh", place={"floor": 1}))
    assert ingested(project) == BatchCounts(1, read=3, accepted=3)
    drift = Log(project, "readings").head().position.data["drift"]
    assert (drift["records"], drift["unknown"]) == (2, {"place": 1, "unit": 2})


def test_batch_of_producers_needs_no_spark(project: Settings, land: Land) -> None:
    declare(project, fields=FLAT, lake=READING["lake"] | {"horizon": {"producer": "meter"}})
    land("readings", "1.jsonl", reading("a", 4), reading("b", 2), reading("a", 1))
    assert ingested(project) == BatchCounts(1, read=3, accepted=3)
    head = Log(project, "readings").head()
    assert head.watermark == datetime(2024, 3, 1, 2, tzinfo=UTC)
    assert sorted(head.horizon["open"]) == ["a", "b"]


def test_personal_values_are_encrypted_alike_by_both_engines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "here")
    assert order_counts(tmp_path / "here", spark_forbidden) == BatchCounts(1, 8, 6, duplicates=1, quarantined=1)
    people = ["ada", "", "añ😀", *("x" * size for size in (28, 29, 30, 86, 87, 500)), "grace"]

    def land_orders(home: str, first: int) -> None:
        orders = [order(number, customer=name, unknown=name) for number, name in enumerate(people, start=first)]
        (tmp_path / home / f"landing/orders/{first}.jsonl").write_text("\n".join(map(json.dumps, orders)))

    land_orders("here", 20)  # everybody gets a key, which is random
    assert order_counts(tmp_path / "here", spark_forbidden).accepted == len(people)
    shutil.copytree(tmp_path / "here", tmp_path / "spark")
    for home in ("here", "spark"):
        land_orders(home, 50)
    assert order_counts(tmp_path / "here", spark_forbidden).accepted == len(people)
    monkeypatch.setattr(cost, "READ_BYTES", -1)
    assert order_counts(tmp_path / "spark", lambda: spark).accepted == len(people)
    query = "SELECT * EXCLUDE (_ingested_at) FROM t WHERE _batch = 3 ORDER BY _bucket, _offset"
    logs = [Log(load_settings(tmp_path / home), "orders") for home in ("here", "spark")]
    here, there = (duckdb_tables.rows(log.path, query) for log in logs)
    assert here == there != []
    assert not {row["customer"] for row in here} & {*people}


def order_counts(home: Path, spark: Callable[[], SparkSession]) -> BatchCounts:
    settings = load_settings(home)
    return ingest(settings, spark, load_contracts(settings))["orders"]


def ingested(project: Settings) -> BatchCounts:
    return ingest(project, spark_forbidden, load_contracts(project), now=NOW)["readings"]
