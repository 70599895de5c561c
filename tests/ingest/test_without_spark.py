"""Small batches that need no session of Spark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake import cost
from lake.cli import lake
from lake.config import Settings, load_settings
from lake.contracts.contract import load_contracts
from lake.ingest.append import append_files
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.ingest.replay import incomplete_transactions, quarantined_records
from lake.ops.scaffold import init
from lake.store import duckdb_tables
from lake.store.delta import Position
from lake.store.ledger.runs import last_runs
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.quarantine import Rejected
from lake.store.table_head import DUCKDB, SPARK
from tests import shop
from tests.checks import spark_forbidden
from tests.permissions import forbidden
from tests.shop import empty, order
from tests.store.events import NOW, READING, Land, declare, fields, reading

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("what", ["file", "target of a link"])
def test_file_that_may_not_be_read_waits_and_stops_no_other(
    project: Settings, land: Land, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    declare(project, fields=FLAT)
    land("readings", "1.jsonl", reading("a"))
    denied = path = land("readings", "2.jsonl", reading("b"))
    if what == "target of a link":
        denied = path.parent / "targets"
        denied.mkdir()
        path.rename(denied / "2")
        path.symlink_to(denied / "2")
    with forbidden(denied):
        assert ingested(project) == BatchCounts(1, read=1, accepted=1)
    assert "this user may not read readings/2.jsonl" in caplog.text
    assert ingested(project) == BatchCounts(2, read=1, accepted=1)
    assert [*quarantined_records(project)] == []


@pytest.mark.turns(3)
@pytest.mark.parametrize("identity", [["meter", "at"], None], ids=["by fields", "by position"])
@pytest.mark.parametrize("second", ["a.jsonl", "./a.jsonl", "link.jsonl", "folder/a.jsonl"])
def test_append_reads_a_file_once_however_it_is_named(
    project: Settings, second: str, identity: list[str] | None
) -> None:
    about = READING["lake"] | {"id": identity}
    declare(project, fields=FLAT, lake={name: value for name, value in about.items() if value})
    file = project.path("files/a.jsonl")
    file.parent.mkdir()
    file.write_text("".join(f"{json.dumps(reading('a', hour))}\n" for hour in range(3)))
    (file.parent / "link.jsonl").symlink_to(file)
    (file.parent / "folder").symlink_to(file.parent)
    line = ["append", "readings", "a.jsonl", second, "--project", str(project.project), "--json"]
    with contextlib.chdir(file.parent):
        done = CliRunner().invoke(lake, line, catch_exceptions=False)
    assert (json.loads(done.stdout)["accepted"], json.loads(done.stdout)["duplicates"]) == (3, 0)
    assert duckdb_tables.rows(Log(project, "readings").path, "SELECT count(*) AS n FROM t") == [{"n": 3}]
    assert check_log(project, "readings").faults == []


@pytest.mark.parametrize("other", [shutil.copy, os.link], ids=["a copy", "a hard link"])
def test_append_reads_files_of_one_content_as_redeliveries(
    project: Settings, other: Callable[[Path, Path], object]
) -> None:
    contract = declare(project, fields=FLAT)
    files = [project.path("a.jsonl"), project.path("b.jsonl")]
    files[0].write_text("".join(f"{json.dumps(reading('a', hour))}\n" for hour in range(3)))
    other(*files)
    counts = append_files(project, spark_forbidden, contract, files, now=NOW)
    assert (counts.accepted, counts.duplicates) == (3, 3)
    assert check_log(project, "readings").faults == []


def test_correction_of_a_voided_event_needs_no_spark(project: Settings, land: Land) -> None:
    declare(project, fields=FLAT)
    land("readings", "1.jsonl", reading("a", 1), reading("a", 2))
    ingested(project)
    [row] = duckdb_tables.rows(Log(project, "readings").path, "SELECT _bucket, _offset FROM t WHERE _offset = 0")
    command = ["void", "readings", f"1:{row['_bucket']}:0", "--reason", "wrong", "--project", str(project.project)]
    assert CliRunner().invoke(lake, command, standalone_mode=False).return_value is None
    land("readings", "2.jsonl", reading("a", 1, "9.99"), reading("a", 2, "9.99"))
    assert ingested(project) == BatchCounts(2, read=2, accepted=1, quarantined=1)


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


SAMPLES: Final = shop.contract(
    "samples",
    {
        "probe": "string",
        "at": "timestamp",
        "value": "double?",
        "tags": shop.optional({"type": "array", "items": ["null", "string"]}),
        "place": shop.optional({"type": "record", "name": "Place", "fields": [shop.field("x", "double")]}),
    },
    id="content",
    time="at",
)


@pytest.mark.long
def test_identity_by_doubles_and_nested_values_is_the_same_by_both_engines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [None, 0.0, -0.0, 0.1, 1e7, 123456789.5, 2.0**52, -1e-3, 1.5e-9, 0.30000000000000004, -73.98765432109877]
    samples = [sample(n, x, tags=['ñ\t"', None][: n % 3], place={"x": x} if x else None) for n, x in enumerate(numbers)]
    query, found = "SELECT * EXCLUDE (_ingested_at) FROM t ORDER BY ALL", []
    for engine in (DUCKDB, SPARK):
        home = empty(tmp_path / engine)
        home.path("schemas/samples.avsc").write_text(json.dumps(SAMPLES))
        for name, rows in (("1", samples), ("2", [*samples[2:], sample(59, 2.0**52 + 1)])):
            file = home.path("landing/samples") / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(map(json.dumps, rows)))
            counts = ingest(home, lambda: spark, load_contracts(home))["samples"]
            assert (counts.engine, counts.not_by_duckdb) == (engine, None)
        assert (counts.duplicates, counts.accepted) == (len(samples) - 2, 1)
        found.append(duckdb_tables.rows(Log(home, "samples").path, query))
        monkeypatch.setattr(cost, "READ_BYTES", -1)
    assert found[0] == found[1] != []


def test_batch_that_duckdb_refuses_says_why(spark: SparkSession, project: Settings) -> None:
    project.path("schemas/samples.avsc").write_text(json.dumps(SAMPLES))
    project.path("landing/samples").mkdir(parents=True)
    project.path("landing/samples/1.jsonl").write_text(json.dumps(sample(1, 1e300)))
    counts = ingest(project, lambda: spark, load_contracts(project))["samples"]
    assert (counts.accepted, counts.engine) == (1, SPARK)
    assert counts.not_by_duckdb
    assert "1e+300" not in counts.not_by_duckdb
    [run] = [run for run in last_runs(project, "ingest").values() if run.subject == "samples"]
    assert run.counts["not_by_duckdb"] == counts.not_by_duckdb


def test_incomplete_transactions_read_the_log_once_and_for_undeclared_sources_alone(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def head(log: Log) -> LogHead:
        read.append(log.stream)
        delivery = {"delivery": 1, "streams": [log.stream], "progress": {}, "batch": 1}
        return LogHead(log.stream, Position("log", 1, {"sources": {"removed": delivery}}))

    read = list[str]()
    monkeypatch.setattr(Log, "head", head)
    for source, kind in (("bank", "postgres"), ("feed", "kafka")):
        project.path("sources").mkdir(exist_ok=True)
        project.path(f"sources/{source}.toml").write_text(f'kind = "{kind}"\n')

    def lines(*sources: str) -> list[str]:
        rows = [Rejected("orders", 1, n, "wrong type", "", "", source, NOW) for n, source in enumerate(sources)]
        return incomplete_transactions(project, rows)

    assert lines("orders/1.jsonl:1", "feed:0:1") == []
    assert lines("bank:1:0", "bank:1:1") == ["in the logs without these records: 1 transaction: bank:1"]
    assert read == []
    assert lines("removed:7:0", "removed:7:1", "other:7:0")[0].endswith("1 transaction: removed:7")
    assert read == ["orders"]


def sample(second: int, value: float | None, **more: object) -> dict[str, object]:
    return {"probe": "a", "at": f"2024-03-01T00:00:{second:02}Z", "value": value, **more}


def order_counts(home: Path, spark: Callable[[], SparkSession]) -> BatchCounts:
    settings = load_settings(home)
    return ingest(settings, spark, load_contracts(settings))["orders"]


def ingested(project: Settings) -> BatchCounts:
    return ingest(project, spark_forbidden, load_contracts(project), now=NOW)["readings"]
