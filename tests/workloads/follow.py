"""`lake` at work in a process of its own, and killed with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.processes import ROOT
from tests.servers.postgres import children

PROGRAM: Final = "from lake.cli import main; main()"
FOLLOW: Final = ("run", "--follow", "--every", "1s")


def lake(project: Path, *words: str) -> subprocess.Popen[bytes]:
    """A `lake` command in a session of its own, with all that it starts."""
    with (project / "lake.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words, "--project", str(project)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def killed(process: subprocess.Popen[bytes]) -> bool:
    """Kills a command and its JVM; whether it was at work still."""
    was_at_work = process.poll() is None
    found, pids = [process.pid], list[int]()
    while found:
        pids += found
        found = [child for pid in found for child in children(pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return was_at_work
