"""Backfill: the keys with an event in a range of time are evaluated again, by hand or by `airflow backfill create`.

A run of `airflow backfill create` redoes the day that is its data interval; `from` and `to` given by hand win. The
schedule is there for such runs alone: a run that the clock starts has no table to redo, and is skipped.
"""

from __future__ import annotations

from typing import Any

import steps
from airflow.sdk import CronDataIntervalTimetable, Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

WHEN = {"type": ["null", "string"], "format": "date-time"}
PARAMS = {
    "table": Param(
        None,
        type=["null", "string"],
        enum=[None, *(table["name"] for table in steps.tables())],
        title="Table",
        description="What is derived from it follows.",
    ),
    "from": Param(
        None, title="From", description="The first event time to redo; the interval's start if empty.", **WHEN
    ),
    "to": Param(None, title="To", description="The event time to stop before; the interval's end if empty.", **WHEN),
}


def span() -> tuple[str, str]:
    """From when to when to redo, as ISO 8601."""
    context, given = get_current_context(), steps.params()
    if (given["from"] is None) != (given["to"] is None):
        raise AirflowFailException("a range has both ends: give `from` and `to`, or neither")
    if given["from"] is not None:
        return given["from"], given["to"]
    start, end = context["data_interval_start"], context["data_interval_end"]
    if start is None or end is None or start == end:
        raise AirflowFailException("this run has no data interval: give `from` and `to`")
    return start.isoformat(), end.isoformat()


@task
def redo() -> list[dict[str, Any]]:
    """Evaluates the keys of the table with events in the range, then what is derived from it."""
    table = steps.params()["table"]
    if table is None and get_current_context()["dag_run"].run_type == "scheduled":
        raise AirflowSkipException("nothing to redo: this run was started by the clock")
    if table is None:
        raise AirflowFailException('say which table to redo: {"table": "…"}')
    start, end = span()
    done: list[dict[str, Any]] = steps.lake("backfill", table, "--from", start, "--to", end)["tables"]
    return done


@task
def cut(done: list[dict[str, Any]]) -> int:
    """The cut that the tables were redone at."""
    return max(table["cut"] for table in done)


@task
def follow(number: int) -> Any:
    """Brings to that cut what a micro-batch had not brought there yet."""
    steps.must_be_newest(number)
    return steps.lake("advance", "--cut", str(number))["tables"]


@dag(schedule=CronDataIntervalTimetable("@daily", "UTC"), is_paused_upon_creation=True, params=PARAMS, **steps.RUNS)
def backfill() -> None:
    """Redo a range of one table and what follows from it, check, publish."""
    number = cut(redo())
    follow(number) >> steps.check(number) >> steps.publish(number)


backfill()
