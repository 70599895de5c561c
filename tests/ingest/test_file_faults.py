"""Faults of single files: odd times, folders, files that vanish, unexpected errors."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.errors import LakeError, Unavailable
from lake.ingest import landing
from lake.ingest.delivery import FileDelivery
from lake.ingest.files import File, in_range, mark_as_json, mark_of
from lake.ingest.ingest import ingest
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Commands
from tests.checks import present
from tests.shop import contract, declare, empty
from tests.store.events import NOW

SECOND = 10**9
ENDS = (-(1 << 63), (1 << 63) - 1)
TIMES = [0, 1, -1, *ENDS, ENDS[0] - 1, ENDS[1] + 1, 10_413_792_000 * SECOND]
TIMES += [-(1 << 31) * SECOND, ((1 << 34) - (1 << 31) - 1) * SECOND + 999_999_999, -62_135_596_800 * SECOND]
"""They include the first and the last time of ext4, and the years 1 and 2300."""


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    settings = empty(tmp_path / "shop")
    declare(settings, contract("aa", {"id": "int"}), contract("zz", {"id": "int"}))
    for stream in ("aa", "zz"):
        settings.path(f"landing/{stream}").mkdir()
    return settings


def test_mark_of_a_file_is_stored_and_found_again_at_every_time(project: Settings) -> None:
    chance = random.Random(3)
    path = project.path("landing/aa/a.jsonl")
    path.write_text('{"id": 1}\n')
    marks = []
    for time in [
        *TIMES,
        *(chance.randrange(-(1 << 34), 1 << 34) * SECOND + chance.randrange(SECOND) for _ in range(40)),
    ]:
        os.utime(path, ns=(time, time))
        [file] = landing.list_files(project, "aa")
        assert ENDS[0] <= file.mtime <= ENDS[1]
        assert file.unchanged()
        assert mark_of(json.loads(json.dumps(mark_as_json(file.mark)))) == file.mark
        assert landing.find_file(project, "aa", file.mark) == landing.local_file(project, path, name=file.name)
        marks.append(file.mark)
    with landing.LANDED.hold_lease(project):
        landing.LANDED.append(project, [["aa", n, *mark, None] for n, mark in enumerate(marks)])
    rows = landing.LANDED.rows(project, f"SELECT {landing.MARK} FROM t ORDER BY batch")
    assert [mark_of(row) for row in rows] == marks
    assert mark_of({"path": "a", "size": 1, "mtime": ENDS[1] + 9}) == ("a", 1, ENDS[1])
    assert [in_range(time) for time in TIMES[:7]] == [0, 1, -1, *ENDS, *ENDS]


def test_file_of_a_time_beyond_64_bits_is_ingested_like_other_streams(project: Settings, commands: Commands) -> None:
    lakehouse = declare(project)
    for number, (stream, year) in enumerate([("aa", 10_413_792_000), ("aa", -11_676_096_000), ("zz", 0)]):
        file = lakehouse.settings.landing_path / stream / f"{number}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{{"id": {number}}}\n')
        os.utime(file, (year, year))
    for _ in range(2):
        done = commands.lake("ingest", at=lakehouse)
        assert done.code == 0, done.err
    query = "SELECT id FROM t WHERE id IS NOT NULL ORDER BY id"
    found = {stream: duckdb_tables.rows(Log(lakehouse.settings, stream).path, query) for stream in ("aa", "zz")}
    assert {stream: [row["id"] for row in rows] for stream, rows in found.items()} == {"aa": [0, 1], "zz": [2]}


def test_ingest_warns_once_of_sub_folders_with_files(project: Settings, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("2024", ".hidden", "_tmp", "x.part", "empty", "b.jsonl"):
        project.path(f"landing/aa/{name}").mkdir()
        if name != "empty":
            project.path(f"landing/aa/{name}/a.jsonl").write_text("{}")
    assert landing.ignored_folders(project, "aa") == ["2024", "b.jsonl"]
    assert landing.list_files(project, "aa") == []
    with caplog.at_level(logging.WARNING, "lake"):
        for _ in range(2):
            landing.warn_of_folders(project, "aa")
        landing.warn_of_folders(project, "zz")
        project.path("landing/aa/empty/a.jsonl").write_text("{}")
        landing.warn_of_folders(project, "aa")
    words = "aa: files in sub-folders of its landing folder are not read: "
    assert [record.getMessage() for record in caplog.records] == [
        f"{words}2024, b.jsonl; move them up",
        f"{words}empty; move them up",
    ]


def test_ingest_continues_with_other_streams_after_an_unexpected_error(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def listing(settings: Settings, stream: str) -> list[File]:
        asked.append(stream)
        if stream == "aa":
            raise RuntimeError("odd")
        return []

    monkeypatch.setattr(landing, "list_files", listing)
    failures = dict[str, LakeError]()
    contracts = load_contracts(project)
    ingest(project, lambda: pytest.fail("Spark is not needed"), contracts, on_failure=failures.__setitem__)
    assert {name: failure.what for name, failure in failures.items()} == {"aa": "unexpected error: odd"}
    assert asked[-1] == "zz"
    with pytest.raises(RuntimeError, match="odd"):
        ingest(project, lambda: pytest.fail("Spark is not needed"), contracts)


@pytest.mark.parametrize(
    "error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed"), RuntimeError("worker: MemoryError")]
)
def test_file_that_is_read_without_memory_stays_in_its_folder(
    project: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    file = project.path("landing/aa/a.jsonl")
    file.write_text('{"id": 1}\n')

    def read(*_: object) -> None:
        raise error

    with monkeypatch.context() as lacking:
        lacking.setattr(FileDelivery, "read", read)
        with pytest.raises(Unavailable, match="not enough memory"):
            ingest(project, lambda: cast("SparkSession", object()), load_contracts(project))
    assert file.exists()
    counts = ingest(project, lambda: pytest.fail("Spark is not needed"), load_contracts(project))
    assert (counts["aa"].read, counts["aa"].accepted) == (1, 1)


def test_archive_continues_after_a_file_that_cannot_be_moved(
    project: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = empty(project.project.parent / "kept", 'archive = "archive"\n')
    settings.path("landing/aa").mkdir()
    names = ["a.jsonl", f"{'b' * 249}.jsonl", "c.jsonl", "d.jsonl"]
    for name in names:
        settings.path(f"landing/aa/{name}").write_text("{}")
    target = settings.path("archive/aa")
    target.mkdir(parents=True)
    (target / names[1]).touch()
    listed = landing.list_files(settings, "aa")
    settings.path("landing/aa/a.jsonl").unlink()
    monkeypatch.setattr(landing, "list_files", lambda *_: listed)
    with caplog.at_level(logging.WARNING, "lake"):
        landing.archive(settings, "aa", {file.mark for file in listed})
    assert sorted(path.name for path in target.iterdir()) == names[1:]
    [record] = caplog.records
    assert record.getMessage().endswith("stays in the landing folder: File name too long")


def test_archive_keeps_every_file_of_one_name_and_time(project: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings = empty(project.project.parent / "kept", 'archive = "archive"\n')
    settings.path("landing/aa").mkdir()
    file, contents = settings.path("landing/aa/a.jsonl"), ["1", "22", "333", "4444", "4444"]
    for content in contents:
        file.write_text(content)
        os.utime(file, (NOW.timestamp(), NOW.timestamp()))
        marks = {listed.mark for listed in landing.list_files(settings, "aa")}
        landing.archive(settings, "aa", marks)
        assert not file.exists()
        [mark] = marks
        found = present(landing.find_file(settings, "aa", mark))
        assert cast("Path", found.path).read_text() == content
    assert sorted(path.read_text() for path in settings.path("archive/aa").iterdir()) == [*dict.fromkeys(contents)]
    file.write_text("5555")
    os.utime(file, (NOW.timestamp(), NOW.timestamp()))
    landing.archive(settings, "aa", marks)
    assert file.read_text() == "5555"
    [record] = caplog.records
    assert record.getMessage().endswith("the archive has another file of its name, size and time")


def test_files_that_vanish_during_a_listing_are_skipped(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        project.path(f"landing/aa/{name}").write_text("{}")
    scandir = os.scandir

    def listed(path: Path) -> list[os.DirEntry[str]]:
        entries = list(scandir(path))
        project.path("landing/aa/a.jsonl").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", listed)
    assert [file.name for file in landing.list_files(project, "aa")] == ["aa/b.jsonl"]
