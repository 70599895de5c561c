"""One Spark Connect server for every command: its tables of all kinds equal those of an embedded session."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from lake.config import load_settings
from lake.engine.verify import verify_all
from lake.ops.scaffold import init
from lake.project.project import load
from lake.testing import Commands, Lakehouse
from tests.processes import LOOPBACK, PATIENCE, free_port, listening, until
from tests.serving import LAKE, SHORT_LIVED, SMALL, serving

HEAD = "from datetime import timedelta\nfrom lake import *\nfrom jobs.silver.current_order import current_order\n"
PAST = HEAD + "from jobs.silver.order_past import order_past\n"

JOBS = {
    "silver/order_first": """
@table(First("customer", sequence="changed_at"), log("orders"))
def order_first(orders):
    '''A customer's first order.'''
    return orders.select("customer", "order_id", "changed_at")
""",
    "silver/order_past": """
@table(History("order_id", sequence="changed_at", track="status"), log("orders"))
def order_past(orders):
    '''What an order's status was, and when.'''
    return orders.select("order_id", "status", "changed_at")
""",
    "silver/order_book": """
LARGE = 100

def large(order):
    return order["amount"] > LARGE

def step(book, order):
    if order["status"] == "shipped":
        return Refusal("nothing is shipped here")
    return {"orders": book["orders"] + 1, "large": book["large"] + large(order)}

@table(
    Fold("customer", sequence=("changed_at", "order_id"), state="orders int, large int",
              start={"orders": 0, "large": 0}, step=step),
    log("orders"),
)
def order_book(orders):
    '''A customer's changes of orders, counted by a function in Python.'''
    return orders.select("customer", "order_id", "changed_at", "status", "amount")
""",
    "silver/order_change": """
@table(Enrich(("order_id", "changed_at"), AsOf("order_id"), time="changed_at"),
            log("orders"), order_past)
def order_change(orders, past):
    '''A change with the version of its order that it began.'''
    return (orders.select("order_id", "changed_at", "amount"),
            past.selectExpr("order_id", "valid_from", "valid_to", "version_id as version"))
""",
    "gold/order_pair": """
@table(Join("customer", left="order_id", right="other_id", within=timedelta(days=1),
                      times=("placed_at", "other_at")), current_order, current_order)
def order_pair(orders, others):
    '''Two orders of a customer within a day.'''
    return (orders.select("customer", "order_id", "placed_at"),
            others.selectExpr("customer", "order_id as other_id", "placed_at as other_at"))
""",
    "gold/order_run": """
def settled(order, _):
    return order["status"] != "cancelled"

@table(Pattern("customer", sequence=("changed_at", "order_id"), steps=[Step("kept", settled, times="+")],
                         measures={"changes": Count(), "paid": Sum("amount")}), log("orders"))
def order_run(orders):
    '''Changes of a customer's orders between cancellations.'''
    return orders.select("customer", "order_id", "changed_at", "status", "amount")
""",
    "gold/order_rank": """
@table(View(key=(), identity="customer"), current_order)
def order_rank(orders):
    '''Customers by what they ordered.'''
    return orders.sparkSession.sql(
        "select customer, row_number() over (order by sum(amount) desc, customer) as rank from {o} group by customer",
        o=orders)
""",
}

SLOW = """
@table(View(key=(), identity="n"), log("orders"))
def order_slow(orders):
    '''What takes for ever.'''
    query = "select count(*) as n from range(1000000000000000) r join {o} where r.id % 7 = 3"
    return orders.sparkSession.sql(query, o=orders)
"""


@dataclass(frozen=True)
class Client:
    """Commands of `lake` in a project, each a process, all with one server. Commands that are waited for are forks;
    commands that are signalled are started as by a user.
    """

    project: Path
    remote: str
    forks: Commands

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [LAKE, *arguments, "--json", "--project", self.project],
            env={**os.environ, "SPARK_REMOTE": self.remote, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, said: str = "", code: int = 0, **environment: Any) -> Any:
        """Return the answer of a command that must end with `code` and print `said`."""
        house = Lakehouse(self.project, self.project / ".lake")
        house.settings = house.source
        done = self.forks.lake(*arguments, "--json", at=house, **environment)
        assert (done.code, said in done.err) == (code, True), done.out + done.err
        return json.loads(done.out) if code == 0 else None


FEW = ("silver/order_past", "silver/order_change", "gold/order_rank")


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a project with a table of every kind, or of the requested ones; all its work is Spark's."""
    project = tmp_path / "shop"
    init(project)
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace("[tool.lake]\n", "[tool.lake]\nin_process_rows = 0\n"))
    for name in getattr(request, "param", JOBS):
        job = JOBS[name]
        (project / "jobs" / f"{name}.py").write_text((PAST if "order_past)" in job else HEAD) + job)
    return project


@pytest.mark.parametrize("listens", [False, pytest.param(True, marks=pytest.mark.long)])
def test_probe_fails_when_no_server_answers(tmp_path: Path, listens: bool) -> None:
    init(tmp_path / "shop")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        other.listen() if listens else other.close()
        command: list[str | Path] = [LAKE, "serve", "ready", "--port", str(port), "--project", tmp_path / "shop"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, "Traceback" in done.stderr) == (75, False), done.stderr


def changes(table: dict[str, Any]) -> int:
    return int(table["inserted"] + table["updated"] + table["deleted"])


@pytest.mark.long
@pytest.mark.parametrize("shop", [FEW, tuple(JOBS)], ids=["few kinds", "every kind"], indirect=True)
def test_tables_of_a_connect_server_equal_those_of_an_embedded_session(shop: Path, spark: SparkSession) -> None:
    with serving(shop, SMALL) as server, Commands(server.remote) as forks:
        lake = Client(shop, server.remote, forks)
        assert lake.call("serve", "ready", "--port", server.remote.rpartition(":")[2])["spark"] == version("pyspark")
        assert {table["verb"] for table in lake.call("run")["tables"]} == {"build"}
        a_late_event(lake)
        two_at_once(lake)
        assert {table["verdict"] for table in lake.call("verify")["tables"]} == {"identical"}
        assert not any(changes(table) for table in lake.call("rebuild", "order_past", "order_rank")["tables"])
        embedded_agrees(shop, spark)
        only_with_the_token(lake)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE) == 0
        lake.call("verify", code=75, said="no Spark Connect server responds")


PATIENT = {"spark.connect.execute.manager.detachedTimeout": "1h"}
"""A server that does not itself end what nobody waits for."""


@pytest.mark.long
@pytest.mark.parametrize("shop", [FEW], ids=["few kinds"], indirect=True)
@pytest.mark.parametrize("conf", [{}, PATIENT], ids=["killed", "signalled"])
def test_terminated_command_leaves_no_job_on_the_server(shop: Path, conf: dict[str, str]) -> None:
    ui = free_port()
    conf = {"spark.ui.enabled": "true", "spark.ui.port": str(ui), **conf}
    with serving(shop, SMALL | {"LAKE_SPARK__CONF": json.dumps(conf)}) as server, Commands(server.remote) as forks:
        lake = Client(shop, server.remote, forks)
        lake.call("run")
        job = shop / "jobs/gold/order_slow.py"
        job.write_text(HEAD + SLOW)
        signals = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))
        for number, code in signals if PATIENT.keys() <= conf.keys() else ((signal.SIGKILL, -9),):
            assert "Traceback" not in end_by_signal(lake, ui, number, code)
            until(lambda: not running(ui))


LOOK = """
import sys, json
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in sys.argv[2:]], default=str))
"""
PEEKS = """
@table(View(key=(), identity="customer"), current_order)
def order_peek(orders):
    '''What reads a table that is no input of it.'''
    return orders.sparkSession.sql("select customer, amount from gold.customer_daily")
"""


@pytest.mark.long
@pytest.mark.parametrize("shop", [FEW], ids=["few kinds"], indirect=True)
def test_connect_client_reads_the_edition_by_table_name(shop: Path) -> None:
    with serving(shop, SHORT_LIVED) as server, Commands(server.remote) as forks:
        lake = Client(shop, server.remote, forks)
        assert query_server(lake, "show databases", "show tables in gold") == [[["default"], ["gold"], ["silver"]], []]
        lake.call("run")
        until(lambda: len(query_server(lake, "show tables")[0]) == 2 + len(FEW))
        named, rows, described = query_server(
            lake, "show tables in gold", "select count(*) from gold.customer_daily", "describe silver.current_order"
        )
        assert sorted(row[1] for row in named) == ["customer_daily", "order_rank"]
        assert rows == [[3]]
        assert ["amount", "decimal(10,2)", "what it costs [GBP]"] in described
        assert not any(name.startswith("_") for name, *_ in described)
        event = {"order_id": 9, "customer": "new", "status": "placed", "amount": "1.00"}
        times = dict.fromkeys(("placed_at", "changed_at"), "2024-04-02T10:40:00Z")
        (lake.project / "new.jsonl").write_text(json.dumps(event | times))
        lake.call("append", "orders", str(lake.project / "new.jsonl"))
        lake.call("run")
        until(lambda: query_server(lake, "select count(*) from customer_daily") == [[[4]]])
        (lake.project / "jobs/gold/order_peek.py").write_text(HEAD + PEEKS)
        lake.call("run", code=2, said="reads gold.customer_daily, which is not one of its inputs")


def query_server(lake: Client, *queries: str) -> list[Any]:
    """Return the answers of the server to a program without Headwater."""
    token = (lake.project / ".lake/spark/connect.token").read_text()
    done = subprocess.run(
        [LAKE.with_name("python"), "-c", LOOK, lake.remote, *queries],
        env=os.environ | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: list[Any] = json.loads(done.stdout)
    return rows


def a_late_event(lake: Client) -> None:
    """Land an event that splits a period of one table, which Spark merges; other tables stay behind."""
    event = {"order_id": 2, "customer": "grace", "status": "shipped", "amount": "250.00"}
    times = {"placed_at": "2024-03-30T10:40:00Z", "changed_at": "2024-03-31T07:30:00Z"}
    (lake.project / "late.jsonl").write_text(json.dumps(event | times))
    assert lake.call("append", "orders", str(lake.project / "late.jsonl"))["token"] == "orders@2"
    lake.call("cut")
    (past,) = lake.call("advance", "order_past", LAKE_IN_PROCESS_ROWS="0")["tables"]
    assert (past["inserted"], past["updated"]) == (1, 1)


def two_at_once(lake: Client) -> None:
    """Run two cycles at once: either may fail with exit code 75, and neither leaves a wrong table."""
    with lake.start("run") as one, lake.start("run") as other:
        told = [command.communicate()[1] for command in (one, other)]
    assert {one.returncode, other.returncode} <= {0, 75}, told
    assert 0 in {one.returncode, other.returncode}, told


def embedded_agrees(shop: Path, spark: SparkSession) -> None:
    verdicts = verify_all(lambda: spark, load(load_settings(shop)), on_progress=lambda _: None)
    assert {each.verdict for each in verdicts} == {"identical"}, verdicts


def end_by_signal(lake: Client, ui: int, number: signal.Signals, code: int) -> str:
    """Return the output of a command ended by a signal while the server works for it."""
    with lake.start("advance", "order_slow") as command:
        try:
            until(lasts(ui))
            command.send_signal(number)
            err = command.communicate(timeout=PATIENCE)[1]
        finally:
            command.kill()
    assert command.returncode == code, err
    return err


def running(ui: int) -> set[int]:
    """Return the running jobs of the server."""
    (application,) = json.load(urlopen(f"http://127.0.0.1:{ui}/api/v1/applications"))
    jobs = f"http://127.0.0.1:{ui}/api/v1/applications/{application['id']}/jobs?status=running"
    return {job["jobId"] for job in json.load(urlopen(jobs))}


def lasts(ui: int) -> Callable[[], bool]:
    """Return a condition that is true after one job has run at twenty looks."""
    looks: list[set[int]] = []

    def look() -> bool:
        looks.append(running(ui))
        return len(looks) >= 20 and bool(set.intersection(*looks[-20:]))

    return look


def only_with_the_token(lake: Client) -> None:
    token = lake.project / ".lake/spark/connect.token"
    assert token.stat().st_mode & 0o077 == 0
    commands = subprocess.run(["ps", "-A", "-ww", "-o", "pid,args"], check=True, capture_output=True, text=True).stdout
    [jvm] = (line for line in commands.splitlines() if "org.apache.spark" in line and str(lake.project) in line)
    assert token.read_text() not in commands
    files = (file for file in (lake.project / ".lake").rglob("*") if file.is_file() and file != token)
    assert [file for file in files if token.read_bytes() in file.read_bytes()] == []
    assert listening(int(jvm.split()[0])) <= LOOPBACK
    lake.call("rebuild", "--all", code=2, said="not accept this token", SPARK_CONNECT_AUTHENTICATE_TOKEN="guessed")
