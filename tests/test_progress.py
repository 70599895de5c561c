"""What is shown of work while it lasts: at a terminal, in a pipe, to a machine."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from lake import progress
from lake.cli.progress import Lines, Live, Records, coloured, note
from lake.progress import Nobody, Step, step


@pytest.fixture(autouse=True)
def _nobody_watches_afterwards() -> object:
    yield
    progress.watch(Nobody())


def told(text: str) -> list[str]:
    """Lines as a terminal would have them in its history: without what moves the cursor."""
    return [line for line in text.splitlines() if line.strip()]


def test_a_pipe_is_told_that_spark_starts_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    progress.watch(Lines())
    with step("start", "Spark, local[2]"), step("advance", "flight"):
        pass
    assert told(capsys.readouterr().err) == ["start   Spark, local[2]"]


def test_a_machine_reads_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    records = Records()
    progress.watch(records)
    with step("ingest", "flights") as work:
        work.remain(100)
        work.remain(25)
    with pytest.raises(ValueError, match="no"), step("advance", "flight\n\x1b[31m"):
        raise ValueError("no")
    records.say("cut     1")
    records.warn("waiting")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == (
        ["begin", "progress", "progress", "end", "begin", "end", "message", "warning"]
    )
    assert (lines[2]["bytes"], lines[2]["of"]) == (75, 100)
    assert [line["outcome"] for line in lines if line["event"] == "end"] == ["done", "failed"]
    assert all(line["at"].endswith("Z") for line in lines)


def test_a_terminal_shows_what_lasts_and_keeps_only_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lake.cli.progress.SHORT", 0.0)
    screen = io.StringIO()
    live = Live(lambda verb: {"flight": 600.0}, Console(file=screen, force_terminal=True, width=80, no_color=True))
    progress.watch(live)
    with step("advance", "flight"), step("advance", "quick\x1b[31m"):
        live._begin().refresh()
        live.say("advance carrier: +1 ~0 -0 in 0.1 s")
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
def test_what_remains_is_told_where_it_is_known(
    total: int | None, done: int, elapsed: float, usual: float | None, said: str
) -> None:
    assert note(Step("ingest", "s", total, done), elapsed, usual) == said


def test_a_step_lasts_as_long_as_its_block() -> None:
    with step("advance", "flight") as work:
        began = time.monotonic()
    assert 0 <= work.seconds <= time.monotonic() - work.began
    assert work.began <= began


@pytest.mark.parametrize("colours", [True, False])
def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch, colours: bool) -> None:
    monkeypatch.setattr("lake.cli.progress.stderr_is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "" if colours else "1")
    assert ("\x1b[" in coloured("advance flight")) == colours
