"""Division of files into parts: batches are the same, and a second reading has the same records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lake import cost
from lake.config import Settings, SparkSettings
from lake.contracts.contract import load_contracts
from lake.ingest.delivery import FileDelivery
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.records.reader import RecordReader
from lake.session.spark_session import CLUSTER_PARTITIONS, MIN_PARTITIONS, _min_partitions
from lake.store import quarantine
from lake.store.log import Log
from tests import shop

NOW = datetime(2024, 3, 2, tzinfo=UTC)
FIELDS = {"number": "long", "device": "string", "at": "timestamp", "value": "string"}
READINGS = shop.contract("readings", FIELDS, id=["number"], time="at")
LINES = 120


@pytest.fixture
def divide_files(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Make Spark divide small files as it does large ones."""
    before = {key: spark.conf.get(key, None) for key in (MIN_PARTITIONS, "spark.sql.files.openCostInBytes")}
    spark.conf.set("spark.sql.files.openCostInBytes", "1")
    yield spark.conf.set
    spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def declare_readings(project: Settings, **about: Any) -> None:
    project.path("schemas/readings.avsc").write_text(json.dumps(READINGS | {"lake": READINGS["lake"] | about}))


def reading(number: int, value: str) -> dict[str, Any]:
    return {"number": number, "device": f"d{number}", "at": f"2024-03-01T{number % 24:02}:00:00Z", "value": value}


def take(project: Settings, spark: SparkSession) -> None:
    ingest(project, lambda: spark, load_contracts(project), now=NOW)


def rejected_numbers(project: Settings) -> list[tuple[str, int]]:
    """Return the source and the number of quarantined records."""
    rows = [*quarantine.rejected(project, "readings", upto=9)]
    return [(row.source, json.loads(row.raw)["number"]) for row in rows]


def with_other_cores(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Change the number of cores at each reading."""
    read, cores = FileDelivery.frame, cycle(["3", "7", "1", "11"])

    def frame(files: FileDelivery, session: SparkSession, reader: RecordReader) -> DataFrame:
        spark.conf.set("spark.sql.leafNodeDefaultParallelism", next(cores))
        return read(files, session, reader)

    monkeypatch.setattr(cost, "READ_BYTES", 0)
    monkeypatch.setattr(FileDelivery, "frame", frame)


@pytest.mark.long
def test_conflicts_are_quarantined_with_their_own_text_when_cores_change(
    project: Settings,
    spark: SparkSession,
    land: Callable[..., Path],
    divide_files: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare_readings(project)
    land("readings", "1.jsonl", *(reading(number, "first") for number in range(LINES)))
    take(project, spark)
    with_other_cores(monkeypatch, spark)
    land("readings", "2.jsonl", *(reading(number, "x" * number) for number in range(0, 2 * LINES, 3)))
    take(project, spark)
    assert rejected_numbers(project) == [
        (f"readings/2.jsonl:{line}", 3 * line - 3) for line in range(1, LINES // 3 + 1)
    ]


@pytest.mark.long
def test_records_of_too_many_producers_keep_their_own_text_when_cores_change(
    project: Settings,
    spark: SparkSession,
    land: Callable[..., Path],
    divide_files: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare_readings(project, horizon={"producer": "device", "limit": 5})
    with_other_cores(monkeypatch, spark)
    land("readings", "1.jsonl", *(reading(number, "x" * (number % 50)) for number in range(LINES)))
    take(project, spark)
    assert len(rejected_numbers(project)) == LINES - 5
    assert all(source == f"readings/1.jsonl:{number + 1}" for source, number in rejected_numbers(project))


@pytest.mark.turns
@pytest.mark.parametrize("parts", ["7", "1", "2", "40"])
def test_log_has_each_record_at_its_line_in_any_number_of_parts(
    project: Settings,
    spark: SparkSession,
    land: Callable[..., Path],
    divide_files: Callable[[str, str], None],
    parts: str,
) -> None:
    declare_readings(project)
    divide_files(MIN_PARTITIONS, parts)
    for name in ("a", "b"):
        numbers = range(LINES) if name == "a" else range(LINES, 2 * LINES)
        land("readings", f"{name}.jsonl", *(reading(number, "x" * (number % 50)) for number in numbers), "broken")
    take(project, spark)
    events = Log(project, "readings").read(spark, load_contracts(project)["readings"], upto=1)
    rows = sorted(events.select("_arrival", "_source", "number").collect())
    assert [(row["_source"], row["number"]) for row in rows] == [
        (f"readings/{'ab'[n // LINES]}.jsonl:{n % LINES + 1}", n) for n in range(2 * LINES)
    ]
    assert check_log(project, "readings").faults == []


def test_files_are_divided_by_the_session_and_not_by_cores_of_a_cluster(tmp_path: Path) -> None:
    def parts(master: str, address: str = "", **conf: str) -> str:
        return _min_partitions(Settings(project=tmp_path, spark=SparkSettings(master=master, conf=conf)), address)

    assert (parts("local"), parts("local[3]"), parts("local[4,2]")) == ("1", "3", "4")
    assert int(parts("local[*]")) > 0
    assert {parts("spark://host:7077"), parts("yarn"), parts("local[2]", "sc://host")} == {str(CLUSTER_PARTITIONS)}
    assert parts("yarn", **{MIN_PARTITIONS: "200"}) == "200"


def test_embedded_session_divides_files_by_its_own_cores(spark: SparkSession) -> None:
    assert (spark.conf.get("spark.master"), spark.conf.get(MIN_PARTITIONS)) == ("local[2]", "2")
