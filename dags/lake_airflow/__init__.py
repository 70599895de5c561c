"""The DAGs of a Headwater project, for Airflow 3.3 or newer: micro-batch, recompute, backfill, nightly, deliver.

A project's `dags/dags.py` asks for them by one call; what tables there are is in the file `graph.json` beside it. This
package needs Airflow and the standard library alone, and reaches `lake` by its command line, so that Airflow and `lake`
may live in environments of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airflow.sdk import DAG

from lake_airflow.backfill import backfill
from lake_airflow.deliver import deliver
from lake_airflow.microbatch import microbatch
from lake_airflow.nightly import nightly
from lake_airflow.project import Project
from lake_airflow.recompute import recompute

__all__ = ["dags"]


def dags(  # noqa: PLR0913 an option each, all but two of them by name
    name: str,
    folder: Path,
    *,
    lake: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    every: str | None = "*/15 * * * *",
    nights: str | None = "0 3 * * *",
) -> dict[str, DAG]:
    """The DAGs of the project in `folder`, by their ids: `name` and a dot come before each, and before its assets.

    `lake` is the command (default: the one of the Python that runs the task), `environment` what its environment has
    beside the worker's own. `every` and `nights` are the schedules of the micro-batch and of the nightly run as cron
    has them, in UTC; None for runs started by hand.

    Raises ValueError where `name` is not fit for an id, or `graph.json` in `folder`/dags is not what
    `lake graph --json` prints: Airflow shows it as an import error.
    """
    project = Project(name, folder.resolve(), lake=lake, environment=environment or {})
    made = [microbatch(project, every), recompute(project), backfill(project), nightly(project, nights)]
    if project.sinks:
        made.append(deliver(project))
    return {dag.dag_id: dag for dag in made}
