"""`lake` in a process of its own beside a load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.processes import ROOT

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
