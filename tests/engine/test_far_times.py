"""Times before 1677 and after 2262, in tables that Spark and DuckDB write in turn, also in files of older versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.verify import verify_all
from lake.ingest.fsck import check_log
from lake.ops import pipeline
from lake.ops.maintenance import Policy, maintain
from lake.project.project import load
from lake.read.relation import stored_files
from lake.session.spark_session import configured
from lake.store.duckdb_tables import connection
from lake.store.log import Log
from lake.store.upkeep import compaction
from tests.checks import answer
from tests.shop import contract, declare, empty, job

TIME: Final = {"type": "long", "logicalType": "timestamp-micros"}
FIELDS: Final = {
    "id": "int",
    "v": "int",
    "until": TIME,
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "span": {"type": "record", "name": "Span", "fields": [{"name": "end", "type": TIME}]},
    "days": {"type": "array", "items": TIME},
}
LATEST: Final = 'Latest("id", sequence="v")'
JOBS: Final = {
    "newest": job("newest", LATEST, 'log("events")'),
    "by_time": job("by_time", 'Latest("until", sequence="v")', 'log("events")', returns='rows.select("until", "v")'),
    "in_record": job("in_record", LATEST, 'log("events")', returns='rows.select("id", "v", "span")'),
    "in_list": job("in_list", LATEST, 'log("events")', returns='rows.select("id", "v", "days")'),
}
TIMES: Final = ("9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "2024-01-01T00:00:00Z", "2262-04-12T00:00:00Z")
INT96: Final = {"spark.sql.parquet.outputTimestampType": "INT96"}


def event(number: int, version: int, time: str) -> dict[str, Any]:
    local = "2024-01-01T00:00:00"
    return {"id": number, "v": version, "until": time, "local": local, "span": {"end": time}, "days": [time, TIMES[2]]}


class Project:
    """Project of tables with times, its events, and runs by either engine."""

    def __init__(self, home: Path, spark: SparkSession) -> None:
        self.spark, self.events = spark, list[dict[str, Any]]()
        settings = empty(home)
        declare(settings, contract("events", FIELDS, id=["v"], buckets=1), jobs=JOBS)
        self.settings: Settings = replace(settings, tables_at_once=1)

    def run(self, *events: Mapping[str, Any], in_process_rows: int = 1_000) -> None:
        self.events += [dict(each) for each in events]
        landing = self.settings.path(self.settings.landing) / "events"
        landing.mkdir(exist_ok=True)
        (landing / f"{len(self.events)}.jsonl").write_text("\n".join(map(json.dumps, events)))
        pipeline.run(replace(self.settings, in_process_rows=in_process_rows), lambda: self.spark, print)

    def check(self) -> None:
        """Compare all tables and the log with the events."""
        in_order = sorted(self.events, key=lambda each: each["v"])
        by_id = {(each["id"], each["v"], each["until"]) for each in {each["id"]: each for each in in_order}.values()}
        by_time = {
            (each["v"], each["v"], each["until"]) for each in {each["until"]: each for each in in_order}.values()
        }
        assert self.texts("newest", "until") == by_id
        assert self.texts("in_record", 'span."end"') == by_id
        assert self.texts("in_list", "days[1]") == by_id
        assert self.texts("by_time", "until", "v") == by_time
        assert self.texts("log.events", "until") == {(each["id"], each["v"], each["until"]) for each in self.events}
        assert check_log(self.settings, "events").faults == []

    def verify(self) -> None:
        """Compare all tables with their recomputation, and as `check` does."""
        self.check()
        verdicts = verify_all(lambda: self.spark, load(self.settings), on_progress=print)
        assert {each.verdict for each in verdicts} == {"identical"}

    def texts(self, table: str, time: str, number: str = "id") -> set[tuple[int, int, str]]:
        text = f"strftime({time} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%f')"
        rows = answer(self.settings.project, "sql", f"SELECT {number} AS n, v, {text} AS t FROM {table}")
        return {(row["n"], row["v"], f"{row['t'].removesuffix('.000000')}Z") for row in rows}


@pytest.fixture(params=[pytest.param("files of this version", marks=pytest.mark.long), "files of older versions"])
def project(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Project:
    """Return a project whose tables and log are written by Spark."""
    made = Project(tmp_path / "project", spark)
    with configured(spark, INT96 if "older" in request.param else {}):
        made.run(*(event(number, number, time) for number, time in enumerate(TIMES)), in_process_rows=0)
    project = load(made.settings)
    files = stored_files(project.table(project.tables["newest"]).path)
    with connection() as con:
        query = f"SELECT DISTINCT type FROM parquet_schema({files}) WHERE name = 'until'"
        assert con.execute(query).fetchall() == [("INT96" if "older" in request.param else "INT64",)]
    return made


def test_updates_by_duckdb_keep_the_times_of_other_rows(project: Project) -> None:
    project.run(event(2, 10, "2025-01-01T00:00:00Z"))
    project.run(event(0, 11, TIMES[1]), event(7, 12, TIMES[0]))
    project.check()
    project.run(event(7, 13, "2025-01-02T00:00:00Z"), in_process_rows=0)
    project.run(event(1, 14, TIMES[0]))
    project.verify()


@pytest.mark.long
def test_compaction_keeps_times(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "CROWDED", 3)
    monkeypatch.setattr(compaction, "EXCESS_FILES", 0)
    for number in range(4):
        project.run(event(20 + number, 20 + number, TIMES[number]))
    files = len(stored_files(Log(project.settings, "events").path))
    done = maintain(load(project.settings), lambda: project.spark, Policy(editions=9, days=9, size=1 << 30), print)
    assert any(kept.compacted for kept in done.places)
    assert len(stored_files(Log(project.settings, "events").path)) <= files
    project.check()
    for number in range(4):
        project.run(event(30 + number, 30 + number, TIMES[number]))
    project.verify()
