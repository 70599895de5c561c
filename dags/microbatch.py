"""The micro-batch: ingests what has landed and advances every table to one cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import steps
from airflow.sdk import XComArg, dag, task


@task
def ingest() -> Any:
    """Appends what has landed to the logs. Returns the counts: accepted, duplicates, quarantined."""
    return steps.lake("ingest")["streams"]


def advance(table: Mapping[str, Any], number: XComArg) -> XComArg:
    """The task that brings one table to the run's cut."""
    asset = steps.asset(table)

    @task(task_id=table["name"], outlets=[asset])
    def work(number: int, *, outlet_events: Any = None) -> dict[str, Any]:
        (done,) = steps.lake("advance", table["name"], "--cut", str(number))["tables"]
        outlet_events[asset].extra = steps.changes(done)
        return steps.changes(done)

    return work(number)


@dag(schedule="*/15 * * * *", **steps.RUNS)
def microbatch() -> None:
    """Ingest, cut, one task per table in the order of the graph, check, publish."""
    number = steps.cut()
    ingest() >> number
    work = steps.per_table(lambda table: advance(table, number))
    work >> steps.check(number) >> steps.publish(number)


microbatch()
