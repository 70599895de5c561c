"""Warnings of a disk that may be too small for the spill of an evaluation."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings, SparkSettings
from lake.engine import inputs
from lake.engine.inputs import warn_of_spill
from lake.session.spark_session import local_dirs
from tests.shop import contract, declare, empty, job

Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.mark.parametrize(
    ("how", "free", "told"),
    [
        (SparkSettings(), 10 << 30, False),
        (SparkSettings(), 9 << 30, True),
        (SparkSettings(conf={"spark.local.dir": "/elsewhere/spark"}), 9 << 30, True),
        (SparkSettings(master="spark://far:7077"), 9 << 30, False),
        (SparkSettings(remote="sc://far:443"), 9 << 30, False),
    ],
    ids=["enough", "too little", "a folder of its own", "a cluster", "a server elsewhere"],
)
def test_spill_warning_names_the_folder_and_the_size(
    project: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: SparkSettings,
    free: int,
    *,
    told: bool,
) -> None:
    settings, seen = replace(project, spark=how), list[Path]()

    def disk_usage(path: Path) -> Usage:
        seen.append(path)
        return Usage(1 << 40, (1 << 40) - free, free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    monkeypatch.setattr(cost, "SPILLED_SHARE", 2.0)
    warn_of_spill(settings, "day_total", lambda: 5 << 30)
    assert bool(caplog.messages) == told
    if told:
        [message] = caplog.messages
        assert message.startswith("day_total: Spark may put 10.0 GB on the disk while it evaluates 5.0 GB of inputs")
        assert f"{local_dirs(settings)[0]} has 9.0 GB free" in message
        assert all(path.exists() for path in seen)


@pytest.mark.parametrize(
    ("devices", "left", "told"),
    [
        ((1, 2), (9, 5), []),
        ((1, 2), (9, 4), ["b has 4.0 GB"]),
        ((1, 2), (4, 3), ["a has 4.0 GB", "b has 3.0 GB"]),
        ((1, 1), (10, 10), []),
        ((1, 1), (9, 9), ["a has 9.0 GB"]),
    ],
)
@pytest.mark.parametrize("variable", [False, True])
def test_spill_warning_names_each_disk_that_is_too_small(
    project: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    devices: tuple[int, int],
    left: tuple[int, int],
    *,
    told: list[str],
    variable: bool,
) -> None:
    for name in ("a", "b", "declared"):
        (project.project / name).mkdir()
    folders = ",".join(str(project.project / name) for name in ("a", "b"))
    conf = {"spark.local.dir": str(project.project / "declared") if variable else folders}
    if variable:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
    free, numbers = dict(zip("ab", left, strict=True)), dict(zip("ab", devices, strict=True))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, free[path.name] << 30))
    monkeypatch.setattr(inputs, "device", lambda path: numbers[path.name])
    monkeypatch.setattr(cost, "SPILLED_SHARE", 2.0)
    warn_of_spill(replace(project, spark=SparkSettings(conf=conf)), "day_total", lambda: 5 << 30)
    assert len(caplog.messages) == len(told)
    assert all(f"{project.project}/{of} free" in message for message, of in zip(caplog.messages, told, strict=True))


@pytest.mark.long
def test_spill_is_estimated_once_for_each_complete_evaluation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cost, "SPILLED_SHARE", 1e12)
    thing = contract("thing", {"id": "int", "at": "timestamp"}, id=["id"], time="at")
    made = {"newest": job("newest", 'Latest("id", sequence="at")', 'log("thing")')}
    shop = declare(empty(tmp_path / "shop", "in_process_rows = 0\n"), thing, jobs=made)
    shop.land("thing", *({"id": number, "at": "2024-04-03T10:00:00Z"} for number in range(900))).run()
    assert [message.partition(":")[0] for message in caplog.messages if "GB free" in message] == ["newest"]
    caplog.clear()
    shop.land("thing", {"id": 1001, "at": "2024-04-03T10:00:00Z"})
    shop.run()
    assert not [message for message in caplog.messages if "GB free" in message], "few rows need no disk"
