"""A Spark Connect server of a project, as its people start it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAKE = Path(sys.executable).with_name("lake")
QUICK: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""For JVMs of tests: jobs are small and many, so the optimising compiler costs more than it saves."""
SMALL: Final = {"LAKE_SPARK__DRIVER_MEMORY": "1g", "LAKE_SPARK__CONF": json.dumps(QUICK)}
"""The environment of a command whose JVM is there beside another, and not for long."""


@dataclass(frozen=True)
class Serving:
    """A running `lake serve connect`, and what SPARK_REMOTE is to be."""

    process: subprocess.Popen[str]
    remote: str


@contextmanager
def serving(project: Path) -> Iterator[Serving]:
    """`lake serve connect` on a free port, with a small heap: the tests' own JVM is there beside it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [LAKE, "serve", "connect", "--port", port, "--project", project]
    environment = os.environ | SMALL
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            name, _, remote = server.stdout.readline().strip().partition("=")
            assert name == "SPARK_REMOTE", server.stderr.read()
            yield Serving(server, remote)
        finally:
            server.terminate()
