"""The micro-batch: ingests what has landed and advances every table to one cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, XComArg, dag, task

from lake_airflow import steps
from lake_airflow.command import fail
from lake_airflow.project import Project, task_id


def microbatch(project: Project, schedule: str | None) -> DAG:
    """Ingest, cut, one task per table in the order of the graph, check, publish.

    A stream or a source that fails holds up no other: the run goes on with what the logs have, and fails in the end.
    Where tables are published by groups, a table that fails holds up its own alone.
    """
    when = "all_done_min_one_success" if project.by_groups else "all_success"

    @dag(project.dag_id("microbatch"), schedule=schedule, doc_md=microbatch.__doc__, **project.runs)
    def made() -> None:
        number = steps.cut(project, when="all_done")
        ingest(project) >> [number, must_be_in()]
        work = project.per_table(lambda table: advance(project, table, number))
        work >> steps.check(project, number, when) >> steps.publish(project, number, when)

    return made()


def ingest(project: Project) -> XComArg:
    """The task that appends what has landed to the logs. It updates the assets of streams that got events."""

    @task(task_id="ingest", outlets=[project.assets[name] for name in project.graph["streams"]])
    def work(*, outlet_events: Any = None) -> Any:
        streams = project.call("ingest")["streams"]
        grown = {name: counts for name, counts in streams.items() if counts["accepted"] and name in project.assets}
        steps.update(project, grown, outlet_events)
        return streams

    return work()


def must_be_in() -> XComArg:
    """The task that fails a run whose `ingest` failed, as no table's does; it is skipped else."""

    @task(task_id="ingest_failed", trigger_rule="one_failed")
    def work() -> None:
        fail(
            "a stream or a source was not ingested",
            "see the log of the task ingest: the tables are of what the logs have",
        )

    return work()


def advance(project: Project, table: Mapping[str, Any], number: XComArg) -> XComArg:
    """The task that brings one table to the run's cut."""
    name = table["name"]

    @task(task_id=task_id(name), doc_md=project.doc(name), inlets=project.inlets(table))
    def work(number: Any) -> Any:
        (done,) = project.call("advance", name, "--cut", str(number))["tables"]
        return done

    return work(number)
