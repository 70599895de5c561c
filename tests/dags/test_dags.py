"""The DAGs: what they import, the order of their tasks, and whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from lake.config import Settings, load_settings
from lake.graph import graph
from lake.project import load
from lake.store.ledger.cuts import record_cut
from lake.testing import Commands
from tests.servers.airflow import DAGS, Airflow, installed
from tests.serving import serving

# Parses every DAG file, whose DAG has the file's name, and tells its tasks and what came with it; then the name of the
# exception that each call raises where the command `lake` is a shell script, "" for none.
PROGRAM = """
import json, pathlib, sys
from importlib import import_module
modules = {file.stem: import_module(file.stem) for file in pathlib.Path(sys.argv[1]).glob("*.py")}
dags = {name: getattr(module, name)() for name, module in modules.items() if hasattr(module, name)}
told = {
    "dags": {name: {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks} for name, dag in dags.items()},
    "rules": {name: {task.task_id: task.trigger_rule for task in dag.tasks} for name, dag in dags.items()},
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "raised": {},
}
steps = modules["steps"]
steps.LAKE = pathlib.Path("lake").absolute()
for call, script in json.load(sys.stdin).items():
    steps.LAKE.write_text(f"#!/bin/sh\\n{script}\\n")
    steps.LAKE.chmod(0o755)
    try:
        eval(call)
        told["raised"][call] = ""
    except Exception as error:
        told["raised"][call] = type(error).__name__
print(json.dumps(told))
"""
CUT_9 = """echo '{"cut": {"number": 9}}'"""
CALLS = {
    "steps.lake('status')": "exit 75",
    "steps.lake('doctor')": "exit 1",
    "steps.must_be_newest(8)": CUT_9,
    "steps.must_be_newest(9)": CUT_9,
}


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program tells: one process for all, for Airflow takes seconds to import."""
    installed()
    home = tmp_path_factory.mktemp("airflow")
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(DAGS)}
    command, calls = [sys.executable, "-c", PROGRAM, str(DAGS)], json.dumps(CALLS)
    done = subprocess.run(command, env=environment, cwd=home, input=calls, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_dags_parse_without_lake_and_without_spark(parsed: Any) -> None:
    assert set(parsed["dags"]) == {"microbatch", "recompute", "backfill", "nightly"}
    assert not {"lake", "pyspark", "jobs", "deltalake", "great_expectations"} & set(parsed["modules"])


def test_the_graph_that_dags_read_is_the_projects(request: pytest.FixtureRequest) -> None:
    project = load(load_settings(request.config.rootpath))
    assert json.loads((DAGS / "graph.json").read_text()) == json.loads(json.dumps(graph(project).data())), (
        "tables have changed: lake graph --json >dags/graph.json"
    )


@pytest.mark.parametrize(
    ("dag", "before", "after"),
    [
        ("microbatch", ["ingest", "cut"], ["check", "publish"]),
        ("recompute", ["cut", "plan", "in_earnest"], ["verify", "check", "publish"]),
    ],
)
def test_tables_follow_their_inputs_and_wait_for_nothing_else(
    parsed: Any, dag: str, before: list[str], after: list[str]
) -> None:
    tables = {table["name"]: table for table in json.loads((DAGS / "graph.json").read_text())["tables"]}
    tasks = parsed["dags"][dag]
    assert set(tasks) == {*before, *after, *(f"tables.{name}" for name in tables)}
    assert all(one in tasks[other] for one, other in [*pairwise(before), *pairwise(after)])
    for name, table in tables.items():
        parents = {f"tables.{parent}" for parent in table["inputs"] if parent in tables}
        assert set(tasks[f"tables.{name}"]) == {"cut", before[-1], *parents}
    assert {f"tables.{name}" for name in tables} <= set(tasks[after[0]])


def test_a_table_that_was_not_chosen_holds_up_none_that_was(parsed: Any) -> None:
    rules = parsed["rules"]["recompute"]
    assert {rule for name, rule in rules.items() if name.startswith("tables.")} == {"none_failed"}
    assert rules["verify"] == "none_failed_min_one_success"


@pytest.mark.parametrize(
    ("dag", "order"), [("backfill", ["redo", "cut", "follow", "check", "publish"]), ("nightly", ["verify", "maintain"])]
)
def test_each_step_waits_for_the_one_before(parsed: Any, dag: str, order: list[str]) -> None:
    tasks = parsed["dags"][dag]
    assert set(tasks) == set(order)
    assert all(before in tasks[after] for before, after in pairwise(order))


def test_only_what_may_pass_by_itself_is_tried_again(parsed: Any) -> None:
    raised = parsed["raised"]
    assert raised["steps.lake('status')"] == "AirflowException"
    assert raised["steps.lake('doctor')"] == "AirflowFailException"


def test_an_older_run_leaves_checks_and_publishing_to_the_one_that_took_a_later_cut(parsed: Any) -> None:
    raised = parsed["raised"]
    assert raised["steps.must_be_newest(8)"] == "AirflowSkipException"
    assert raised["steps.must_be_newest(9)"] == ""


@pytest.mark.smoke
def test_a_micro_batch_leaves_one_published_cut(airflow: Airflow, commands: Commands) -> None:
    replace(airflow, server=commands.environment).run("microbatch")
    tables = [table["name"] for table in airflow.lake("graph")["tables"]]
    status = airflow.lake("status")
    assert (status["cut"]["number"], status["edition"]["number"], status["edition"]["cut"]) == (1, 1, 1)
    first = airflow.events()
    assert sorted(first) == sorted(tables)
    assert [event["cut"] for events in first.values() for event in events] == [1] * len(tables)
    assert airflow.lake("sql", "select count(*) as n from customer_daily") != [{"n": 0}]


def test_every_dag_leaves_one_published_cut_and_a_second_run_changes_nothing(airflow: Airflow) -> None:
    airflow.run("microbatch")
    airflow.run("microbatch")
    again = airflow.lake("status")
    assert (again["cut"]["number"], again["edition"]["number"]) == (1, 1)
    for before, after in airflow.events().values():
        assert (after["version"], after["verb"]) == (before["version"], "none")

    with serving(airflow.folder) as server:
        shared = replace(airflow, server={"SPARK_REMOTE": server.remote})
        states = shared.run("recompute", tables=["customer_daily"])
        assert (states["tables.current_order"], states["tables.customer_daily"]) == ("skipped", "success")
        assert set(shared.run("backfill", "2024-03-31", table="current_order").values()) == {"success"}
        assert set(shared.run("nightly").values()) == {"success"}
    third = airflow.events()["customer_daily"]
    assert [event["verb"] for event in third] == ["build", "none", "rebuild"]
    assert airflow.lake("status")["edition"]["cut"] == 1


def test_a_cleared_task_works_at_the_cut_that_its_run_had(project: Settings) -> None:
    assert record_cut(project, {"orders": 1}, 0, label="microbatch one").number == 1
    assert record_cut(project, {"orders": 1}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 2}, 0, label="microbatch three").number == 2
    assert record_cut(project, {"orders": 3}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 3}, 0).number == 3
