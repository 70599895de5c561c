"""Every night: verify the tables, then maintain the warehouse."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, dag, task

from lake_airflow.project import Project


def nightly(project: Project, schedule: str | None) -> DAG:
    """Verify, maintain. Not after a table that differs: its old files may show why."""

    @task(inlets=list(project.assets.values()))
    def verify() -> Any:
        """Proves that every table equals its recomputation; fails with the first differing keys."""
        return project.call("verify", "--all")["tables"]

    @task
    def maintain() -> Any:
        """Compacts and vacuums."""
        return project.call("maintain")

    @dag(project.dag_id("nightly"), schedule=schedule, doc_md=nightly.__doc__, **project.runs)
    def made() -> None:
        verify() >> maintain()

    return made()
