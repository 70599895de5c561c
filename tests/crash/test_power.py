"""Power cuts after an acknowledgement: no event that was acknowledged or moved away is missing."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.ingest.replay import quarantined_records
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.store import duckdb_tables, quarantine, voids
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from lake.testing import Commands, Kill, Lakehouse
from lake.testing.fault_injection import TRACE
from tests.checks import present
from tests.crash.power import Disk, File, recorded
from tests.servers import needed
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.shop import contract, declare, empty, job
from tests.sources import fake_tap
from tests.sources.conftest import database
from tests.sources.shop import VARIABLE
from tests.sources.test_source_kills import Broker, Database, Outside

OFFSET_COMMIT: Final = r'"(?:\\\d{1,3}|\\?.){4}\\0\\10\\0'
"""Beginning of a Kafka request: four bytes of length, two of the kind of request."""


@dataclass
class Recorded:
    """Commands whose system calls are recorded, those of their JVM as well."""

    commands: Commands
    trace: Path


def recording(folder: Path, remote: str = "", **environment: str) -> Recorded:
    needed(shutil.which("strace"), "no power is cut: strace is not installed: make test S=http")
    trace = folder / "trace"
    tried = subprocess.run([*recorded(trace), "true"], capture_output=True, text=True, check=False)
    needed(tried.returncode == 0 or None, f"no power is cut: strace may trace no process here: {tried.stderr.strip()}")
    commands = Commands(remote, under=recorded(trace), **environment)
    return Recorded(commands, trace)


@pytest.fixture(scope="module")
def traced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Commands that commit by delta-rs, with the JVM of the session."""
    port, token = (spark.conf.get(f"spark.connect.{name}") for name in ("grpc.binding.port", "authenticate.token"))
    folder = tmp_path_factory.mktemp("trace")
    made = recording(folder, f"sc://localhost:{port}", SPARK_CONNECT_AUTHENTICATE_TOKEN=token or "")
    with made.commands:
        yield made


@pytest.fixture(scope="module")
def by_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Commands that start a JVM of their own."""
    made = recording(tmp_path_factory.mktemp("trace"))
    with made.commands:
        yield made


def shop(folder: Path, settings: str = "", toml: str = "") -> Lakehouse:
    made = empty(folder / "shop", settings)
    orders = contract("orders", {"number": "long"}, id=["number"])
    declare(made, orders, jobs={"order": job("order", 'Latest("number")', 'log("orders")')})
    if toml:
        (made.project / "sources").mkdir()
        (made.project / "sources/shop.toml").write_text(toml)
    return Lakehouse(made.project, folder)


def numbers(house: Lakehouse) -> list[int]:
    """Return the numbers in the log."""
    path = Log(house.settings, "orders").path
    return [
        row["number"] for row in duckdb_tables.rows(path, "SELECT number FROM t WHERE _bucket >= 0 ORDER BY number")
    ]


def after_cut(traced: Recorded, house: Lakehouse, kill: Kill, **environment: Any) -> tuple[Lakehouse, Disk]:
    """Kill `lake ingest` after its acknowledgement, cut the power, and return the copy that survives."""
    disk, acknowledged = Disk.of(house.home), kill.point.replace("after", "before")
    done = traced.commands.lake("ingest", at=house, kill=kill, **environment)
    assert done.landed, done.err
    disk.follow(traced.trace)
    before = [lacking for point, lacking in disk.points if point == acknowledged][-1]
    assert missing(house, before, "logs", "quarantine", "redeliveries", "meta/contracts") == []
    assert missing(house, before, "meta/landed") != []
    return cut(disk), disk


def cut(disk: Disk) -> Lakehouse:
    copy = disk.cut(disk.root.with_name(f"cut {len([*disk.root.parent.iterdir()])}"))
    return Lakehouse(copy / "shop", copy)


def missing(house: Lakehouse, lacking: list[Path], *folders: str) -> list[Path]:
    """Return the paths of `lacking` that are inside folders of the warehouse, or above them."""
    warehouse = house.settings.warehouse_path
    return [
        path
        for path in lacking
        for folder in folders
        if path.is_relative_to(warehouse / folder) or (warehouse / folder).is_relative_to(path)
    ]


def test_archived_file_and_published_edition_are_on_disk_after_a_power_cut(traced: Recorded, tmp_path: Path) -> None:
    house = shop(tmp_path / "shop")
    house.land("orders", {"number": 1}, {"number": "?"}, {"number": 1})
    after, _ = after_cut(traced, house, Kill("archive.after"), LAKE_ARCHIVE=str(house.home / "archive"))
    assert not [*after.home.rglob("000001.jsonl")]
    assert numbers(after) == [1]
    assert [json.loads(row.raw) for row in quarantined_records(after.settings)] == [{"number": "?"}]
    assert quarantine.counts_by_batch(Warehouse(after.settings).redeliveries("orders"), upto=1) == {1: 1}
    disk = Disk.of(after.home)
    assert traced.commands.lake("run", at=after).code == 0
    lacking = disk.follow(traced.trace).lacking()
    assert missing(after, lacking, "silver", "meta/editions", "meta/numbers") == []
    assert missing(after, lacking, "meta/runs") != []
    published = cut(disk)
    assert present(latest_edition(published.settings)).number == 1
    assert published.table("order") == [{"number": 1}]


@pytest.mark.long
def test_events_that_http_acknowledged_are_in_the_log_after_a_power_cut(traced: Recorded, tmp_path: Path) -> None:
    house = shop(tmp_path / "shop", toml='kind = "http"\nstreams = ["orders"]\n')
    folder = IntakeFolder.of(house.settings, "shop")
    with closing(GroupWriter(folder)) as writer:
        writer.put([b'["orders", "{\\"number\\": 1}", {}]\n'], 1)
    after, _ = after_cut(traced, house, Kill("acknowledge.after"))
    assert IntakeFolder.of(after.settings, "shop").groups() == []
    assert numbers(after) == [1]


@pytest.mark.long
def test_rows_of_a_tap_are_in_the_log_with_its_state_after_a_power_cut(traced: Recorded, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([["row", 1], ["state", 1]]))
    command = json.dumps([sys.executable, str(Path(fake_tap.__file__)), str(script)])
    house = shop(tmp_path / "shop", toml=f'kind = "tap"\ncommand = {command}\n[streams]\norders = "s"\n')
    after, _ = after_cut(traced, house, Kill("acknowledge.after"))
    assert numbers(after) == [1]
    script.write_text(json.dumps([["row", 1], ["state", 1], ["row", 2], ["state", 2]]))
    assert traced.commands.lake("ingest", at=after).code == 0
    assert numbers(after) == [1, 2]
    assert script.with_suffix(".runs").read_text().splitlines()[-1] == '{"row": 1}'


@pytest.mark.long
def test_appended_file_is_in_the_log_after_a_power_cut(traced: Recorded, tmp_path: Path) -> None:
    house, file = shop(tmp_path / "shop"), tmp_path / "orders.jsonl"
    file.write_text('{"number": 1}\n')
    disk = Disk.of(house.home)
    assert traced.commands.lake("append", "orders", str(file), at=house).code == 0
    file.unlink()
    disk.follow(traced.trace)
    assert numbers(cut(disk)) == [1]


@pytest.mark.long
def test_commit_of_a_dead_writer_is_on_disk_before_its_file_is_archived(traced: Recorded, tmp_path: Path) -> None:
    house = shop(tmp_path / "shop")
    archive: dict[str, Any] = {"LAKE_ARCHIVE": str(house.home / "archive")}
    for number in (1, 2):
        house.land("orders", {"number": number})
        disk = Disk.of(house.home)
        assert traced.commands.lake("ingest", at=house, kill=Kill("log.after"), **archive).landed
        assert missing(house, disk.follow(traced.trace).lacking(), "logs") != []
        assert numbers(cut(disk)) == [*range(1, number)]
        after, _ = after_cut(traced, house, Kill("archive.after"), **archive)
        assert numbers(after) == [*range(1, number + 1)]
        shutil.rmtree(after.home)


@pytest.mark.long
def test_batch_of_a_cut_and_a_replayed_record_are_in_the_log_after_a_power_cut(
    traced: Recorded, tmp_path: Path
) -> None:
    house, repairs = shop(tmp_path / "shop"), tmp_path / "repairs.json"
    house.land("orders", {"number": 1}, {"number": "?"})
    disk = Disk.of(house.home)
    assert traced.commands.lake("ingest", at=house, kill=Kill("log.after", 2)).landed
    assert missing(house, disk.follow(traced.trace).lacking(), "logs") != []
    assert traced.commands.lake("cut", at=house).code == 0
    assert missing(house, disk.follow(traced.trace).lacking(), "logs") == []
    [row] = quarantined_records(house.settings)
    repairs.write_text(json.dumps({"stream": "orders", "batch": 1, "number": row.number, "raw": '{"number": 2}'}))
    assert traced.commands.lake("quarantine", "replay", "orders", str(repairs), at=house).code == 0
    assert numbers(cut(disk.follow(traced.trace))) == [1, 2]


@pytest.mark.long
def test_reported_void_is_on_disk_after_a_power_cut(traced: Recorded, tmp_path: Path) -> None:
    house = shop(tmp_path / "shop")
    house.land("orders", {"number": 1}, {"number": 2})
    disk = Disk.of(house.home)
    assert traced.commands.lake("ingest", at=house).code == 0
    assert traced.commands.lake("void", "orders", "--batch", "1", "--reason", "a test", at=house).code == 0
    after = cut(disk.follow(traced.trace))
    assert [void.batch for void in voids.all_voids(after.settings)] == [1]


@pytest.mark.long
def test_batches_and_tables_written_by_spark_are_on_disk_after_a_power_cut(by_jvm: Recorded, tmp_path: Path) -> None:
    house = shop(tmp_path / "shop", "in_process_rows = 0\n")
    archive: dict[str, Any] = {"LAKE_ARCHIVE": str(house.home / "archive")}
    for number in (1, 2):
        house.land("orders", {"number": number}, {"number": "?"})
        after, _ = after_cut(by_jvm, house, Kill("archive.after"), tuned={"lake.cost.APPENDED_BYTES": -1}, **archive)
        assert numbers(after) == [*range(1, number + 1)]
        assert len([*quarantined_records(after.settings)]) == number
        shutil.rmtree(after.home)
    disk = Disk.of(house.home)
    assert by_jvm.commands.lake("run", at=house).code == 0
    published = cut(disk.follow(by_jvm.trace))
    assert published.table("order") == [{"number": 1}, {"number": 2}]


def test_records_committed_by_a_group_are_in_the_logs_after_a_power_cut(
    traced: Recorded, kafka: Kafka, tmp_path: Path
) -> None:
    broker = Broker(kafka, tmp_path / "shop")
    disk = ingest_and_cut(broker, traced)
    commits = [point for point, text in disk.sent if re.search(OFFSET_COMMIT, text)]
    assert {*commits} == {"acknowledge.before"}


def test_changes_confirmed_by_a_slot_are_in_the_logs_after_a_power_cut(
    traced: Recorded, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with database(postgres, monkeypatch) as tables:
        disk = ingest_and_cut(Database(tables, tmp_path / "shop"), traced, **{VARIABLE: tables.reader_dsn})
    advances = [point for point, text in disk.sent if "pg_replication_slot_advance" in text]
    assert {*advances} == {"acknowledge.before"}


def ingest_and_cut(outside: Outside, traced: Recorded, **environment: Any) -> Disk:
    """Cut the power after the second acknowledgement, and check that the next run completes the logs."""
    dice, house = random.Random(1), outside.house
    outside.write(dice)
    assert traced.commands.lake("ingest", at=house, kill=TRACE, **environment).code == 0
    outside.write(dice)
    at = outside.at()
    outside.house, disk = after_cut(traced, house, Kill("acknowledge.after", 2), **environment)
    assert outside.at().number > at.number
    assert outside.told() == outside.position(outside.at())
    assert traced.commands.lake("run", at=outside.house, **environment).code == 0
    outside.compare_logs()
    outside.compare_tables()
    return disk


def test_simulated_disk_keeps_only_flushed_data(tmp_path: Path) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    (root / "new").mkdir(parents=True)
    for name in ("old", "written", "flushed", "new/a", "unnamed"):
        (root / name).write_text(name)
    disk = Disk(root, {root / "old": File()})
    trace.write_text(
        "\n".join(
            [
                *(f'1 openat(AT_FDCWD</>, "{root}/{name}", O_WRONLY|O_CREAT, 0600) = 3' for name in ("written", "tmp")),
                f'1 write(3<{root}/written>, "w"..., 7) = 7',
                f'1 write(3<{root}/tmp>, "f"..., 7 <unfinished ...>',
                f'2 mkdir("{root}/new", 0700) = 0',
                "1 <... write resumed>) = 7",
                f"1 fsync(3<{root}/tmp>) = 0",
                f'1 rename("{root}/tmp", "{root}/flushed") = 0',
                f"1 fsync(4<{root}> <unfinished ...>",
                f'2 openat(AT_FDCWD</>, "{root}/unnamed", O_WRONLY|O_CREAT, 0600) = 3',
                f"2 fsync(3<{root}/unnamed>) = 0",
                "1 <... fsync resumed>) = 0",
                f'2 openat(AT_FDCWD</>, "{root}/new/a", O_WRONLY|O_CREAT, 0600) = 3',
                f"2 fsync(3<{root}/new/a>) = 0",
            ]
        )
    )
    assert disk.follow(trace).lacking() == [root / "new/a", root / "unnamed", root / "written"]
    copy = disk.cut(tmp_path / "copy")
    there = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
    assert there == {"old": "old", "written": "", "flushed": "flushed"}
