"""Project with Spark on a cluster and its warehouse in a bucket: its tables equal those of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lake.config import Settings, load_settings
from lake.ops.scaffold import init
from lake.store.ledger.editions import latest_edition
from lake.store.temporary_files import FOLDER
from lake.store.warehouse import Warehouse
from tests.servers.airflow import Airflow
from tests.servers.cluster import Cluster
from tests.servers.s3 import S3
from tests.shop import order

COMMAND = [sys.executable, "-c", "from lake.cli import main; main()"]
FIRST = [order(number, customer) for number, customer in enumerate(("joan", "grace", "eve", "joan") * 5)]
LATER = [order(number, "grace", status="paid", amount="12.50", changed_at="2024-05-01T09:00:00Z") for number in (1, 4)]


def lake(project: Path, *words: str, **environment: str) -> str:
    """Run a command and return its output."""
    there = {key: value for key, value in os.environ.items() if not key.startswith(("LAKE_", "SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [*COMMAND, *words], cwd=project, env=there | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def land(project: Path, name: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a landing file of orders."""
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    (project / "landing/orders" / name).write_text(lines)


def played(project: Path, **environment: str) -> None:
    """Ingest two batches, the second late, from files with glob characters in their names; then rebuild."""
    init(project)
    project.chmod(0o700)
    land(project, "a [1] first.jsonl", FIRST)
    lake(project, "run", **environment)
    land(project, "later.jsonl", LATER)
    lake(project, "run", **environment)
    lake(project, "rebuild", "--all", **environment)
    lake(project, "publish", **environment)


def tables(settings: Settings) -> Mapping[str, tuple[int | None, str | None]]:
    """Return the row count and fingerprint of each published table."""
    edition = latest_edition(settings)
    assert edition is not None
    return {name: (table.rows, table.content) for name, table in edition.tables.items()}


def test_tables_of_a_cluster_equal_those_of_one_machine(
    cluster: Cluster, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path / "here", LAKE_SPARK__MASTER="local[2]", LAKE_SPARK__DRIVER_MEMORY="1g")
    elsewhere = {**cluster.environment, **s3.environment, "LAKE_WAREHOUSE": f"{s3.bucket()}/w"}
    tmp_path.chmod(0o700)
    played(tmp_path / "there", **elsewhere)
    assert "identical" in lake(tmp_path / "there", "verify", **elsewhere)
    examined = json.loads(lake(tmp_path / "there", "doctor", "--json", **elsewhere))
    assert {"cluster", "executors", "delta"} <= {each["subject"] for each in examined}
    here = tables(load_settings(tmp_path / "here"))
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    there = load_settings(tmp_path / "there")
    assert tables(there) == here
    assert [rows for rows, _ in here.values()] == [19, 19]
    with pytest.raises(FileNotFoundError):
        list((Warehouse(there).root / FOLDER).list(deep=True))


def is_published(states: Mapping[str, str]) -> bool:
    """Return whether all tasks of a run succeeded and published."""
    return {*states.values()} <= {"success", "skipped"} and states["publish"] == "success"


def test_tables_of_dags_on_a_cluster_equal_those_of_one_machine(
    airflow: Airflow, cluster: Cluster, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task starts its own driver; two micro-batches, a recomputation of all tables, a backfill."""
    here = tmp_path / "here"
    init(here)
    elsewhere = {**cluster.environment, **s3.environment, "LAKE_WAREHOUSE": f"{s3.bucket()}/w"}
    there = replace(airflow, server=elsewhere)
    for project in (here, there.folder):
        land(project, "later.jsonl", LATER)
    tmp_path.chmod(0o700)
    assert is_published(there.run("microbatch"))
    for project in (here, there.folder):
        land(project, "latest.jsonl", FIRST)
    assert is_published(there.run("microbatch"))
    assert is_published(there.run("recompute"))
    assert is_published(there.run("backfill", "2024-05-02", table="current_order"))
    lake(here, "run", LAKE_SPARK__MASTER="local[2]", LAKE_SPARK__DRIVER_MEMORY="1g")
    one_machine = tables(load_settings(here))
    for name, value in elsewhere.items():
        monkeypatch.setenv(name, value)
    assert tables(load_settings(there.folder)) == one_machine
