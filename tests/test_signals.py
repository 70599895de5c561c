"""Ends of a command: a signal, at any place of the main thread."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lake.cli import exits
from lake.errors import LakeError
from tests.processes import PATIENCE
from tests.shop import empty

pytestmark = pytest.mark.slow

AT_WORK = """
import sys, time
from lake import cli
from lake.cli import exits
from lake.errors import LakeError
from lake.ops import status

exits.PATIENCE = 0.1

def busy():
    print("busy", flush=True)
    while True:
        time.sleep(0.01)

class Swallows:
    def __del__(self):
        busy()

class Wraps:
    def __set_name__(self, owner, name):
        busy()

def swallowed(*_):
    Swallows()
    busy()

def stubborn(*_):
    while True:
        try:
            busy()
        except BaseException:
            pass

def wrapped(*_):
    type("Owner", (), {"it": Wraps()})

def told_otherwise(*_):
    try:
        busy()
    except BaseException as error:
        raise LakeError("no", where="there", fix="none") from error

def in_the_open(*_):
    busy()

status.status = globals()[sys.argv.pop()]
cli.main()
"""


def test_error_that_causes_itself_is_no_signal() -> None:
    one, other = LakeError("one", where="", fix=""), ValueError("other")
    one.__cause__, other.__context__ = other, one
    assert exits.exit_code(one) is None
    other.__context__ = KeyboardInterrupt()
    assert exits.exit_code(one) is None


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGHUP))],
)
@pytest.mark.parametrize("where", ["in_the_open", "wrapped", "told_otherwise", "swallowed", "stubborn"])
def test_signal_ends_a_command_at_any_place(tmp_path: Path, where: str, number: signal.Signals) -> None:
    settings = empty(tmp_path)
    words: list[str | Path] = [sys.executable, "-c", AT_WORK, "status", "--project", settings.project, where]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "busy\n"
        command.send_signal(number)
        err = command.communicate(timeout=PATIENCE)[1]
    assert command.returncode == 128 + number, err
    assert "lake: " not in err
