"""Backfill: recomputes the keys that have events in a time range, by hand or by `airflow backfill create`.

A run of `airflow backfill create` recomputes the day of its data interval; `from` and `to`, if given, take precedence.
The schedule exists for such runs only: a run that the clock starts names no table, and is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from lake_airflow import steps
from lake_airflow.command import fail
from lake_airflow.project import Project

WHEN: Mapping[str, Any] = {"type": ["null", "string"], "format": "date-time"}


def backfill(project: Project) -> DAG:
    """Recompute a time range of one table and what follows from it, check, publish."""

    @task
    def redo() -> Any:
        """Recomputes the keys of the table that have events in the range, then the tables derived from it."""
        table = steps.params()["table"]
        if table is None and get_current_context()["dag_run"].run_type == "scheduled":
            raise AirflowSkipException("nothing to recompute: this run was started by the schedule")
        if table is None:
            fail("no table to recompute was named", 'name it in the run\'s configuration: {"table": "…"}')
        steps.must_be_of(project)
        start, end = span()
        return project.call("backfill", table, "--from", start, "--to", end)["tables"]

    @task
    def cut(done: Any) -> int:
        """The cut at which the tables were recomputed."""
        return max(int(table["cut"]) for table in done)

    @task
    def follow(number: Any) -> Any:
        """Advances the tables that are not at that cut yet."""
        steps.must_be_newest(project, number)
        return project.call("advance", "--cut", str(number))["tables"]

    @dag(
        project.dag_id("backfill"),
        schedule=CronDataIntervalTimetable("@daily", "UTC"),
        is_paused_upon_creation=True,
        params=_params(project),
        doc_md=backfill.__doc__,
        **project.runs,
    )
    def made() -> None:
        number = cut(redo())
        follow(number) >> steps.check(project, number) >> steps.publish(project, number)

    return made()


def span() -> tuple[str, str]:
    """The time range to recompute, as ISO 8601."""
    context, given = get_current_context(), steps.params()
    if (given["from"] is None) != (given["to"] is None):
        fail("a range needs both ends", "give `from` and `to`, or neither")
    if given["from"] is not None:
        return given["from"], given["to"]
    start, end = context["data_interval_start"], context["data_interval_end"]
    if start is None or end is None or start == end:
        fail("this run has no data interval", "give `from` and `to`")
    return start.isoformat(), end.isoformat()


def _params(project: Project) -> dict[str, Param]:
    first = "First event time, inclusive; default: the start of the data interval."
    last = "Last event time, exclusive; default: the end of the data interval."
    return {
        "table": Param(
            None,
            type=["null", "string"],
            enum=[None, *(table["name"] for table in project.tables)],
            title="Table",
            description="The table to recompute; tables derived from it follow.",
        ),
        "from": Param(None, title="From", description=first, **WHEN),
        "to": Param(None, title="To", description=last, **WHEN),
    }
