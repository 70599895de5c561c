"""An Airflow with a home of its own, and a project whose DAGs it runs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lake.scaffold import init
from tests.servers import needed

BIN = Path(sys.executable).parent
DAGS = Path(__file__).resolve().parents[2] / "dags"


def installed() -> None:
    """Skips a test where Airflow is not installed."""
    needed(find_spec("airflow"), "the extra `airflow` is not installed: make setup")


@dataclass(frozen=True)
class Airflow:
    """The DAGs of the project in `folder`, run by `airflow dags test`: one task after another, no scheduler.

    Where the environment has a `server` of Spark Connect, tasks use it instead of a JVM each.
    """

    folder: Path
    server: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.folder / ".lake/airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONPATH": os.pathsep.join([str(self.folder / "dags"), os.environ.get("PYTHONPATH", "")]),
            "SPARK_REMOTE": "",
            **self.server,
        }

    def call(self, command: str, *arguments: str) -> str:
        """What a command of this environment prints; where it fails, the test fails with all it said."""
        done = subprocess.run(
            [BIN / command, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def lake(self, *arguments: str) -> Any:
        return json.loads(self.call("lake", *arguments, "--json"))

    def run(self, dag: str, *date: str, **conf: object) -> dict[str, str]:
        """One run of a DAG, of the day before `date`; what became of its tasks."""
        self.call("airflow", "dags", "test", dag, *date, "--conf", json.dumps(conf))
        states = "SELECT task_id, state FROM task_instance WHERE run_id = (SELECT run_id FROM dag_run ORDER BY id DESC)"
        return dict(self.query(states))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of Airflow's own database."""
        with sqlite3.connect(self.folder / ".lake/airflow/airflow.db") as connection:
            return connection.execute(sql).fetchall()

    def events(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """What the asset events of each table carry, oldest first."""
        events: dict[str, list[Mapping[str, Any]]] = {}
        for name, extra in self.query(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        ):
            events.setdefault(name, []).append(json.loads(extra))
        return events


@pytest.fixture
def airflow(tmp_path: Path) -> Airflow:
    """Airflow over a fresh project as `lake init` makes it, with this repository's DAGs."""
    installed()
    project = tmp_path / "shop"
    init(project)
    shutil.copytree(DAGS, project / "dags", ignore=shutil.ignore_patterns("__pycache__", "graph.json"))
    airflow = Airflow(project)
    (project / "dags/graph.json").write_text(airflow.call("lake", "graph", "--json"))
    airflow.call("airflow", "db", "migrate")
    return airflow
