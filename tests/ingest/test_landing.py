"""Landing files of every kind, good and bad: no file stops the others, and each is read once."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import socket
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake import cost
from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.ingest import landing
from lake.ingest.append import append, append_files, keep_stdin
from lake.ingest.delivery import FileDelivery
from lake.ingest.files import fault_of
from lake.store import duckdb_tables, quarantine
from lake.store.log import Log
from lake.store.warehouse import Warehouse
from tests.store.events import NOW, READING, Land, declare, events, reading, take

ODD = [
    "sp ace.jsonl",
    "st*r[1]{a,b}?.jsonl",
    "per%20cent#1.jsonl",
    "ünï:code.jsonl",
    "new\nline.jsonl",
    "é\\back.jsonl",
]


def _parquet(file: Path, meter: str, *, rows: int = 1) -> None:
    at = datetime(2024, 3, 1, 2, 0, 0, 123000, tzinfo=UTC)
    columns = {"meter": [meter] * rows, "value": pa.array([Decimal("1.10")] * rows, pa.decimal128(8, 2))}
    times = pa.array([at.replace(minute=n % 60, second=n // 60) for n in range(rows)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table(columns | {"at": times, "seen": times}), file, compression="none")


def _land_good(folder: Path, land: Land) -> None:
    for number, name in enumerate(ODD):
        land("readings", name, reading(f"odd{number}"))
    (folder / os.fsdecode(b"not\xffutf8.jsonl")).write_text(json.dumps(reading("bytes")))
    with gzip.open(folder / "packed.jsonl.gz", "wt") as stream:
        stream.write(f"{json.dumps(reading('gz1'))}\n{json.dumps(reading('gz2'))}\n")
    (folder / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(reading("bom")).encode() + b"\r\n")
    with (folder / "quoted.csv").open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["at", "meter", "value", "note"])
        writer.writerow(["2024-03-01T01:00:00Z", 'csv "1", x', "3.25", "two\nlines"])
        writer.writerow(["2024-03-01T01:00:00Z", "csv2", "3", ""])
    (folder / "other.CSV").write_text("meter;x,at,value\nignored,2024-03-01,1\n")
    _parquet(folder / "typed.parquet", "parquet")
    (folder / "alias.jsonl").symlink_to(folder / "bom.jsonl")
    for name in ("empty.jsonl", "empty.csv"):
        (folder / name).touch()
    (folder / "half.jsonl.part").write_text("{")
    (folder / ".hidden.jsonl").write_text("{")
    (folder / "sub").mkdir()


def _land_bad(folder: Path, outside: Path) -> dict[str, str]:
    """Write bad files, and return the fault of each."""
    outside.write_text(json.dumps(reading("secret")))
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(reading("cut")).encode() * 9)[:-12])
    (folder / "not.jsonl.gz").write_text("plain")
    (folder / "binary.jsonl").write_bytes(b"\x7fELF\x00\x01" * 9)
    (folder / "picture.png").write_bytes(b"x")
    (folder / "none.parquet").write_bytes(b"PAR1 no")
    (folder / "twice.csv").write_text("meter,meter\na,b\n")
    whole = folder / "damaged.parquet"
    _parquet(whole, "damaged", rows=2000)
    data = bytearray(whole.read_bytes())
    data[4:400] = b"\xff" * 396
    whole.write_bytes(data)
    return {
        "link.jsonl": "a symbolic link out of",
        "dangling.jsonl": "not a regular file",
        "cut.jsonl.gz": "Truncated compressed stream",
        "not.jsonl.gz": "zlib inflate failed",
        "binary.jsonl": "binary",
        "picture.png": "unknown format",
        "none.parquet": "Parquet file size",
        "twice.csv": "names the field meter twice",
        "damaged.parquet": "",
    }


@pytest.mark.long
def test_bad_files_never_stop_the_others(project: Settings, spark: SparkSession, land: Land, tmp_path: Path) -> None:
    project = replace(project, archive=Path("archive"))
    declare(project)
    folder = project.path("landing/readings")
    folder.mkdir()
    _land_good(folder, land)
    bad = _land_bad(folder, tmp_path / "outside.jsonl")
    counts = take(project, spark)

    rejected = {row.source.removeprefix("readings/"): row for row in quarantine.rejected(project, "readings", upto=1)}
    for name, said in bad.items():
        assert rejected[name].reason == "file"
        assert said in rejected[name].detail
    assert rejected["other.CSV:2"].reason == "null key"
    assert len(rejected) == len(bad) + 1 == counts.quarantined

    found = {row["meter"]: row for row in events(project, spark)}
    assert set(found) == {
        *(f"odd{number}" for number in range(len(ODD))),
        *("bytes", "gz1", "gz2", "bom", 'csv "1", x', "csv2", "parquet"),
    }
    assert counts.duplicates == 1  # alias.jsonl is bom.jsonl
    assert found["gz2"]["_source"] == "readings/packed.jsonl.gz:2"
    assert found["bytes"]["_source"] == r"readings/not\xffutf8.jsonl:1"
    assert found["odd4"]["_source"] == r"readings/new\nline.jsonl:1"
    assert (found["csv2"]["_source"], found["csv2"]["value"]) == ("readings/quoted.csv:4", Decimal("3.00"))
    assert json.loads(found['csv "1", x']["_extra"]) == {"note": "two\nlines"}
    assert found["csv2"]["_extra"] is None
    assert json.loads(found["parquet"]["_extra"]) == {"seen": "2024-03-01T02:00:00.123000+00:00"}

    left = {os.fsencode(name) for name in os.listdir(folder)}
    assert left == {b"half.jsonl.part", b".hidden.jsonl", b"sub", b"link.jsonl", b"dangling.jsonl", b"alias.jsonl"}
    assert (project.path("archive/readings") / ODD[1]).is_file()
    assert take(project, spark).read == 0


@pytest.mark.long
def test_batch_is_bounded_and_a_changed_file_is_read_again(project: Settings, spark: SparkSession, land: Land) -> None:
    project = replace(project, batch_files=2)
    declare(project)
    for name in "abc":
        land("readings", f"{name}.jsonl", reading(name))
    assert take(project, spark).batch == 2
    file = land("readings", "a.jsonl", reading("a"), reading("d"))
    counts = take(project, spark)
    assert (counts.batch, counts.read, counts.accepted, counts.duplicates) == (3, 2, 1, 1)
    landed = duckdb_tables.rows(
        Warehouse(project).book("landed").path, "SELECT batch, name FROM t ORDER BY batch, name"
    )
    assert [(row["batch"], row["name"][9:10]) for row in landed] == [(1, "a"), (1, "b"), (2, "c"), (3, "a")]

    shutil.rmtree(Warehouse(project).book("landed").path.local)  # rebuilt from the log
    assert take(project, spark).read == 0
    os.utime(file)
    assert take(project, spark).duplicates == 2


@pytest.mark.long
def test_file_that_changes_while_it_is_read_is_left_for_the_next_batch(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    contract = declare(project)
    land("readings", "a.jsonl", reading("a"))
    growing = land("readings", "b.jsonl", reading("b"))
    there = landing.list_files(project, "readings")
    files = landing.pending(project, "readings", {file.mark for file in there}, set())
    assert files == there
    growing.write_text(growing.read_text() + json.dumps(reading("c")))
    counts = append(project, lambda: spark, contract, lambda _: FileDelivery.checked(project, files, contract), now=NOW)
    assert (counts.read, [row["meter"] for row in events(project, spark)]) == (1, ["a"])
    assert take(project, spark).accepted == 2


@pytest.mark.long
def test_append_ingests_files_and_standard_input(project: Settings, spark: SparkSession, tmp_path: Path) -> None:
    contract = declare(project, lake={"key": ["meter"], "time": "at", "buckets": 2})
    file = tmp_path / "my.jsonl"
    file.write_text(f"{json.dumps(reading())}\n{json.dumps(reading())}\n")
    assert append_files(project, lambda: spark, contract, [file], now=NOW).accepted == 2  # two lines are two events
    assert append_files(project, lambda: spark, contract, [file], now=NOW).duplicates == 2  # the same lines
    with file.open("rb") as stream:
        stdin = keep_stdin(project, stream)
    assert append_files(project, lambda: spark, contract, [stdin], now=NOW).accepted == 2
    assert not stdin.exists(), "standard input is kept no longer than it takes"
    assert file.exists()
    assert {row["_source"].partition(":")[0] for row in events(project, spark)} == {
        "my.jsonl",
        f".lake/staging/{stdin.name}",
    }
    assert Log(project, "readings").head().batch == 3


def test_landing_folder_that_cannot_be_listed_is_reported(project: Settings) -> None:
    project.path("landing/readings").write_text("a file")
    with pytest.raises(Unavailable, match="landing folder of readings"):
        landing.list_files(project, "readings")


def test_landing_folder_that_is_a_link_is_not_followed(project: Settings, tmp_path: Path) -> None:
    declare(project)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.jsonl").write_text("{}")
    project.path("landing/readings").symlink_to(elsewhere)
    with pytest.raises(DeclarationError, match="landing folder of readings is a symbolic link"):
        landing.list_files(project, "readings")


def test_special_files_and_links_out_of_the_folder_are_never_opened(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe would block for ever, and a device has no end."""
    folder = project.path("landing/readings")
    folder.mkdir()
    (tmp_path / "outside.jsonl").write_text("{}")
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)  # the name of a socket is no longer than 107 bytes
        listening.bind("socket.jsonl")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    (folder / "up.jsonl").symlink_to("../../outside.jsonl")
    (folder / "chain.jsonl").symlink_to(folder / "up.jsonl")
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    (folder / "folder.jsonl").symlink_to(tmp_path)
    (folder / "long.jsonl").symlink_to("x" * 999)
    found = {file.name: fault_of(file, folder=folder) for file in landing.list_files(project, "readings")}
    out = "a symbolic link out of the landing folder"
    assert found == {
        "readings/chain.jsonl": out,
        "readings/device.jsonl": out,
        "readings/folder.jsonl": out,
        "readings/long.jsonl": "not a regular file",
        "readings/loop.jsonl": "not a regular file",
        "readings/pipe.jsonl": "not a regular file",
        "readings/socket.jsonl": "not a regular file",
        "readings/up.jsonl": out,
    }


@pytest.mark.parametrize("swapped", ["file", "link", "target"])
def test_swapped_file_with_the_old_date_is_recognized_as_changed(
    project: Settings, land: Land, tmp_path: Path, swapped: str
) -> None:
    file = land("readings", "a.jsonl", "{}")
    if swapped != "file":
        file = file.with_name("b.jsonl")
        file.symlink_to("a.jsonl")
    seen = next(each for each in landing.list_files(project, "readings") if each.path.name == file.name)
    assert seen.unchanged()
    victim = file.with_name("a.jsonl") if swapped == "target" else file
    new = tmp_path / "new"
    if swapped == "link":
        new.symlink_to("a.jsonl")
    else:
        new.write_text("[]\n")
    before = victim.lstat()
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns), follow_symlinks=False)
    new.replace(victim)
    assert (victim.lstat().st_size, victim.lstat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert not seen.unchanged()


def test_spark_is_started_only_for_large_files(project: Settings, land: Land, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def start(settings: Settings) -> SparkSession:
        asked.append(settings)
        raise Unavailable("Spark does not start")

    monkeypatch.setattr("lake.session.spark_session.start", start)
    monkeypatch.setattr("lake.ingest.ingest.started", lambda: False)
    declare(project)
    project.path("schemas/more.avsc").write_text(json.dumps(READING | {"name": "more"}))
    typed = ["ingest", "--project", str(project.project)]
    done = CliRunner().invoke(lake, typed)
    assert (done.exit_code, asked) == (0, []), done.output
    for stream in ("readings", "more"):
        land(stream, "a.jsonl", reading("a"))
    done = CliRunner().invoke(lake, typed)
    assert (done.exit_code, asked) == (0, []), done.output
    for stream in ("readings", "more"):
        land(stream, "b.jsonl", reading("b"))
    monkeypatch.setattr(cost, "READ_BYTES", 0)
    done = CliRunner().invoke(lake, typed)
    assert (str(done.exception), len(asked)) == ("Spark does not start", 1)
