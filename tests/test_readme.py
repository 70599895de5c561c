"""The README's session, line by line: what it shows is what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lake.cli import COMMANDS
from lake.testing import Commands

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def session() -> list[tuple[str, str]]:
    """(command, expected standard output) of every line that begins with `$`."""
    steps: list[tuple[str, str]] = []
    for line in "".join(BLOCK.findall(README)).splitlines(keepends=True):
        if line.startswith("$ "):
            steps.append((line[2:].rstrip("\n"), ""))
        else:
            steps[-1] = steps[-1][0], steps[-1][1] + line
    return steps


def test_the_session_prints_what_the_readme_shows(tmp_path: Path, commands: Commands) -> None:
    folder = tmp_path
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKE_")}
    environment |= {"PATH": path, **commands.environment}
    assert len(session()) > 8
    for command, expected in session():
        if command.startswith("cd "):
            folder = folder / command.removeprefix("cd ")
            continue
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout == expected, f"{command}\n{done.stderr}"


def test_the_reference_names_every_command() -> None:
    for command in COMMANDS:
        assert f"`lake {command}" in README
