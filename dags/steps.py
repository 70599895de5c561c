"""What the DAGs share: the `lake` command line, what its exit codes mean to Airflow, and the steps of every run.

A DAG run works at one cut. The cut is recorded under the run's name, so that a task that is retried or cleared, this
year or next, works at the cut that the run had, finds its work done, and changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, TaskGroup, XComArg, get_current_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

FOLDER = Path(__file__).resolve().parent
PROJECT = Path(os.environ.get("LAKE_PROJECT", FOLDER.parent))
LAKE = Path(sys.executable).with_name("lake")

# `lake` exits with 75 where somebody else holds a lease, or storage or the cluster does not answer.
TRY_AGAIN = 75

# One run at a time, and two tasks beside each other: each may start a JVM.
RUNS: Mapping[str, Any] = {
    "start_date": datetime(2013, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "max_active_tasks": 2,
    "tags": ["headwater"],
    "default_args": {
        "retries": 5,
        "retry_delay": timedelta(seconds=20),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=10),
    },
}


def tables() -> list[dict[str, Any]]:
    """The project's tables in the order of their dependencies, as `lake graph --json` wrote them."""
    graph = json.loads((FOLDER / "graph.json").read_text("utf-8"))
    found: list[dict[str, Any]] = graph["tables"]
    return found


def asset(table: Mapping[str, Any]) -> Asset:
    """A table as Airflow knows it. Its events carry `cut`, the Delta `version`, and how many rows changed."""
    return Asset(name=table["name"], uri=f"lake://{table['layer']}/{table['name']}", group="headwater")


def lake(*arguments: str) -> Any:
    """The answer of `lake` with `arguments`. Its stderr goes to the task's log, and so does the answer if it fails.

    Exit code 75 is retried with exponential backoff; every other fault fails the task at once, because a retry would
    not help.
    """
    command = [str(LAKE), *arguments, "--json", "--project", str(PROJECT)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)
    print(done.stdout)
    told = f"`lake {' '.join(arguments)}` ended with exit code {done.returncode}; see its message in the log above"
    raise (AirflowException if done.returncode == TRY_AGAIN else AirflowFailException)(told)


def changes(done: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `lake`'s answer about one table that goes into an asset event."""
    return {name: done[name] for name in ("cut", "version", "verb", "inserted", "updated", "deleted")}


def params() -> Mapping[str, Any]:
    """The parameters of this run."""
    given: Mapping[str, Any] = get_current_context()["params"]
    return given


def per_table(work: Callable[[Mapping[str, Any]], XComArg]) -> list[XComArg]:
    """The tasks that `work` makes, one per table; each depends on the tasks of its table's inputs."""
    with TaskGroup("tables"):
        made = {table["name"]: work(table) for table in tables()}
    for table in tables():
        for name in table["inputs"]:
            if name in made:
                made[name] >> made[table["name"]]
    return list(made.values())


@task
def cut() -> int:
    """The number of this run's cut: the one given, else a new one; a dry run uses the newest."""
    context, asked = get_current_context(), params()
    newest = lake("status")["cut"] if asked.get("dry_run") else None
    if asked.get("cut") or newest:
        return int(asked.get("cut") or newest["number"])
    number: int = lake("cut", "--label", f"{context['dag'].dag_id} {context['run_id']}")["cut"]
    return number


def must_be_newest(number: int) -> None:
    """Skips the task if there is a later cut: tables may be beyond this one, and that run publishes them."""
    newest = lake("status")["cut"]["number"]
    if newest > number:
        raise AirflowSkipException(f"cut {newest} is newer than cut {number}: its run checks and publishes")


@task
def check(number: int) -> Any:
    """Checks every table at the cut against its expectations; fails if one of severity stop fails."""
    must_be_newest(number)
    checks = lake("check", "--cut", str(number))["checks"]
    return [{name: each[name] for name in ("table", "outcome", "version")} for each in checks]


@task
def publish(number: int) -> Any:
    """Publishes the cut; skipped while readers are pinned to an older edition, or see a later cut already."""
    status = lake("status")
    if status["pinned"] is not None:
        raise AirflowSkipException(f"readers are pinned to edition {status['pinned']} until `lake publish --resume`")
    edition = status["edition"]
    if edition and edition["cut"] > number:
        raise AirflowSkipException(f"edition {edition['number']} is of cut {edition['cut']}, later than cut {number}")
    return lake("publish", "--cut", str(number))
