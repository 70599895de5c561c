"""Other processes: `make`, processes that use a warehouse, listeners and their addresses, and waiting for them."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lake.config import Settings

PROGRAM = """
import sys
from contextlib import ExitStack
from pathlib import Path
from lake.config import load_settings
from lake.store.locks import activity
from lake.store.locks.lease import lease
settings = load_settings(Path(sys.argv[1]))
with ExitStack() as held:
    for what in sys.argv[2:]:
        if what == "reading":
            activity.begin(settings, "lake sql", edition=3)
        else:
            held.enter_context(lease(settings, what))
    print("ready", flush=True)
    sys.stdin.read()
"""


ROOT = Path(__file__).parents[1]


def make(*words: str | Path, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `make` in a prepared folder, without the environment of an outer `make`."""
    command: list[str | Path] = ["make", "--old-file=setup", "--old-file=.venv/.packages", "--old-file=.venv/.kafka"]
    command += [f"--old-file=.venv/.{server}" for server in ("opensearch", "postgres", "s3")]
    command += words
    of_outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS"}
    outer = {name: value for name, value in os.environ.items() if name not in of_outer}
    return subprocess.run(command, cwd=folder, env=outer | environment, capture_output=True, text=True, check=False)


@contextmanager
def other_process(settings: Settings, *doing: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that reads the warehouse ("reading") and holds leases until the end of the block."""
    line = [sys.executable, "-c", PROGRAM, str(settings.project), *doing]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def free_port() -> int:
    """Return a free port of this machine. The system assigns none below 32768 to connections by itself, so it stays
    free until it is used: a JVM needs ten seconds until it listens. Each process of the tests has a range of its own.
    """
    first = 20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 3 * 4000
    while True:
        port = first + secrets.randbelow(4000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


PATIENCE: Final = 600.0
"""Seconds that a test waits for whatever has to come: longer than a machine that is busy with others may take."""


def until(true: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
    """Wait until `true` returns True."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        time.sleep(0.1)


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same within IPv6, and ::1, as the kernel writes them."""


def listening(pid: int) -> set[str]:
    """Return the addresses on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
    tables = (Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table.splitlines()]
    return {line[1].rpartition(":")[0] for line in lines if line[3] == "0A" and line[9] in sockets}


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are still there."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []
