"""Small batches that need no session of Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import pytest

from lake import cost
from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.append import BatchCounts
from lake.ingest.fsck import check
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.store.log import Log
from tests.checks import spark_forbidden
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
    assert check(project, "readings") == []


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


def ingested(project: Settings) -> BatchCounts:
    return ingest(project, spark_forbidden, load_contracts(project), now=NOW)["readings"]
