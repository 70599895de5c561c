"""Servers for tests, one per file. The file's name is the mark of its tests: `make test S=NAME` runs them.

A file is a plugin with a fixture of its name, of the scope of a run: it takes a free port of this machine, starts the
server, and ends it. What uses the fixture, and what bears the mark, asks the server. One of those tests is its smoke
test, marked so, which takes less than 20 seconds and is in `make test`; all others are further turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

import pytest

from infra import server
from lake.session.jars import listed
from tests.processes import ROOT

T = TypeVar("T")
NAMES: Final = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def needed(found: T | None, otherwise: str) -> T:
    """A module of an extra (`find_spec`) or a program of a Debian package (`which`); without it, tests are skipped.

    `otherwise` says what is missing, and how to install it.
    """
    if found is None:
        pytest.skip(otherwise)
    return found


def installed(of: server.Server, client: str, extra: str) -> None:
    """Skips a test where the client or the server's jars are missing."""
    needed(find_spec(client), f"the extra `{extra}` is not installed: make setup")
    there = all((of.jars / jar.file).is_file() for jar in listed(of.listed))
    needed(there or None, f"the jars of {of.name} are missing: make test S={of.name} fetches them")


@dataclass
class Server:
    """A server with its data in `home`, a process of this run."""

    home: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def launch(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Starts it; what it prints is in a file."""
        self.home.mkdir(parents=True, exist_ok=True)
        environment = os.environ | (environment or {})
        with (self.home / "out.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def launch_own(self, of: server.Server, environment: Mapping[str, str] | None = None, **options: object) -> None:
        """Starts a server of infra as `make` does."""
        told = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self.launch([sys.executable, "-m", of.run, f"--home={self.home}", f"--jars={of.jars}", *told], environment)

    def assert_up(self) -> None:
        """Fails where it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, "\n".join(log.read_text() for log in self.home.glob("*.log"))

    def stop(self) -> None:
        """Kills it, where it was started."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
