"""Runs in `lake.runs`: work and failures of commands, shown in the status until the same work succeeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake.testing import Commands, Lakehouse
from tests.processes import free_port
from tests.servers.webhook import SECRET, VARIABLE
from tests.shop import contract, declare, empty, job

LATEST = 'Latest("id", sequence="at")'
NEWEST = job("newest", LATEST, 'log("thing")')
BY_SPARK = job("newest", LATEST, 'log("thing")', returns="""rows.where("rlike('a', '(?i)a')")""")
NARROWER = job("newest", LATEST, 'log("thing")', returns='rows.select("id", "at")')
THING = contract("thing", {"id": "int", "size": "int?", "at": "timestamp"}, id=["id"], time="at")
Run = Callable[..., str]


@pytest.fixture
def lakehouse(tmp_path: Path) -> Lakehouse:
    settings = f'cold = "{tmp_path / "cold"}"\n'
    return declare(empty(tmp_path / "p", settings), THING, jobs={"newest": NEWEST}).land("thing", thing(1), thing(2))


@pytest.fixture
def run(lakehouse: Lakehouse, commands: Commands) -> Run:
    """Return a function that runs a command, asserts its exit `code`, and returns its output."""

    def run(*arguments: str, code: int = 0, remote: str | None = None) -> str:
        if remote is None:
            done = commands.lake(*arguments, at=lakehouse)
        else:
            done = commands.lake(*arguments, at=lakehouse, SPARK_REMOTE=remote)
        assert done.code == code, done.err
        return done.out

    return run


def thing(number: int, day: str = "2024-01-01") -> dict[str, object]:
    return {"id": number, "size": number, "at": f"{day}T00:00:00Z"}


def failed(run: Run) -> set[tuple[str, str]]:
    """Return the failures of the status, after comparing them with the metric."""
    found = {(one["verb"], one["subject"]) for one in json.loads(run("status", "--json"))["failed"]}
    run("status", "--fail-if", "failed", code=1 if found else 0)
    return found


@pytest.mark.long
def test_writing_command_records_a_run(lakehouse: Lakehouse, run: Run, tmp_path: Path) -> None:
    run("run")
    declare(lakehouse.source, jobs={"newest": NARROWER})
    run("run", code=2)
    assert ("advance", "newest") in failed(run)
    run("deploy", code=2)
    assert {("advance", "newest"), ("deploy", "edition")} <= failed(run)
    assert "nothing to deploy" not in run("deploy", "--yes")
    assert run("deploy").startswith("nothing to deploy: edition ")
    assert failed(run) == set()
    assert "definition has changed" not in run("status")
    run("publish", "--edition", "1")
    run("publish", "--resume")
    run("void", "thing", "--batch", "1", "--reason", "a test")
    lakehouse.land("thing", {"id": 3})
    run("ingest")
    run("quarantine", "replay", "thing")
    run("quarantine", "accept", "thing", "--reason", "a test")
    run("archive", "thing", "--through", "1")
    run("maintain")
    run("backup", str(tmp_path / "copy"))
    run("backup", str(tmp_path / "copy"), code=2)
    assert failed(run) == set()
    rows = json.loads(run("sql", "select verb, subject, outcome, error from lake.runs order by number", "--json"))
    runs = {(row["verb"], row["subject"], row["outcome"]) for row in rows}
    assert runs >= {
        ("ingest", "thing", "done"),
        ("advance", "newest", "failed"),
        ("deploy", "edition", "failed"),
        ("deploy", "edition", "done"),
        ("rollback", "edition", "done"),
        ("resume", "edition", "done"),
        ("void", "thing", "done"),
        ("replay", "thing", "done"),
        ("accept", "thing", "done"),
        ("archive", "thing", "done"),
        ("maintain", "warehouse", "done"),
        ("backup", "warehouse", "done"),
    }


def test_failed_build_is_shown_until_one_succeeds(lakehouse: Lakehouse, run: Run) -> None:
    declare(lakehouse.source, jobs={"newest": BY_SPARK})
    run("run", code=75, remote=f"sc://localhost:{free_port()}")
    assert failed(run) == {("advance", "newest")}
    assert "failed   advance of newest, " in run("status")
    run("run")
    assert failed(run) == set()


def test_run_reports_every_table_that_fails(lakehouse: Lakehouse, commands: Commands) -> None:
    """Tables derived from one that fails are not among them, nor is anything published."""
    failing = 'rows.selectExpr("id", "at", "1 div (id - {}) as share")'
    jobs = {
        name: job(name, LATEST, 'log("thing")', returns=failing.format(number)) for number, name in enumerate("abc")
    }
    declare(lakehouse.source, jobs={**jobs, "below": job("below", LATEST, "b")})
    done = commands.lake("run", at=lakehouse)
    assert done.code == 1
    assert done.err.count("its rows cannot be evaluated: ") == 2, done.err
    assert [name for name in (*jobs, "below") if f"{name}: its rows cannot be evaluated" in done.err] == ["b", "c"]
    assert json.loads(commands.lake("status", "--json", at=lakehouse).out)["edition"] is None


@pytest.mark.long
def test_alert_reports_a_failure_and_its_end(
    lakehouse: Lakehouse, run: Run, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(commands.environment, VARIABLE, SECRET)
    folder = lakehouse.source.path("alerts")
    folder.mkdir()
    about = f'url = "http://127.0.0.1:1/"\nsecret = "env:{VARIABLE}"\nattempts = 1\nmeasure = "failed"\n'
    (folder / "work.toml").write_text(about)
    declare(lakehouse.source, jobs={"newest": BY_SPARK})
    run("run", code=75, remote=f"sc://localhost:{free_port()}")
    assert "failed: advance of newest: " in run("alert", "--dry-run")
    run("alert", code=75)  # The receiver does not answer
    run("run")
    assert failed(run) == {("alert", "work")}
    assert "alert of work" not in run("alert", "--dry-run"), "an alert tells nothing of itself"
