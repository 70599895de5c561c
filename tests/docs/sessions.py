"""The sessions that pages of the documentation show, and what plays them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


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


def play(page: str, folder: Path, more: Mapping[str, str]) -> None:
    """Does what a page shows, in `folder` and with `more` in the environment: it has to print what stands there."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKE_")}
    environment |= {"PATH": path, **more}
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
