"""DAGs: their imports, the order of their tasks, their logs, and complete runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lake.config import Settings, load_settings
from lake.ops.graph import graph
from lake.ops.scaffold import init
from lake.project.project import load
from lake.store.ledger.cuts import record_cut
from lake.testing import Commands
from tests.processes import until
from tests.servers.airflow import Airflow, installed, scheduling
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.serving import serving
from tests.shop import order

pytestmark = pytest.mark.slow

# Parses the DAGs of the folders named on stdin, as Airflow does, and prints their content; then the outcome of each
# call with a shell script as `lake`: the name of an exception or an exit code, whether Airflow would retry, and the
# log.
PROGRAM = """
import json, logging, pathlib, sys
from airflow.dag_processing.dagbag import DagBag
asked = json.load(sys.stdin)
dags, faults = {}, {}
for folder in asked["folders"]:
    bag = DagBag(folder)
    dags |= bag.dags
    faults |= bag.import_errors

def task(one):
    return {
        "after": sorted(one.upstream_task_ids), "rule": one.trigger_rule, "doc": one.doc_md,
        "inlets": [asset.name for asset in one.inlets], "outlets": [asset.name for asset in one.outlets],
    }

told = {
    "dags": {dag.dag_id: {one.task_id: task(one) for one in dag.tasks} for dag in dags.values()},
    "files": {dag.dag_id: dag.fileloc for dag in dags.values()},
    "assets": {a.name: [a.uri, a.group, a.extra] for d in dags.values() for t in d.tasks for a in t.inlets + t.outlets},
    "faults": faults,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "calls": {},
}
from lake_airflow import steps
from lake_airflow.command import OnlyUnavailable
from lake_airflow.project import Project

class Kept(logging.Handler):
    def emit(self, record):
        lines.append([record.levelname, record.getMessage()])

log = logging.getLogger("lake")
log.setLevel("INFO")
log.addHandler(Kept())
script = pathlib.Path("lake").absolute()
project = Project("shop", pathlib.Path(asked["folders"][0]).parent, lake=script)
for call, text in asked["calls"]:
    lines, end, again = [], "", None
    script.write_text(f"#!/bin/sh\\n{text}\\n")
    script.chmod(0o755)
    if not text:
        script.unlink()
    try:
        eval(call)
    except BaseException as error:
        end = error.code if isinstance(error, SystemExit) else type(error).__name__
        again = OnlyUnavailable().evaluate(error, 1, 5).action.value
    told["calls"][f"{call}: {text}"] = [end, again, lines]
print(json.dumps(told))
"""
CUT_9 = """echo '{"cut": {"number": 9}}'"""
BUSY, BROKEN = "echo 'lake: flight is being written' >&2; exit 75", "echo 'lake: no project here' >&2; exit 2"
STOPPED = r"""
printf 'check   flight: stop\nwarning flight: 3 rows are odd\nlake: the gate stopped: flight\n  fix: lake status\n' >&2
echo '{"error": {"what": "the gate stopped"}}'
exit 1"""
DIFFERS = """echo 'lake: not proved: flight' >&2; echo '{"tables": ["the rows"]}'; exit 1"""
STALE = """echo '{"streams": ["orders", "returns"], "tables": [{"name": "order_rank", "inputs": ["orders"]}]}'"""
REWORDED = r"""sed 's/"customer_daily": "/&Now: /' "$4/dags/graph.json" """
PARTLY = """echo 'lake: the gate stopped: flight' >&2; echo '{"edition": 3, "held": {"sales": "flight"}}'; exit 1"""
REGROUPED = r"""sed '$s/}$/, "groups": {"sales": ["current_order"]}}/' "$4/dags/graph.json" """
CALLS = (
    ("project.call('status')", BUSY),
    ("project.call('doctor')", BROKEN),
    ("project.call('check')", STOPPED),
    ("project.call('verify')", DIFFERS),
    ("project.call('ingest')", "kill -9 $$"),
    ("project.call('status')", ""),
    ("steps.must_be_newest(project, 8)", CUT_9),
    ("steps.must_be_newest(project, 9)", CUT_9),
    ("steps.must_be_of(project)", STALE),
    ("steps.must_be_of(project)", REWORDED),
    ("project.call('publish', partly='held')", PARTLY),
    ("project.call('publish', partly='held')", STOPPED),
    ("steps.must_be_of(project)", REGROUPED),
)


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three projects: a table of the second has the longest possible file name, and its DAGs an odd name. The third
    publishes by groups, and has sinks.
    """
    shop, bank, parted = (tmp_path_factory.mktemp("projects") / name for name in ("shop", "Bank of 1.5 €", "parted"))
    init(shop)
    init(bank)
    init(parted)
    more = {"groups": {"sales": ["current_order"]}, "sinks": {"crm": ["current_order", "gone"], "none": []}}
    grouped = json.loads((parted / "dags/graph.json").read_text()) | more
    (parted / "dags/graph.json").write_text(json.dumps(grouped))
    file = bank / "dags/graph.json"
    graph = json.loads(file.read_text())
    graph["tables"].append({"name": LONG, "layer": "gold", "kind": "View", "key": [], "inputs": ["customer_daily"]})
    file.write_text(json.dumps(graph))
    return [shop, bank, parted]


LONG = "a" * 252
"""The longest name of a table: its file is called so, and `.py`."""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory, projects: list[Path], request: pytest.FixtureRequest) -> Any:
    """Return the output of the program; one process for all, because Airflow takes seconds to import."""
    installed()
    home = tmp_path_factory.mktemp("airflow")
    spoilt = tmp_path_factory.mktemp("spoilt") / "shop"
    init(spoilt)
    (spoilt / "dags/graph.json").write_text('{"error": {"what": "no project here"}}')
    folders = [*(folder / "dags" for folder in projects), request.config.rootpath / "dags", spoilt / "dags"]
    asked = json.dumps({"folders": list(map(str, folders)), "calls": CALLS})
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=home, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_dags_parse_without_lake_and_spark(parsed: Any) -> None:
    assert not {"lake", "pyspark", "jobs", "deltalake", "great_expectations"} & set(parsed["modules"])


@pytest.mark.long
def test_airflow_runs_several_projects(parsed: Any, projects: list[Path]) -> None:
    names = ("flights", "shop", "Bank_of_1_5_", "parted")
    dags = ("backfill", "microbatch", "nightly", "recompute")
    assert set(parsed["dags"]) == {f"{name}.{dag}" for name in names for dag in dags} | {"parted.deliver"}
    assert parsed["files"]["Bank_of_1_5_.nightly"] == str(projects[1] / "dags/dags.py")
    layers = {(name, layer) for name in names for layer in ("log", "silver", "gold")}
    assert {tuple(name.split("/")[:2]) for name in parsed["assets"]} == layers | {("parted", "sink")}


def test_invalid_graph_is_reported_as_an_import_error(parsed: Any) -> None:
    ((file, fault),) = parsed["faults"].items()
    assert Path(file).parts[-3:] == ("shop", "dags", "dags.py")
    assert "dags/graph.json is not the graph of a project" in fault
    assert "fix: lake graph --json > graph.json && mv graph.json dags/graph.json" in fault


def test_graph_of_the_dags_equals_that_of_the_project(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    now = json.loads(json.dumps(graph(load(load_settings(root))).data()))
    assert json.loads((root / "dags/graph.json").read_text()) == now, (
        "tables have changed: lake graph --json > graph.json && mv graph.json dags/graph.json"
    )


def tables(folder: Path) -> dict[str, Any]:
    return {table["name"]: table for table in json.loads((folder / "dags/graph.json").read_text())["tables"]}


@pytest.mark.parametrize(
    ("dag", "before", "after"),
    [
        ("microbatch", ["ingest", "cut"], ["check", "publish"]),
        ("recompute", ["cut", "plan", "in_earnest"], ["verify", "check", "publish"]),
    ],
)
def test_table_tasks_follow_their_inputs_only(
    parsed: Any, dag: str, before: list[str], after: list[str], request: pytest.FixtureRequest
) -> None:
    known = tables(request.config.rootpath)
    tasks = {name: set(task["after"]) for name, task in parsed["dags"][f"flights.{dag}"].items()}
    watches = {"ingest_failed"} if dag == "microbatch" else set()
    assert set(tasks) == {*before, *after, *watches, *(f"tables.{name}" for name in known)}
    assert all(one in tasks[other] for one, other in [*pairwise(before), *pairwise(after)])
    for name, table in known.items():
        parents = {f"tables.{parent}" for parent in table["inputs"] if parent in known}
        assert tasks[f"tables.{name}"] == {"cut", before[-1], *parents}
    assert {f"tables.{name}" for name in known} <= tasks[after[0]]


def test_failed_stream_blocks_no_table_and_fails_the_run(parsed: Any) -> None:
    tasks = parsed["dags"]["flights.microbatch"]
    assert (tasks["cut"]["after"], tasks["cut"]["rule"]) == (["ingest"], "all_done")
    assert (tasks["ingest_failed"]["after"], tasks["ingest_failed"]["rule"]) == (["ingest"], "one_failed")
    assert not [name for name, task in tasks.items() if "ingest_failed" in task["after"]]


def test_blocked_group_blocks_no_other_and_fails_the_run_after_publication(parsed: Any) -> None:
    tasks = parsed["dags"]["parted.microbatch"]
    assert {name: tasks[name]["rule"] for name in ("check", "publish", "group_held")} == {
        "check": "all_done_min_one_success",
        "publish": "all_done_min_one_success",
        "group_held": "all_success",
    }
    assert tasks["group_held"]["after"] == ["publish"]
    assert {parsed["dags"]["parted.recompute"][name]["rule"] for name in ("check", "publish")} == {"all_success"}
    assert parsed["dags"]["shop.microbatch"]["publish"]["rule"] == "all_success"
    call = "project.call('publish', partly='held'): {}"
    assert parsed["calls"][call.format(PARTLY)] == ["", None, [["ERROR", "lake: the gate stopped: flight"]]]
    assert parsed["calls"][call.format(STOPPED)][0] == 1


def test_project_with_sinks_has_a_dag_with_a_task_for_each(parsed: Any) -> None:
    assert "shop.deliver" not in parsed["dags"]
    tasks = parsed["dags"]["parted.deliver"]
    assert {name: task["after"] for name, task in tasks.items()} == {"crm": [], "none": []}
    assert tasks["crm"]["inlets"] == ["parted/silver/current_order"]
    assert tasks["crm"]["outlets"] == ["parted/sink/crm"]


def test_graph_with_other_groups_is_stale(parsed: Any) -> None:
    end, _, ((_, what), _) = parsed["calls"][f"steps.must_be_of(project): {REGROUPED}"]
    assert (end, what) == (2, "dags/graph.json is stale: tables are published in other groups")


def test_table_name_may_be_as_long_as_a_file_name(parsed: Any) -> None:
    tasks = parsed["dags"]["Bank_of_1_5_.microbatch"]
    (long,) = (name for name in tasks if "aaa" in name)
    assert len(long) <= 250
    assert tasks[long]["after"] == ["cut", "tables.customer_daily"]


def test_lineage_lists_streams_and_tables_with_their_descriptions(parsed: Any) -> None:
    tasks = parsed["dags"]["shop.microbatch"]
    assert {name: (task["inlets"], task["outlets"]) for name, task in tasks.items()} == {
        "ingest": ([], ["shop/log/orders"]),
        "cut": ([], []),
        "ingest_failed": ([], []),
        "tables.current_order": (["shop/log/orders"], []),
        "tables.customer_daily": (["shop/silver/current_order"], []),
        "check": ([], []),
        "publish": (["shop/log/orders"], ["shop/silver/current_order", "shop/gold/customer_daily"]),
    }
    assert parsed["assets"]["shop/silver/current_order"] == [
        "lake://shop/silver/current_order",
        "shop",
        {"description": "An order as it stands: its newest change."},
    ]
    assert tasks["tables.current_order"]["doc"] == "An order as it stands: its newest change."


def test_unselected_table_does_not_block_selected_ones(parsed: Any) -> None:
    rules = {name: task["rule"] for name, task in parsed["dags"]["flights.recompute"].items()}
    assert {rule for name, rule in rules.items() if name.startswith("tables.")} == {"none_failed"}
    assert rules["verify"] == "none_failed_min_one_success"


@pytest.mark.parametrize(
    ("dag", "order"), [("backfill", ["redo", "cut", "follow", "check", "publish"]), ("nightly", ["verify", "maintain"])]
)
def test_step_waits_for_the_previous_step(parsed: Any, dag: str, order: list[str]) -> None:
    tasks = parsed["dags"][f"flights.{dag}"]
    assert set(tasks) == set(order)
    assert all(before in tasks[after]["after"] for before, after in pairwise(order))


FAULTS: Mapping[tuple[str, str], tuple[int, str, list[list[str]]]] = {
    ("project.call('status')", BUSY): (75, "default", [["ERROR", "lake: flight is being written"]]),
    ("project.call('doctor')", BROKEN): (2, "fail", [["ERROR", "lake: no project here"]]),
    ("project.call('check')", STOPPED): (
        1,
        "fail",
        [
            ["INFO", "check   flight: stop"],
            ["WARNING", "warning flight: 3 rows are odd"],
            ["ERROR", "lake: the gate stopped: flight"],
            ["ERROR", "  fix: lake status"],
        ],
    ),
    ("project.call('verify')", DIFFERS): (
        1,
        "fail",
        [["ERROR", "lake: not proved: flight"], ["INFO", '{"tables": ["the rows"]}\n']],
    ),
    ("project.call('ingest')", "kill -9 $$"): (
        2,
        "fail",
        [["ERROR", "`lake ingest` was killed by SIGKILL"], ["ERROR", "  fix: see how much memory the worker has"]],
    ),
    ("steps.must_be_of(project)", STALE): (
        2,
        "fail",
        [
            [
                "ERROR",
                "dags/graph.json is stale: stream returns is new; table order_rank is new; "
                "table current_order is gone; table customer_daily is gone",
            ],
            ["ERROR", "  fix: lake graph --json > graph.json && mv graph.json dags/graph.json, then run the DAG again"],
        ],
    ),
}


def test_changed_description_is_reported_and_blocks_no_run(parsed: Any) -> None:
    end, _, lines = parsed["calls"][f"steps.must_be_of(project): {REWORDED}"]
    what = "dags/graph.json has old descriptions of customer_daily, and so have the assets"
    fix = "  fix: lake graph --json > graph.json && mv graph.json dags/graph.json"
    assert (end, lines) == ("", [["WARNING", what], ["WARNING", fix]])


@pytest.mark.parametrize("call", FAULTS, ids=lambda call: call[0])
def test_fault_is_logged_in_its_own_lines_and_only_temporary_faults_are_retried(
    parsed: Any, call: tuple[str, str]
) -> None:
    assert parsed["calls"][": ".join(call)] == list(FAULTS[call])


def test_missing_command_is_named(parsed: Any) -> None:
    end, again, ((level, what), (_, fix)) = parsed["calls"]["project.call('status'): "]
    assert (end, again, level) == (2, "fail", "ERROR")
    assert what.endswith("/lake cannot be started: No such file or directory")
    assert fix == '  fix: name the command: dags(…, lake="/path/to/bin/lake")'


def test_older_run_leaves_checks_and_publication_to_the_run_of_a_later_cut(parsed: Any) -> None:
    assert parsed["calls"][f"steps.must_be_newest(project, 8): {CUT_9}"][0] == "AirflowSkipException"
    assert parsed["calls"][f"steps.must_be_newest(project, 9): {CUT_9}"][0] == ""


@pytest.mark.smoke
def test_airflow_runs_a_step_of_a_project(airflow: Airflow) -> None:
    airflow.call("airflow", "tasks", "test", "shop.microbatch", "cut")
    assert airflow.lake("status")["cut"]["number"] == 1


def test_micro_batch_publishes_one_cut(airflow: Airflow, commands: Commands) -> None:
    replace(airflow, server=commands.environment).run("microbatch")
    status = airflow.lake("status")
    assert (status["cut"]["number"], status["edition"]["number"], status["edition"]["cut"]) == (1, 1, 1)
    (stream,), (orders,), (days,) = (airflow.events()[f"shop/{name}"] for name in ASSETS)
    assert (stream["task"], stream["token"], stream["accepted"]) == ("ingest", "orders@1", 6)
    assert orders == {**PUBLISHED, "version": orders["version"], "inserted": 4}
    assert days == {**PUBLISHED, "version": days["version"], "inserted": 3}


def test_micro_batch_ingests_a_topic(airflow: Airflow, commands: Commands, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, *(json.dumps(order(number)) for number in (71, 72, 73)))
    (airflow.folder / "sources").mkdir()
    (airflow.folder / "sources/till.toml").write_text(
        f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\n[streams]\norders = {{ topic = "{topic}" }}\n'
    )
    states = replace(airflow, server=commands.environment).run("microbatch")
    assert {states[task] for task in ("ingest", "cut", "check", "publish")} == {"success"}, states
    [landed] = airflow.events()["shop/log/orders"]
    assert (landed["token"], landed["accepted"]) == ("orders@2", 6 + 3)
    [source] = airflow.lake("status")["sources"]
    assert (source["delivery"], source["events"], kafka.told("headwater", topic)) == (1, 0, {0: 3})
    assert airflow.lake("sql", "select status from current_order where order_id = 72") == [{"status": "placed"}]


def test_deliver_dag_fills_a_sink(airflow: Airflow, commands: Commands, postgres: Postgres) -> None:
    shared = replace(airflow, server={**commands.environment, "CRM_URL": postgres.database()})
    (airflow.folder / "sinks").mkdir()
    (airflow.folder / "sinks/crm.toml").write_text(
        'kind = "postgres"\nurl = "env:CRM_URL"\n[tables.customer_daily]\n[tables.current_order]\n'
    )
    (airflow.folder / "dags/graph.json").write_text(json.dumps(shared.lake("graph")))
    shared.run("microbatch")
    assert shared.run("deliver") == {"crm": "success"}
    assert shared.run("deliver") == {"crm": "success"}
    [filled] = airflow.events()["shop/sink/crm"]
    assert (filled["task"], filled["edition"], filled["cut"]) == ("crm", 1, 1)
    assert {table["verdict"] for table in shared.lake("verify", "--sink", "crm")["tables"]} == {"identical"}


ASSETS = ("log/orders", "silver/current_order", "gold/customer_daily")
PUBLISHED = {"task": "publish", "edition": 1, "cut": 1, "inserted": 0, "updated": 0, "deleted": 0}
LATE = {
    "order_id": 2,
    "customer": "grace",
    "status": "paid",
    "amount": "250.00",
    "placed_at": "2024-03-30T10:40:00Z",
    "changed_at": "2024-03-30T11:30:00Z",
}


def test_failed_stream_does_not_block_another(airflow: Airflow, commands: Commands) -> None:
    shared = replace(airflow, server=commands.environment)
    (airflow.folder / "sources").mkdir()
    (airflow.folder / "sources/away.toml").write_text('kind = "fax"')
    done = shared.start("airflow", "dags", "test", "shop.microbatch")
    assert done.returncode != 0 or "state=failed" in done.stdout + done.stderr, done.stdout[-3000:]
    assert "unknown kind 'fax'" in done.stdout + done.stderr
    assert airflow.lake("status")["edition"]["number"] == 1


def test_assets_are_updated_after_the_gate_only_if_rows_changed(airflow: Airflow, commands: Commands) -> None:
    shared = replace(airflow, server=commands.environment)
    shared.run("microbatch")
    shared.run("microbatch")
    assert airflow.lake("status")["edition"]["number"] == 1
    assert {name: len(events) for name, events in airflow.events().items()} == {f"shop/{name}": 1 for name in ASSETS}

    landing = airflow.folder / "landing/orders"
    (landing / "superseded.jsonl").write_text(json.dumps(LATE))
    shared.run("microbatch")
    assert airflow.lake("status")["edition"]["number"] == 2
    assert [len(airflow.events()[f"shop/{name}"]) for name in ASSETS] == [2, 1, 1]

    stop = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 2}, "severity": "stop"}
    (airflow.folder / "quality/customer_daily.json").write_text(json.dumps({"expectations": [stop]}))
    (landing / "new.jsonl").write_text(json.dumps(LATE | {"order_id": 9, "changed_at": "2024-04-02T00:00:00Z"}))
    done = shared.start("airflow", "dags", "test", "shop.microbatch")
    assert done.returncode != 0
    states = shared.states()
    assert (states["check"], states["publish"]) == ("failed", "upstream_failed")
    assert [len(airflow.events()[f"shop/{name}"]) for name in ASSETS] == [3, 1, 1]
    assert "Traceback" not in done.stdout + done.stderr


def test_run_publishes_unblocked_groups_and_fails(airflow: Airflow, commands: Commands) -> None:
    shared = replace(airflow, server=commands.environment)
    with (airflow.folder / "pyproject.toml").open("a") as file:
        file.write('[tool.lake.publish]\ngroups = {orders = ["current_order"]}\n')
    (airflow.folder / "dags/graph.json").write_text(json.dumps(airflow.lake("graph")))
    stop = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 3}, "severity": "stop"}
    (airflow.folder / "quality/customer_daily.json").write_text(json.dumps({"expectations": [stop]}))
    shared.run("microbatch")
    new = LATE | {"order_id": 9, "customer": "eve", "changed_at": "2024-04-02T00:00:00Z"}
    (airflow.folder / "landing/orders/new.jsonl").write_text(json.dumps(new))
    done = shared.start("airflow", "dags", "test", "shop.microbatch")
    assert done.returncode != 0
    states = shared.states()
    assert {task: states[task] for task in ("check", "publish", "group_held")} == {
        "check": "success",
        "publish": "success",
        "group_held": "failed",
    }
    assert "held: default: customer_daily: " in done.stdout + done.stderr
    assert [len(airflow.events()[f"shop/{name}"]) for name in ASSETS] == [2, 2, 1]
    assert [group["cut"] for group in airflow.lake("status")["groups"]] == [2, 1]


def test_dags_publish_one_cut_and_a_second_run_changes_nothing(airflow: Airflow) -> None:
    airflow.run("microbatch")
    first = airflow.events()
    with serving(airflow.folder) as server:
        shared = replace(airflow, server={"SPARK_REMOTE": server.remote})
        states = shared.run("recompute", tables=["customer_daily"])
        assert (states["tables.current_order"], states["tables.customer_daily"]) == ("skipped", "success")
        assert set(shared.run("backfill", "2024-03-31", table="current_order").values()) == {"success"}
        assert set(shared.run("nightly").values()) == {"success"}
    assert airflow.events() == first
    assert airflow.lake("status")["edition"]["cut"] == 1


def test_scheduler_backfills_day_by_day(airflow: Airflow, commands: Commands) -> None:
    shared = replace(airflow, server=commands.environment)
    shared.call("lake", "run")
    with scheduling(shared):
        until(lambda: ("shop.backfill",) in airflow.query("SELECT dag_id FROM dag"))
        shared.call("airflow", "dags", "unpause", "shop.backfill")
        days = ("--from-date", "2024-03-30", "--to-date", "2024-03-31", "--max-active-runs", "1")
        conf = json.dumps({"table": "current_order"})
        shared.call("airflow", "backfill", "create", "--dag-id", "shop.backfill", *days, "--dag-run-conf", conf)
        runs = "SELECT state FROM dag_run WHERE run_type = 'backfill'"
        until(lambda: airflow.query(runs) == [("success",)] * 2)
    said = airflow.logged("backfill", "redo")
    assert ("info", "downstream of current_order: customer_daily") in said
    assert {level for level, _ in said} <= {"info", "debug"}, said
    edition = airflow.lake("status")["edition"]
    assert (edition["number"], edition["cut"]) == (3, 1), "a commit a day, and an edition of each"
    assert airflow.events() == {}, "in which no row has changed"


def test_scheduler_logs_a_stopped_gate_in_its_own_lines_and_tries_once(airflow: Airflow, commands: Commands) -> None:
    stop = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 1}, "severity": "stop"}
    (airflow.folder / "quality/customer_daily.json").write_text(json.dumps({"expectations": [stop]}))
    shared = replace(airflow, server=commands.environment)
    with scheduling(shared):
        until(lambda: ("shop.microbatch",) in airflow.query("SELECT dag_id FROM dag"))
        shared.call("airflow", "dags", "unpause", "shop.microbatch")
        until(lambda: ("failed",) in airflow.query("SELECT state FROM dag_run"))
    tasks = dict(airflow.query("SELECT task_id, state FROM task_instance WHERE state != 'success'"))
    assert tasks == {"ingest_failed": "skipped", "check": "failed", "publish": "upstream_failed"}
    assert airflow.query("SELECT try_number FROM task_instance WHERE task_id = 'check'") == [(1,)]
    said = airflow.logged("microbatch", "check")
    what, fix, ended = (text for level, text in said if level not in {"info", "debug"})
    failed = "expect_table_row_count_to_be_between failed: expected max_value 1, found 3"
    assert what.startswith(f"lake: customer_daily: {failed} ("), said
    assert (fix.startswith("  fix: "), ended) == (True, "Task exited"), said
    (log,) = airflow.logs("microbatch", "check")
    assert not re.search("Traceback|error_detail", log.read_text()), "one try, and no stack trace"


def test_cleared_task_uses_the_cut_of_its_run(project: Settings) -> None:
    assert record_cut(project, {"orders": 1}, 0, label="microbatch one").number == 1
    assert record_cut(project, {"orders": 1}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 2}, 0, label="microbatch three").number == 2
    assert record_cut(project, {"orders": 3}, 0, label="microbatch two").number == 1
    assert record_cut(project, {"orders": 3}, 0).number == 3
