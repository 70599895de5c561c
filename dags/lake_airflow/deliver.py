"""Deliver: brings what sinks fill to the edition that readers see, when tables of theirs have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import DAG, AssetAny, XComArg, dag, get_current_context, task

from lake_airflow.project import Project, task_id


def deliver(project: Project) -> DAG:
    """A task for each sink, none of which waits for another; started when a table that one delivers has changed."""
    names = sorted({name for tables in project.sinks.values() for name in tables if name in project.assets})
    changed = AssetAny(*(project.assets[name] for name in names)) if names else None

    @dag(project.dag_id("deliver"), schedule=changed, doc_md=deliver.__doc__, **project.runs)
    def made() -> None:
        for name, tables in project.sinks.items():
            fill(project, name, tables)

    return made()


def fill(project: Project, name: str, tables: Sequence[str]) -> XComArg:
    """The task that fills one sink. It updates the sink's asset if anything was delivered."""
    inlets = [project.assets[table] for table in tables if table in project.assets]
    asset = project.sink(name)

    @task(task_id=task_id(name), inlets=inlets, outlets=[asset])
    def work(*, outlet_events: Any = None) -> Any:
        [done] = project.call("deliver", name)["sinks"]
        if done["changed"]:
            outlet_events[asset].extra = {"edition": done["edition"], "cut": done["cut"]}
        else:
            get_current_context()["outlets"].clear()
        return done

    return work()
