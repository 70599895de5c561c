"""Spark Connect server of a project, as users start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.processes import free_port

LAKE = Path(sys.executable).with_name("lake")
SMALL: Final = {"LAKE_SPARK__DRIVER_MEMORY": "1g"}
"""The environment of a JVM that is there beside another."""
SHORT_LIVED: Final = SMALL | {
    "LAKE_SPARK__CONF": json.dumps({"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"})
}
"""And of one that ends before what the optimising compiler costs has paid: after a minute or two it has."""


@dataclass(frozen=True)
class Serving:
    """Running `lake serve connect`, and its SPARK_REMOTE."""

    process: subprocess.Popen[str]
    remote: str


@contextmanager
def serving(project: Path, environment: Mapping[str, str] = SMALL) -> Iterator[Serving]:
    """Run `lake serve connect` on a free port."""
    command: list[str | Path] = [LAKE, "serve", "connect", "--port", str(free_port()), "--project", project]
    with subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            name, _, remote = server.stdout.readline().strip().partition("=")
            assert name == "SPARK_REMOTE", server.stderr.read()
            yield Serving(server, remote)
        finally:
            server.terminate()
