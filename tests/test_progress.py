"""Progress of work: at a terminal, in a pipe, as JSON."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pty import openpty
from typing import Any

import pytest
from rich.console import Console

from lake import cli, progress
from lake.cli.stderr import SHOWN_AT_ONCE, JsonProgress, LineProgress, LiveProgress, coloured, remaining_note
from lake.config import Settings
from lake.engine import integrity
from lake.ops.scaffold import init
from lake.progress import ProgressStep, Watcher, step
from lake.testing import Commands
from tests.processes import free_port
from tests.serving import LAKE
from tests.shop import new_shop, order
from tests.warehouse import published

SLOW_JAVA = """#!/bin/sh
[ "$1" = -version ] && exec echo 'openjdk version "17.0.1"' >&2
exec sleep 10
"""
"""A Java that comes to nothing."""


@pytest.fixture(autouse=True)
def _nobody_watches_afterwards() -> object:
    yield
    progress.watch(Watcher())


IMPORTED = """
import os, sys
print("imported", end="", file=sys.stderr, flush=True)
os._exit(3)
"""
"""A PySpark that ends whoever imports it."""
IN_SPARK = (
    "advance",
    "append orders -",
    "backfill current_order --from 2024-03-30 --to 2024-03-31",
    "check",
    "deploy",
    "diff current_order --from-edition 1 --to-edition 2",
    "explain current_order order_id=1",
    "forget orders subject=ada",
    "ingest",
    "maintain",
    "plan",
    "publish",
    "quarantine accept orders --reason lost",
    "quarantine replay",
    "rebuild --all",
    "run",
    "run --follow",
    "tap orders -- true",
    "verify",
)


def history_lines(text: str) -> list[str]:
    """Return lines as in the history of a terminal, without cursor movements."""
    return [line for line in text.splitlines() if line.strip()]


def test_pipe_shows_a_long_step_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    progress.watch(LineProgress())
    with step("load", "Headwater"), step("start", "Spark, local[2]"), step("advance", "flight"):
        pass
    assert history_lines(capsys.readouterr().err) == ["load    Headwater", "start   Spark, local[2]"]


def test_pipe_shows_steps_that_report_nothing_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    progress.watch(LineProgress())
    with step("check", "flight") as work:
        work.rows = 842
    with step("settle", "flight"):
        pass
    with pytest.raises(ValueError, match="no"), step("check", "carrier"):
        raise ValueError("no")
    checked, settled = history_lines(capsys.readouterr().err)
    assert re.fullmatch(r"check   flight: 842 rows in \d+\.\d s", checked)
    assert re.fullmatch(r"settle  flight: in \d+\.\d s", settled)


@pytest.mark.long
def test_commands_show_progress_in_the_requested_form(tmp_path: Path, commands: Commands) -> None:
    shop = new_shop(tmp_path)
    quiet = commands.lake("run", "--quiet", at=shop.land("orders", order(1), order(2)))
    assert (quiet.code, quiet.out, quiet.err) == (0, "edition 1 of cut 1\n", "")

    machine = commands.lake("run", "--log-format", "json", at=shop.land("orders", order(3)))
    assert machine.code == 0, machine.err
    records = [json.loads(line) for line in machine.err.splitlines()]
    begun, ended = ([r for r in records if r["event"] == event] for event in ("begin", "end"))
    assert sorted((r["verb"], r["subject"]) for r in begun) == sorted((r["verb"], r["subject"]) for r in ended)
    assert {r["outcome"] for r in ended} == {"done"}
    rows = {(r["verb"], r["subject"]): r["rows"] for r in ended if r["verb"] not in SHOWN_AT_ONCE}
    assert rows == {
        ("ingest", "orders"): 1,
        ("advance", "current_order"): 1,
        ("advance", "customer_daily"): 1,
        ("check", "current_order"): 3,
        ("check", "customer_daily"): 3,
    }
    messages = [r["text"] for r in records if r["event"] == "message"]
    counted = r"batch 2, 1 events of 1 records, 0 duplicates, 0 quarantined"
    assert any(re.fullmatch(rf"ingest  orders: {counted} in \d+\.\d s", message) for message in messages), messages

    pipe = commands.lake("check", at=shop)
    assert pipe.code == 0, pipe.err
    for line in ("check   current_order", "check   customer_daily"):
        assert re.search(rf"^{line}: 3 rows in \d+\.\d s$", pipe.err, re.MULTILINE), pipe.err

    shop.source.path("quality/current_order.json").write_text("[]")
    for option in ("--quiet", "--log-format=json"):
        wrong = commands.lake("check", option, at=shop)
        told_last = wrong.err.splitlines()[0 if option == "--quiet" else -1]
        assert (wrong.code, 'not {"expectations": [...]}' in told_last.replace("\\", "")) == (2, True), wrong.err


def test_json_progress_has_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    records = JsonProgress()
    progress.watch(records)
    with step("ingest", "flights") as work:
        work.remain(100)
        work.remain(25)
    with pytest.raises(ValueError, match="no"), step("advance", "flight\n\x1b[31m"):
        raise ValueError("no")
    records.report("cut     1")
    records.report_warning("waiting")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == (
        ["begin", "progress", "progress", "end", "begin", "end", "message", "warning"]
    )
    assert (lines[2]["bytes"], lines[2]["of"]) == (75, 100)
    assert [line["outcome"] for line in lines if line["event"] == "end"] == ["done", "failed"]
    assert all(line["at"].endswith("Z") for line in lines)


def test_terminal_shows_long_steps_and_keeps_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake.cli.stderr.SHORT", 0.0)
    screen = io.StringIO()
    live = LiveProgress(
        lambda verb: {"flight": 600.0}, Console(file=screen, force_terminal=True, width=80, no_color=True)
    )
    progress.watch(live)
    with step("advance", "flight"), step("advance", "quick\x1b[31m"):
        live._begin().refresh()
        live.report("advance carrier: +1 ~0 -0 in 0.1 s")
    live.stop()
    shown = screen.getvalue()
    assert "advance flight" in shown
    assert "about 10 min left" in shown
    assert "quick?[31m" in shown
    assert "advance carrier: +1 ~0 -0 in 0.1 s\n" in shown
    assert not live._tasks


@pytest.mark.parametrize(
    ("total", "done", "elapsed", "usual", "said"),
    [
        (None, 0, 3, None, ""),
        (None, 0, 3, 0.1, ""),
        (None, 0, 3, 10.0, "about 7 s left"),
        (None, 0, 30, 10.0, "took about 10 s last time"),
        (0, 0, 3, None, ""),
        (10**7, 0, 3, None, "10.0 MB"),
        (10**7, 5 * 10**6, 3, None, "5.0 MB of 10.0 MB, about 3 s left"),
        (10**7, 10**7, 3, None, "10.0 MB"),
    ],
)
def test_remaining_time_is_shown_if_it_is_known(
    total: int | None, done: int, elapsed: float, usual: float | None, said: str
) -> None:
    assert remaining_note(ProgressStep("ingest", "s", total, done), elapsed, usual) == said


def coming(terminal: int) -> Iterator[str]:
    """Yield the output so far of a terminal at each addition, until the last process closes it."""
    said = b""
    with suppress(OSError):  # Linux reports the end so
        while more := os.read(terminal, 4096):
            said += more
            yield said.decode(errors="replace")


def test_terminal_shows_the_start_of_a_server_before_its_jvm_prints(project: Settings) -> None:
    java = project.path("jdk/bin/java")
    java.parent.mkdir(parents=True)
    java.write_text(SLOW_JAVA)
    java.chmod(0o755)
    port, (terminal, others) = free_port(), openpty()
    command: list[str | Path] = [LAKE, "serve", "connect", "--port", str(port), "--project", project.project]
    environment = os.environ | {"JAVA_HOME": str(java.parents[1]), "TERM": "xterm"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=others) as server:
        os.close(others)
        shown = any(f"Spark Connect on port {port}" in said for said in coming(terminal))
        server.terminate()
        os.close(terminal)
    assert shown


@pytest.mark.long
@pytest.mark.slow
def test_spark_command_prints_its_start_before_it_imports_spark(tmp_path: Path) -> None:
    init(tmp_path / "shop")
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark/__init__.py").write_text(IMPORTED)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    def said(command: str) -> tuple[int, str]:
        words = [sys.executable, "-c", "from lake.cli import main; main()", *command.split()]
        done = subprocess.run(
            words,
            env=environment,
            cwd=tmp_path / "shop",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    assert {command: said(command) for command in IN_SPARK} == dict.fromkeys(
        IN_SPARK, (3, "load    Headwater and Spark's client\nimported")
    )


@pytest.mark.parametrize("command", ["verify", "deploy"])
def test_log_check_is_shown_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    project, said = published(tmp_path / "shop"), list[dict[str, Any]]()

    def checked(*_: Any) -> None:
        said.extend(json.loads(line) for line in capfd.readouterr().err.splitlines())

    job = project.settings.path("jobs/silver/current_order.py")
    job.write_text(job.read_text() + "\nCHANGED = 1\n")
    monkeypatch.setattr(integrity, "content_fault", checked)
    monkeypatch.setattr("lake.quality.gate.warm_up", lambda _: None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost:1")
    words = ["lake", command, "--log-format", "json", "--project", str(project.settings.project)]
    monkeypatch.setattr("sys.argv", words)
    cli._run()
    begun = [(line["verb"], line["subject"]) for line in said if line["event"] == "begin" and line["verb"] != "load"]
    assert begun == [("check", "log orders")]


def test_step_lasts_as_long_as_its_block() -> None:
    with step("advance", "flight") as work:
        began = time.monotonic()
    assert 0 <= work.seconds <= time.monotonic() - work.began
    assert work.began <= began


@pytest.mark.parametrize("colours", [True, False])
def test_colours_are_used_for_terminals_that_accept_them(monkeypatch: pytest.MonkeyPatch, colours: bool) -> None:
    monkeypatch.setattr("lake.cli.stderr.stderr_is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "" if colours else "1")
    assert ("\x1b[" in coloured("advance flight")) == colours
