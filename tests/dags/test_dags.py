"""The DAGs: what they import, the order of their tasks, and whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from lake.config import Settings, load_settings
from lake.project import load
from lake.run.graph import graph
from lake.store.meta import record_cut

from .conftest import DAGS, Airflow

# Parses every DAG file, whose DAG has the file's name, and tells its tasks and what came with it.
PARSE = """
import json, pathlib, sys
from importlib import import_module
modules = {file.stem: import_module(file.stem) for file in pathlib.Path(sys.argv[1]).glob("*.py")}
dags = {name: getattr(module, name)() for name, module in modules.items() if hasattr(module, name)}
print(json.dumps({
    "dags": {name: {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks} for name, dag in dags.items()},
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("airflow")
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(DAGS)}
    command = [sys.executable, "-c", PARSE, str(DAGS)]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_dags_parse_without_lake_and_without_spark(parsed):
    assert set(parsed["dags"]) == {"microbatch", "recompute"}
    assert not {"lake", "pyspark", "jobs", "deltalake", "great_expectations"} & set(parsed["modules"])


def test_the_graph_that_dags_read_is_the_projects(request):
    project = load(load_settings(request.config.rootpath))
    assert json.loads((DAGS / "graph.json").read_text()) == json.loads(json.dumps(graph(project).data())), (
        "tables have changed: lake graph --json >dags/graph.json"
    )


def test_tables_follow_their_inputs_and_wait_for_nothing_else(parsed):
    tables = {table["name"]: table for table in json.loads((DAGS / "graph.json").read_text())["tables"]}
    tasks = parsed["dags"]["microbatch"]
    assert tasks["cut"] == ["ingest"]
    for name, table in tables.items():
        parents = {f"tables.{each}" for each in table["inputs"] if each in tables}
        assert set(tasks[f"tables.{name}"]) == {"cut", *parents}
    assert {f"tables.{name}" for name in tables} <= set(tasks["check"])
    assert "check" in tasks["publish"]


def test_a_recomputation_proves_before_it_publishes(parsed):
    order = ["cut", "rebuild", "advance", "verify", "check", "publish"]
    tasks = parsed["dags"]["recompute"]
    assert set(tasks) == set(order)
    assert all(before in tasks[after] for before, after in pairwise(order))


@pytest.mark.parametrize(("exit_code", "told"), [(75, "AirflowException"), (1, "AirflowFailException")])
def test_only_what_may_pass_by_itself_is_tried_again(tmp_path, exit_code, told):
    lake = tmp_path / "lake"
    lake.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    lake.chmod(0o755)
    code = (
        f"import steps\nfrom pathlib import Path\nsteps.LAKE = Path({str(lake)!r})\n"
        "try:\n    steps.lake('status')\nexcept Exception as error:\n    print(type(error).__name__)"
    )
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(DAGS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == told


def test_the_micro_batch_publishes_one_cut_and_a_second_run_changes_nothing(airflow: Airflow):
    airflow.run("microbatch")
    tables = [table["name"] for table in airflow.lake("graph")["tables"]]
    status = airflow.lake("status")
    assert (status["cut"]["number"], status["edition"]["number"], status["edition"]["cut"]) == (1, 1, 1)
    first = airflow.events()
    assert sorted(first) == sorted(tables)
    assert [event["cut"] for events in first.values() for event in events] == [1] * len(tables)
    assert airflow.lake("sql", "select count(*) as n from customer_daily") != [{"n": 0}]

    airflow.run("microbatch")
    again = airflow.lake("status")
    assert (again["cut"]["number"], again["edition"]["number"]) == (1, 1)
    second = airflow.events()
    for table in tables:
        before, after = second[table]
        assert (after["version"], after["verb"]) == (before["version"], "none")


def test_a_cleared_task_works_at_the_cut_that_its_run_had(project: Settings):
    assert record_cut(project, {"orders": 1}, 0, label="microbatch one").number == 1
    assert record_cut(project, {"orders": 1}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 2}, 0, label="microbatch three").number == 2
    assert record_cut(project, {"orders": 3}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 3}, 0).number == 3
