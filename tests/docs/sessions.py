"""Sessions that pages of the documentation show, and the function that runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


SHOP = "docs/how-to/sinks.md"
"""Page whose session makes the project that the pages of the sinks and of alerts go on from."""


@dataclass(frozen=True)
class Step:
    """Command and its output; or, without a command, a file to write and its text."""

    command: str
    expected: str = ""
    file: str = ""


def session(page: str) -> list[Step]:
    """Return the steps of a page in their order: lines that begin with `$`, and blocks of code that name a file."""
    steps: list[Step] = []
    for language, file, text in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if file:
            steps.append(Step("", text, file))
        if language == "console":
            for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                steps.append(Step(command, expected))
    return steps


def shown_as(expected: str, printed: str) -> bool:
    """Return whether a page shows `printed`; … stands for any text."""
    return re.fullmatch(".*?".join(map(re.escape, expected.split("…"))), printed, re.DOTALL) is not None


def play(pages: Sequence[str], folder: Path, more: Mapping[str, str]) -> None:
    """Run the sessions of `pages` in `folder`, with `more` in the environment, and compare what they print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKE_")}
    environment |= {"PATH": path, **more}
    for step in [step for page in pages for step in session(page)]:
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
