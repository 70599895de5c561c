"""The sessions of the README and of the tutorial, line by line: what they show is what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lake.testing import Commands

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PAGES = ("README.md", "docs/tutorial.md", "docs/how-to/subscribe.md")


@dataclass(frozen=True)
class Step:
    """A command and what it prints; or, without one, a file to be written and its text."""

    command: str
    expected: str = ""
    file: str = ""


def session(page: str) -> list[Step]:
    """The steps of a page in their order: lines that begin with `$`, and blocks of code that have a file's name."""
    steps: list[Step] = []
    for language, file, text in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if file:
            steps.append(Step("", text, file))
        if language == "console":
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                steps.append(Step(command, expected))
    return steps


def shown_as(expected: str, printed: str) -> bool:
    """Whether `printed` is what a page shows, where … stands for any text."""
    return re.fullmatch(".*?".join(map(re.escape, expected.split("…"))), printed, re.DOTALL) is not None


@pytest.mark.parametrize("page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.long) for page in PAGES[1:])])
def test_the_session_prints_what_the_page_shows(tmp_path: Path, commands: Commands, page: str) -> None:
    folder = tmp_path
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKE_")}
    environment |= {"PATH": path, **commands.environment}
    for step in session(page):
        if step.file:
            (folder / step.file).write_text(step.expected, "utf-8")
            continue
        if step.command.startswith("cd "):
            folder = folder / step.command.removeprefix("cd ")
            continue
        done = subprocess.run(
            step.command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{step.command}\n{done.stderr}"
        assert shown_as(step.expected, done.stdout), f"{step.command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_session_is_a_step(page: str) -> None:
    steps = [step for step in session(page) if step.command]
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    console = "".join(text for language, _, text in blocks if language == "console")
    assert console == "".join(f"$ {step.command}\n{step.expected}" for step in steps)
    assert len(steps) >= 8


def test_dots_stand_for_any_text() -> None:
    assert shown_as("edition 1\n", "edition 1\n")
    assert shown_as("took … s\n", "took 0.3 s\n")
    assert not shown_as("edition 1\n", "edition 10\n")
    assert not shown_as("(a|b)\n", "a\n")
