"""Bounds of input: small and expensive input is accepted, or rejected with its reason, and blocks nothing."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake import cli
from lake.config import Settings, load_settings
from lake.ingest.replay import quarantined_records
from lake.records.decompression import line_bytes
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from tests.bad_input import hostile

RECORD_BYTES = 7000
SIZE = 3000
REASONS = {"wrong type", "unparseable", "oversized", "not in enum"}


def lay_out(project: Path, record_bytes: int, size: int) -> dict[str, str]:
    """Create a project with hostile landing files, except for one stream; return the bad ones by file name."""
    hostile.project(project, f"record_bytes = {record_bytes}\n")
    landing, records = project / "landing", list(hostile.records(size))
    (landing / "sound/a.jsonl").write_bytes(hostile.ordinary(1000))
    (landing / "changes/a.jsonl").write_bytes(hostile.lines(records, write=hostile.change))
    (landing / "hostile/a.jsonl").write_bytes(hostile.lines(records))
    (landing / "hostile/b.jsonl.gz").write_bytes(gzip.compress(hostile.lines(records), compresslevel=0))
    (landing / "hostile/c.csv").write_bytes(hostile.table(records))
    (landing / "hostile/d.parquet").write_bytes(hostile.parquet(records))
    bad = {}
    for what, name, data in hostile.files(line_bytes(record_bytes)):
        (landing / "hostile" / name).write_bytes(data)
        bad[name] = what
    return bad


def take_in(project: Path, spark: SparkSession) -> Settings:
    """Run `lake ingest`, which must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.Shell, "spark", spark)
        patch.setattr(sys, "argv", ["lake", "ingest", "--project", str(project)])
        assert cli._run() == 0
    return load_settings(project)


@pytest.fixture(scope="module")
def landing_result(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Settings, dict[str, str]]:
    project = tmp_path_factory.mktemp("hostile")
    bad = lay_out(project, RECORD_BYTES, SIZE)
    return take_in(project, spark), bad


@pytest.mark.long
def test_expensive_input_is_rejected_with_its_reason(landing_result: tuple[Settings, dict[str, str]]) -> None:
    settings, bad = landing_result
    refused = {row.source: row for row in quarantined_records(settings, ["hostile"])}
    told = {name: getattr(refused.get(f"hostile/{name}"), "detail", "") for name in bad}
    assert {name: detail for name, detail in told.items() if not detail.startswith("oversized: ")} == {}
    for stream in ("hostile", "changes"):
        taken = {
            row["_source"]
            for row in duckdb_tables.rows(
                Warehouse(settings).log(stream).path, "SELECT _source FROM t WHERE _bucket >= 0"
            )
        }
        refused = {row.source: row for row in quarantined_records(settings, [stream])}
        for line, (what, _) in enumerate(hostile.records(SIZE), 1):
            place = f"{stream}/a.jsonl:{line}"
            assert (place in taken) != (place in refused), what
            assert place in refused or not hostile.must_be_refused(what), what
            assert place in taken or refused[place].reason in REASONS, what


@pytest.mark.long
def test_records_beside_expensive_input_are_counted_and_other_streams_continue(
    landing_result: tuple[Settings, dict[str, str]],
) -> None:
    settings, bad = landing_result
    count = len(list(hostile.records(SIZE)))
    head = Log(settings, "hostile").head()
    assert dict(head.counts)["read"] == 4 * count + len(bad)
    sound = dict(Log(settings, "sound").head().counts)
    assert sound["accepted"] == sound["read"] == len(hostile.ordinary(1000).splitlines())


@pytest.mark.long
def test_line_of_400_megabytes_is_rejected(tmp_path: Path, spark: SparkSession) -> None:
    bad = lay_out(tmp_path, Settings.record_bytes, SIZE)
    with gzip.open(tmp_path / "landing/hostile/bomb.jsonl.gz", "wb") as bomb:
        bomb.writelines(b"x" * (1 << 20) for _ in range(400))
    assert (tmp_path / "landing/hostile/bomb.jsonl.gz").stat().st_size < 1 << 19
    refused = {row.source: row.detail for row in quarantined_records(take_in(tmp_path, spark), ["hostile"])}
    assert refused["hostile/bomb.jsonl.gz"] == "oversized: a line of more than 16,777,216 bytes"
    assert {name for name in bad if not refused[f"hostile/{name}"].startswith("oversized: ")} == set()
