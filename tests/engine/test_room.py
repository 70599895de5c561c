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
from lake.engine.catalog import warn_of_spill
from lake.session.spark_session import local_dir
from tests.shop import new_shop, order

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
        assert f"{local_dir(settings)} has 9.0 GB free" in message
        assert all(path.exists() for path in seen)


def test_spill_is_estimated_once_for_each_complete_evaluation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = new_shop(tmp_path)
    monkeypatch.setattr(cost, "SPILLED_SHARE", 1e12)
    shop.settings = replace(shop.settings, in_process_rows=0)
    shop.land_samples().run()
    tables = sorted(message.partition(":")[0] for message in caplog.messages if "GB free" in message)
    assert tables == ["current_order", "customer_daily"]
    caplog.clear()
    shop.land("orders", order(1001))
    shop.run()
    assert not [message for message in caplog.messages if "GB free" in message], "few rows need no disk"
