"""An Airflow with a home of its own, and a project whose DAGs it runs."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from lake.ops.scaffold import init
from tests.processes import PATIENCE, ROOT, free_port, until
from tests.servers import needed

BIN = Path(sys.executable).parent


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
    def name(self) -> str:
        """What the ids of its DAGs and the names of its assets begin with."""
        return self.folder.name

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.folder / ".lake/airflow"),
            # Its processes write to one file.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.folder}/.lake/airflow/airflow.db?timeout={PATIENCE}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "SPARK_REMOTE": "",
            **self.server,
        }

    def call(self, command: str, *arguments: str) -> str:
        """What a command of this environment prints; where it fails, the test fails with all it said."""
        done = self.start(command, *arguments)
        assert done.returncode == 0, f"{command} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / command, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def lake(self, *arguments: str) -> Any:
        return json.loads(self.call("lake", *arguments, "--json"))

    def run(self, dag: str, *date: str, **conf: object) -> dict[str, str]:
        """One run of a DAG, of the day before `date`; what became of its tasks."""
        self.call("airflow", "dags", "test", f"{self.name}.{dag}", *date, "--conf", json.dumps(conf))
        return self.states()

    def logs(self, dag: str, task: str) -> list[Path]:
        """The files in which a scheduler's tasks log: one for each try."""
        folder = self.folder / ".lake/airflow/logs"
        return sorted(folder.glob(f"dag_id={self.name}.{dag}/*/task_id={task}/*.log"))

    def logged(self, dag: str, task: str) -> list[tuple[str, str]]:
        """Level and text of what a scheduler's tasks have logged."""
        records = [json.loads(line) for file in self.logs(dag, task) for line in file.read_text().splitlines()]
        return [(record["level"], record["event"]) for record in records]

    def states(self) -> dict[str, str]:
        """What became of the tasks of the newest run."""
        states = "SELECT task_id, state FROM task_instance WHERE run_id = (SELECT run_id FROM dag_run ORDER BY id DESC)"
        return dict(self.query(states))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of Airflow's own database."""
        with sqlite3.connect(self.folder / ".lake/airflow/airflow.db", timeout=PATIENCE) as connection:
            return connection.execute(sql).fetchall()

    def events(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """What the events of each asset carry, oldest first; each has the `task` that it came from."""
        events: dict[str, list[Mapping[str, Any]]] = {}
        for name, task, extra in self.query(
            """SELECT a.name, e.source_task_id, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id
               ORDER BY e.id"""
        ):
            events.setdefault(name, []).append({**json.loads(extra), "task": task})
        return events


@pytest.fixture
def airflow(tmp_path: Path) -> Airflow:
    """Airflow over a fresh project as `lake init` makes it, with the DAGs that it gets."""
    installed()
    project = tmp_path / "shop"
    init(project)
    airflow = Airflow(project)
    airflow.call("airflow", "db", "migrate")
    return airflow


@contextmanager
def scheduling(airflow: Airflow) -> Iterator[str]:
    """Start all components of Airflow as `make server S=airflow` does. Yield the address of the healthy API."""
    port = free_port()
    environment = airflow.environment | {"AIRFLOW__API__PORT": str(port)}
    with (airflow.folder / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [ROOT / "infra/airflow.sh"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: set(health(port).values()) == {"healthy"})
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def health(port: int) -> dict[str, str]:
    """What the home page shows of each component."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health") as answer:
            return {name: str(state["status"]) for name, state in json.load(answer).items()}
    except OSError:
        return {}
