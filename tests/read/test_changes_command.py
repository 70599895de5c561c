"""`lake changes`: JSON Lines in a pipe, a table at a terminal, and consumers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from lake.cli import lake
from lake.cli.changes import as_lines
from lake.config import Settings
from lake.errors import LakeError, StartOver
from lake.ops.external_systems import consumer_statuses
from lake.ops.render import as_data, as_text
from lake.ops.status import status
from lake.project.project import load
from lake.read.subscription import subscribe
from lake.store.ledger.consumers import consumer
from tests.checks import fault
from tests.intake import LAKE
from tests.processes import PATIENCE, until
from tests.read.things import NAME, Things


@pytest.fixture
def things(project: Settings) -> Things:
    things = Things(project)
    things.change({1: 4, 2: 8})
    return things


def changes(things: Things, *words: str) -> Result:
    return CliRunner().invoke(lake, ["changes", NAME, "--project", str(things.settings.project), *words])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


def outline(told: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["edition"], line["change"], *line.get("key", {}).values()) for line in told]


def test_changes_command_writes_a_line_per_change_and_continues_for_a_consumer(things: Things) -> None:
    first = lines(changes(things, "--consumer", "crm"))
    assert outline(first) == [(1, "snapshot"), (1, "insert", 1), (1, "insert", 2), (1, "complete")]
    assert first[1]["after"] == {
        "k": 1,
        "amount": "1.00",
        "ratio": 0.5,
        "word": "w1",
        "part": None,
        "at": "2024-03-31T09:12:00Z",
    }
    assert lines(changes(things, "--consumer", "crm")) == []
    things.change({1: 5, 3: 1})
    second = lines(changes(things, "--consumer", "crm"))
    assert outline(second) == [(2, "update", 1), (2, "delete", 2), (2, "insert", 3), (2, "complete")]
    assert (second[0]["before"]["amount"], second[0]["after"]["amount"]) == ("1.00", "1.25")
    assert second[-1] == {"edition": 2, "cut": 2, "change": "complete", "rows": 3}


def test_changes_command_without_a_consumer_begins_at_the_given_edition(things: Things) -> None:
    things.change({1: 4})
    for _ in range(2):
        assert outline(lines(changes(things, "--from-edition", "1"))) == [(2, "delete", 2), (2, "complete")]
        assert outline(lines(changes(things)))[0] == (2, "snapshot")


@contextmanager
def follow_changes(things: Things, *words: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run `lake changes --follow` in a process, which is killed at the end of the block."""
    line = [str(LAKE), "changes", NAME, "--follow", "--project", str(things.settings.project), *words]
    with subprocess.Popen(line, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_edition(out: IO[str] | None) -> list[dict[str, Any]]:
    """Return the next lines up to the end of an edition."""
    assert out is not None
    every = [json.loads(out.readline())]
    while every[-1]["change"] != "complete":
        every.append(json.loads(out.readline()))
    return every


@pytest.mark.slow
def test_following_command_writes_each_change_once_until_a_signal(things: Things) -> None:
    with follow_changes(things, "--consumer", "crm") as process:
        assert outline(read_edition(process.stdout))[0] == (1, "snapshot")
        things.change({1: 4})
        assert outline(read_edition(process.stdout)) == [(2, "delete", 2), (2, "complete")]
        things.publish()
        assert outline(read_edition(process.stdout)) == [(3, "complete")]
        until(lambda: consumer(things.settings, "crm", NAME).edition == 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (out, err.strip(), process.returncode) == ("", "", 128 + signal.SIGINT)
    assert lines(changes(things, "--consumer", "crm")) == []


@pytest.mark.long
@pytest.mark.slow
def test_following_command_ends_when_its_pipe_is_closed(things: Things) -> None:
    with follow_changes(things) as process:
        read_edition(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 0


@pytest.mark.long
@pytest.mark.slow
def test_unread_changes_are_written_again_after_the_reader_died(things: Things) -> None:
    things.change({n: n for n in range(5000)})
    with follow_changes(things, "--consumer", "crm") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["change"] == "snapshot"
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 0
    assert len(lines(changes(things, "--consumer", "crm"))) == 5002


@pytest.mark.slow
def test_terminal_gets_a_table_of_changes(things: Things) -> None:
    things.change({1: 5})
    outer, inner = pty.openpty()
    with follow_changes(things, "--from-edition", "1", stdout=inner) as process, os.fdopen(outer) as terminal:
        os.close(inner)
        shown = [terminal.readline().split() for _ in range(5)]
        process.send_signal(signal.SIGINT)
        process.wait()
    assert " ".join(shown[0]) == "edition 2 of cut 2, from edition 1"
    assert shown[1] == ["change", "k", "amount", "ratio", "word", "part", "at"]
    assert shown[3][:5] == ["update", "1", "1.00", "→", "1.25"]
    assert shown[4][:2] == ["delete", "2"]


def test_edition_without_changes_is_one_line_of_text(things: Things) -> None:
    things.publish()
    [same] = subscribe(things.settings, NAME, from_edition=1)
    assert list(as_lines(same)) == ["edition 2 of cut 2, from edition 1: no changes"]


def test_consumer_too_far_behind_is_asked_to_start_over(things: Things) -> None:
    lines(changes(things, "--consumer", "crm"))
    things.change({1: 5})
    replace(things, settings=replace(things.settings, keep_consumer_days=0.0)).expire()
    gone = fault(changes(things, "--consumer", "crm"))
    assert isinstance(gone, StartOver)
    assert (gone.exit_code, "edition 1 has expired" in gone.what) == (2, True)
    assert gone.fix.startswith("lake changes thing --consumer crm --start-over")
    assert outline(lines(changes(things, "--consumer", "crm", "--start-over")))[0] == (2, "snapshot")


def test_status_reports_how_far_behind_consumers_are(things: Things) -> None:
    lines(changes(things, "--consumer", "crm"))
    things.change({1: 5})
    things.publish()
    lines(changes(things, "--consumer", "search"))
    next(subscribe(things.settings, NAME, consumer="new"))
    state = status(load(things.settings))
    about = ("consumer", "table", "edition", "editions", "must_start_over")
    assert [[one[name] for name in about] for one in as_data(state)["consumers"]] == [
        ["crm", NAME, 1, 2, False],
        ["new", NAME, None, 0, False],
        ["search", NAME, 3, 0, False],
    ]
    crm, new, search = state.consumers
    assert (crm.seconds is not None, new.seconds, search.seconds) == (True, None, None)
    assert (crm.kept_until is not None, search.kept_until) == (True, None)
    replace(things, settings=replace(things.settings, keep_consumer_days=0.0)).expire()
    text = "\n".join(as_text(status(load(things.settings))))
    assert "must start over: lake changes thing --consumer crm --start-over" in text


def test_consumer_is_forgotten(things: Things) -> None:
    lines(changes(things, "--consumer", "crm"))
    assert changes(things, "--consumer", "crm", "--forget").exit_code == 0
    assert list(consumer_statuses(things.settings, things.publish().published_at)) == []
    with pytest.raises(LakeError, match=r"no consumer 'crm' of thing"):
        raise fault(changes(things, "--consumer", "crm", "--forget"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--start-over"], "--start-over needs --consumer"),
        (["--forget"], "--forget needs --consumer"),
        (["--forget", "--consumer", "crm", "--follow"], "--forget and --follow cannot be combined"),
        (["--consumer", "crm", "--start-over", "--from-edition", "1"], "only from a snapshot"),
        (["--from-edition", "7"], "no edition 7: only edition 1 exists"),
    ],
)
def test_wrong_options_of_the_changes_command_are_rejected(things: Things, words: list[str], message: str) -> None:
    assert message in fault(changes(things, *words)).what
