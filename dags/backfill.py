"""Backfill: recomputes the keys that have events in a time range, by hand or by `airflow backfill create`.

A run of `airflow backfill create` recomputes the day of its data interval; `from` and `to`, if given, take precedence.
The schedule exists for such runs only: a run that the clock starts names no table, and is skipped.
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
        description="The table to recompute; tables derived from it follow.",
    ),
    "from": Param(
        None, title="From", description="First event time, inclusive; default: the start of the data interval.", **WHEN
    ),
    "to": Param(
        None, title="To", description="Last event time, exclusive; default: the end of the data interval.", **WHEN
    ),
}


def span() -> tuple[str, str]:
    """The time range to recompute, as ISO 8601."""
    context, given = get_current_context(), steps.params()
    if (given["from"] is None) != (given["to"] is None):
        raise AirflowFailException("a range needs both ends: give `from` and `to`, or neither")
    if given["from"] is not None:
        return given["from"], given["to"]
    start, end = context["data_interval_start"], context["data_interval_end"]
    if start is None or end is None or start == end:
        raise AirflowFailException("this run has no data interval: give `from` and `to`")
    return start.isoformat(), end.isoformat()


@task
def redo() -> list[dict[str, Any]]:
    """Recomputes the keys of the table that have events in the range, then the tables derived from it."""
    table = steps.params()["table"]
    if table is None and get_current_context()["dag_run"].run_type == "scheduled":
        raise AirflowSkipException("nothing to recompute: this run was started by the schedule")
    if table is None:
        raise AirflowFailException('name the table to recompute: {"table": "…"}')
    start, end = span()
    done: list[dict[str, Any]] = steps.lake("backfill", table, "--from", start, "--to", end)["tables"]
    return done


@task
def cut(done: list[dict[str, Any]]) -> int:
    """The cut at which the tables were recomputed."""
    return max(table["cut"] for table in done)


@task
def follow(number: int) -> Any:
    """Advances the tables that are not at that cut yet."""
    steps.must_be_newest(number)
    return steps.lake("advance", "--cut", str(number))["tables"]


@dag(schedule=CronDataIntervalTimetable("@daily", "UTC"), is_paused_upon_creation=True, params=PARAMS, **steps.RUNS)
def backfill() -> None:
    """Recompute a time range of one table and what follows from it, check, publish."""
    number = cut(redo())
    follow(number) >> steps.check(number) >> steps.publish(number)


backfill()
