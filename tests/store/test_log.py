"""The log: numbering, redeliveries, conflicts, crashes, two writers, evolution, voids, replay and check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.ingest import fsck as log_run
from lake.ingest import landing
from lake.ingest.events import void
from lake.ingest.ingest import ingest
from lake.ingest.replay import by_reason, quarantined_records, read_repairs, replay
from lake.ops.backup import backup
from lake.project.project import load
from lake.store import delta, delta_writer, log_rows, quarantine
from lake.store.locks.lease import lease
from lake.store.log import Log
from lake.store.rows import Rows
from lake.store.scan import to_arrow
from lake.store.storage import Address
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all
from lake.store.voids import voids_between, voids_head
from lake.store.warehouse import Warehouse
from tests.store.events import NOW, READING, Land, declare, events, fields, reading, take


def test_ingest_numbers_events_and_detects_redeliveries_and_conflicts(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    declare(project)
    meters = [f"m{number}" for number in range(9)]
    land("readings", "1.jsonl", *(reading(meter) for meter in meters), reading("m0"), reading("m1", value=7))
    first = take(project, spark)
    assert (first.read, first.accepted, first.duplicates, first.quarantined) == (11, 9, 1, 1)
    land("readings", "2.jsonl", reading("m0", 3), reading("m3", value="1.5"), reading("m4", value=9), reading("m0", 3))
    land("readings", "3.jsonl", reading("late", -0), reading("m0", 2))
    second = take(project, spark)
    assert (second.read, second.accepted, second.duplicates, second.quarantined) == (6, 3, 2, 1)

    offsets = defaultdict(list)
    for row in events(project, spark):
        offsets[row["_bucket"]].append(row["_offset"])
        assert str(row["_watermark"]) == {1: "None", 2: "2024-03-01 00:00:00"}[row["_batch"]]
    assert all(numbers == list(range(len(numbers))) for numbers in offsets.values())
    head = Log(project, "readings").head()
    refused = {log_rows.BROADCAST: 2}
    assert dict(head.offsets) == refused | {bucket: len(numbers) for bucket, numbers in offsets.items()}
    assert head.events == 12
    assert [(row["meter"], row["_time"].hour) for row in events(project, spark, after=1) if row["meter"] == "m0"] == [
        ("m0", 3),
        ("m0", 2),
    ]
    conflicts = [*quarantine.rejected(project, "readings", upto=2)]
    assert [(row.reason, row.batch, row.source) for row in conflicts] == [
        ("conflict", 1, "readings/1.jsonl:11"),
        ("conflict", 2, "readings/2.jsonl:3"),
    ]
    assert conflicts[0].detail == "same id as readings/1.jsonl:2, other content"
    assert json.loads(conflicts[1].raw)["value"] == 9
    assert log_run.check_log(project, "readings").faults == []

    properties = delta.open_table(Warehouse(project).log("readings").path).metadata().configuration  # type: ignore[union-attr]
    assert properties["delta.appendOnly"] == "true"
    *_, made = delta.commits(Warehouse(project).log("readings").path)
    assert "userMetadata" not in made, "a log is there before its first batch"
    by = {
        commit.get("engineInfo", "delta-rs")[:8]
        for commit in delta.commits(Warehouse(project).quarantine("readings").path)
    }
    assert by == {"delta-rs"}, "what Spark writes may be committed when its client is dead"


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_batch_reads_only_the_newest_commit_of_its_log(
    project: Settings, spark: SparkSession, land: Land, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    declare(project)
    land("readings", "1.jsonl", reading("a"), reading("a"), *["broken"] * refused)
    land("readings", "2.jsonl", reading("b"))
    take(project, spark)
    monkeypatch.setattr(Log, "heads", lambda _: pytest.fail("all of the log's commits are read"))
    land("readings", "3.jsonl", reading("c"))
    assert take(project, spark).accepted == 1


@pytest.mark.long
def test_crash_before_the_log_commit_leaves_nothing_behind(
    project: Settings, spark: SparkSession, land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(project)
    land("readings", "1.jsonl", reading("a"), reading("a"), "broken")
    with monkeypatch.context() as crash:
        crash.setattr(Log, "commit", _crash)
        with pytest.raises(KeyboardInterrupt):
            take(project, spark)
    beside = Warehouse(project).beside("readings")
    assert [quarantine.counts_by_batch(at, upto=9) for at in beside] == [{1: 1}, {1: 1}]
    assert [*quarantined_records(project)] == []
    with monkeypatch.context() as crash:
        crash.setattr(landing, "record_ingested", _crash_after_commit)
        with pytest.raises(KeyboardInterrupt):
            take(project, spark)
    assert (Log(project, "readings").head().batch, delta.exists(Warehouse(project).book("landed").path)) == (1, False)
    assert take(project, spark).read == 0
    assert [quarantine.counts_by_batch(at, upto=9) for at in Warehouse(project).beside("readings")] == [
        {1: 1},
        {1: 1},
    ]
    [event] = events(project, spark)
    assert [each.source for each in quarantine.redeliveries_of(project, "readings", [event["_id"]], upto=1)] == [
        "readings/1.jsonl:2"
    ]
    assert log_run.check_log(project, "readings").faults == []


@pytest.mark.long
def test_lost_batch_is_read_again_from_archived_files_after_a_restore(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    declare(project)
    project = replace(project, archive=project.path("archive"))
    land("readings", "1.jsonl", reading("a"), "broken")
    take(project, spark)
    backup(load(project), project.path("copy"), keys=None, on_progress=lambda _: None)
    land("readings", "2.jsonl", reading("b"), "broken too")
    land("readings", "3.jsonl", reading("c"))
    take(replace(project, batch_files=1), spark)
    before = [event["_id"] for event in events(project, spark)]
    tear(Warehouse(project).log("readings").path)
    land("readings", "4.jsonl", reading("d"))
    with pytest.raises(StorageError, match="it ends at batch 2, but the list of ingested files goes up to batch 3"):
        take(project, spark)

    shutil.rmtree(project.warehouse_path)
    project.path("copy/warehouse").rename(project.warehouse_path)
    forget_all()
    project.path("landing/readings/4.jsonl").unlink()
    for name in ("2.jsonl", "3.jsonl"):
        project.path(f"archive/readings/{name}").rename(project.path(f"landing/readings/{name}"))
    take(replace(project, batch_files=1), spark)
    assert [event["_id"] for event in events(project, spark)] == before
    assert [row.raw for row in quarantined_records(project)] == ["broken", "broken too"]
    assert log_run.check_log(project, "readings").faults == []


def tear(path: Address) -> None:
    """Truncate the newest commit of the table at `path`."""
    file = commit_file(path, delta.version(path)).local
    file.write_bytes(file.read_bytes()[:100])
    forget_all()


def _crash(*_: Any) -> None:
    raise KeyboardInterrupt


def _crash_after_commit(of: Log) -> None:
    if of.head().batch:
        raise KeyboardInterrupt


@pytest.mark.long
def test_spark_finds_redeliveries_and_conflicts_in_large_batches(
    project: Settings, spark: SparkSession, land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(project)
    meters = [f"m{number}" for number in range(9)]
    land("readings", "1.jsonl", *(reading(meter) for meter in meters), reading("m0"), reading("m1", value=7))
    take(project, spark)
    land("readings", "2.jsonl", *(reading(meter) for meter in meters))
    land("readings", "3.jsonl", reading("m5", 5), reading("m5", 5), "broken", reading("m0", value=8))
    monkeypatch.setattr(quarantine, "PART_BYTES", quarantine.ROW_BYTES)
    second = take(replace(project, in_process_rows=0), spark)
    assert (second.read, second.accepted, second.duplicates, second.quarantined) == (13, 1, 10, 2)
    assert log_run.check_log(project, "readings").faults == []


def test_log_rejects_a_second_writer_and_a_stale_commit(project: Settings, spark: SparkSession, land: Land) -> None:
    contract = declare(project)
    land("readings", "1.jsonl", reading("a"))
    impatient = replace(project, lease_seconds=0.2)
    hold = "from lake.config import *; from lake.store.locks.lease import *; import sys\nfrom pathlib import Path\n"
    hold += "with lease(load_settings(Path(sys.argv[1])), 'log.readings'): print('held', flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(project.project)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match=rf"being written by .* \(pid {other.pid}, since"):
            take(impatient, spark)
        other.communicate("")
    before = Log(project, "readings").head()
    assert take(impatient, spark).batch == 1

    stored = Log(project, contract.name).read(spark, contract, upto=1)
    rows = stored.selectExpr(*log_rows.OWN, *(f.name for f in contract.fields))
    stale = before.next(offsets={}, watermark=None, counts={}, files=[], contract=1, at="")
    with pytest.raises(Unavailable, match="written by another writer"):
        Log(project, contract.name).commit(contract, Rows(rows), stale)
    assert len(events(project, spark)) == 1


def test_failing_stream_does_not_stop_the_others(project: Settings, spark: SparkSession, land: Land) -> None:
    declare(project)
    project.path("schemas/broken.avsc").write_text(
        json.dumps(READING | {"name": "broken", "lake": {"key": ["meter"], "time": "no_such_function(at)"}})
    )
    land("broken", "1.jsonl", reading())
    land("readings", "1.jsonl", reading())
    told: list[str] = []
    done = ingest(
        project, lambda: spark, load_contracts(project), on_failure=lambda s, e: told.append(f"{s}: {e}"), now=NOW
    )
    assert done["readings"].accepted == 1
    assert "no_such_function" in told[0]
    assert "schemas/broken.avsc" in told[0]


@pytest.mark.long
def test_evolution_of_a_contract_keeps_old_events_readable(project: Settings, spark: SparkSession, land: Land) -> None:
    declare(project)
    land("readings", "1.jsonl", reading("a", count=7, note="early"), reading("b", grade="high"))
    take(project, spark)
    wider: list[dict[str, Any]] = [
        {**field, "name": "pieces", "aliases": ["count"], "type": ["null", "long"]}
        if field["name"] == "count"
        else field
        for field in fields(
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "grade", "type": "int", "default": 5},
            {"name": "value", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}},
        )
    ]
    declare(project, fields=wider)
    old = {row["meter"]: row for row in events(project, spark)}  # before the first event of the new contract
    assert (old["a"]["pieces"], old["a"]["note"], old["a"]["grade"], old["a"]["value"]) == (
        7,
        "early",
        5,
        Decimal("1.5000"),
    )
    land("readings", "2.jsonl", reading("c", count=1), reading("d", pieces=1 << 40 >> 40, grade=2, value="1.2345"))
    land("readings", "3.jsonl", reading("a", pieces=7, note="early"))  # a re-delivery under the new contract
    counts = take(project, spark)
    assert (counts.accepted, counts.duplicates, counts.quarantined) == (2, 1, 0)
    found = {row["meter"]: row for row in events(project, spark)}
    assert {meter: (row["_version"], row["pieces"], row["grade"]) for meter, row in found.items()} == {
        "a": (1, 7, 5),
        "b": (1, None, 5),
        "c": (2, 1, 5),
        "d": (2, 1, 2),
    }
    physical = {field.name for field in delta.open_table(Warehouse(project).log("readings").path).schema().fields}  # type: ignore[union-attr]
    assert {"count", "pieces", "value", "value__decimal_12_4"} <= physical
    assert log_run.check_log(project, "readings").faults == []
    declare(project, fields=fields({"name": "value", "type": "string"}))
    with pytest.raises(DeclarationError, match=r"'value' was decimal.*schemas/readings.avsc:\d+"):
        events(project, spark)


@pytest.mark.long
def test_replay_ingests_repaired_records_exactly_once(
    project: Settings, spark: SparkSession, land: Land, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(project)
    land("readings", "1.jsonl", reading("a"), "broken", reading("b", count=500), reading("c", value="x"))
    take(project, spark)
    assert {row["reason"] for row in by_reason(quarantined_records(project))} == {
        "unparseable",
        "out of bounds",
        "wrong type",
    }
    assert replay(project, lambda: spark, now=NOW)["readings"].read == 0

    declare(project, fields=fields({"name": "count", "type": ["null", "int"], "default": None}))  # newly acceptable
    with monkeypatch.context() as crash:
        crash.setattr(Log, "commit", _crash)
        with pytest.raises(KeyboardInterrupt):
            replay(project, lambda: spark, now=NOW)
    counts = replay(project, lambda: spark, stream="readings", now=NOW)["readings"]
    assert (counts.read, counts.accepted, counts.quarantined) == (1, 1, 0)

    left = quarantined_records(project)
    assert [(row.number, row.reason) for row in left] == [(1, "unparseable"), (3, "wrong type")]
    repairs = tmp_path / "repair.json"
    mended = {"stream": "readings", "batch": 1, "number": 3, "raw": json.dumps(reading("c", value="4"))}
    repairs.write_text(json.dumps(mended) + "\n" + json.dumps(mended | {"number": 1, "raw": json.dumps(reading("a"))}))
    counts = replay(project, lambda: spark, repairs=read_repairs(repairs), now=NOW)["readings"]
    assert (counts.read, counts.accepted, counts.duplicates) == (2, 1, 1)
    assert [*quarantined_records(project)] == []
    with pytest.raises(DeclarationError, match="is not in quarantine"):
        replay(project, lambda: spark, repairs=read_repairs(repairs), now=NOW)
    assert {row["meter"]: row["_source"] for row in events(project, spark)} == {
        "a": "readings/1.jsonl:1",
        "b": "readings/1.jsonl:3",
        "c": "readings/1.jsonl:4",
    }
    assert log_run.check_log(project, "readings").faults == []

    path = Warehouse(project).log("readings").path
    newest = commit_file(path, delta.version(path)).local
    newest.write_bytes(newest.read_bytes()[:100])  # the state after a power failure
    forget_all()
    with pytest.raises(StorageError, match="ends at batch 2, but the list of ingested files goes up to batch 3"):
        take(project, spark)


@pytest.mark.long
def test_voids_hide_events_and_the_check_reports_a_forged_batch(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    changes = {"name": "op", "type": ["null", "string"], "default": None}
    declare(project, fields=fields(changes), lake=READING["lake"] | {"broadcast": "op = 'TRUNCATE'"})
    end = {"op": "TRUNCATE", "at": "2024-03-01T01:00:00Z", "value": 0}
    land("readings", "1.jsonl", reading("a"), end, reading("a", 1))
    assert take(project, spark).accepted == 3
    rows = events(project, spark)
    assert [(row["_bucket"], row["_offset"]) for row in rows if row["op"]] == [(log_rows.BROADCAST, 0)]
    bucket = next(row["_bucket"] for row in rows if not row["op"])

    assert void(project, "readings", [f"1:{bucket}:0", "1:-1:0"], reason="a test")[-1].number == 2
    second = voids_between(project, "readings", 1, 2)
    assert (voids_head(project), [void.target for void in second]) == (2, [(1, -1, 0, None)])
    assert [len(events(project, spark, voids=number)) for number in (0, 1, 2)] == [3, 2, 1]
    for places, told in (
        (["1:0"], "not a valid event place"),
        (["1:0:77"], "no event"),
        (["1:-1:0"], "already void: 'a test'"),
    ):
        with pytest.raises(DeclarationError, match=told):
            void(project, "readings", places, reason="again")
    assert [one.place for one in log_run.report(project, "readings").voids] == [f"1:{bucket}:0", "1:-1:0"]

    assert log_run.check_log(project, "readings").faults == []
    head = Log(project, "readings").head()
    wrong = head.next(
        offsets={"0": 9}, watermark=None, counts=_counts(4, 3), files=[], contract=1, at="", content=head.content
    )
    path = Warehouse(project).log("readings").path
    rows_again = spark.read.format("delta").load(path.url).where("_bucket = -1 OR _offset = 1")
    again = rows_again.selectExpr("* except (_batch)", "2L AS _batch")
    delta_writer.write(path, to_arrow(again), wrong)
    said = "\n".join(log_run.check_log(project, "readings").faults)
    for fault in (
        "the head says next offsets {0: 9}",
        "bucket -1: 2 events, 1 offsets",
        "batch 2: read is not accepted + duplicates + quarantined",
        "batch 2: 3 accepted, 2 in the log",
        "batch 2: watermark None, expected 2024-03-01 01:00:00",
        f"occurs 2 times in bucket {bucket}",
    ):
        assert fault in said
    assert "times in bucket -1" not in said, "the first is void: its id is free"
    with lease(project, "log.readings"):
        assert Log(project, "readings").head().batch == 2


def _counts(read: int, accepted: int) -> dict[str, int]:
    return {"read": read, "accepted": accepted, "duplicates": 0, "quarantined": 0}
