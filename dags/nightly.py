"""Every night: verify the tables, then maintain the warehouse."""

from __future__ import annotations

from typing import Any

import steps
from airflow.sdk import dag, task


@task
def verify() -> Any:
    """Proves that every table equals its recomputation; fails with the first differing keys."""
    return steps.lake("verify", "--all")["tables"]


@task
def maintain() -> Any:
    """Compacts and vacuums. Not after a table that differs: its old files may show why."""
    return steps.lake("maintain")


@dag(schedule="0 3 * * *", **steps.RUNS)
def nightly() -> None:
    """Verify, maintain."""
    verify() >> maintain()


nightly()
