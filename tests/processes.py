"""Another process at work on a warehouse, for the tests of what it keeps others from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lake.config import Settings

PROGRAM = """
import sys
from contextlib import ExitStack
from pathlib import Path
from lake.config import load_settings
from lake.store import reads
from lake.store.lease import lease
settings = load_settings(Path(sys.argv[1]))
with ExitStack() as held:
    for what in sys.argv[2:]:
        if what == "reading":
            reads.begin(settings, "lake sql", edition=3)
        else:
            held.enter_context(lease(settings, what))
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(settings: Settings, *doing: str) -> Iterator[subprocess.Popen[str]]:
    """A process that reads the warehouse ("reading") and holds leases, until it is killed at the block's end."""
    line = [sys.executable, "-c", PROGRAM, str(settings.project), *doing]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
