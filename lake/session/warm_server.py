"""Warm server of Spark: shared by the commands of a project and user, started on demand, ends itself when unused.

A command locks the server's record until it ends or is killed, so the server knows whether it has clients. Servers are
looked up, started and ended under one lock. Lock, records and log are files in `.lake/spark`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.errors import Unavailable
from lake.session import file_modes
from lake.session.remote import TOKEN, is_listening, is_local, server, token_file

CONTAINER: Final = "LAKE_CONTAINER"
"""Environment variable, `yes` or `no`, that overrides the test for a container."""
LOG: Final = "warm.log"
CONTAINER_FILES: Final = ("/.dockerenv", "/run/.containerenv")
PREFIXES: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "JDK_", "PYSPARK_", "PYTHONPATH", "SPARK_", "TZ")
"""Prefixes of variables that affect Spark, its JVM and its workers."""
SESSION_VARIABLES: Final = (
    {TOKEN, "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}
    | {"SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_IP", "SPARK_REMOTE"}
)  # fmt: skip
"""Variables that sessions set themselves."""


@dataclass(frozen=True)
class WarmServer:
    pid: int
    port: int


def is_wanted(settings: Settings) -> bool:
    """Return whether commands use a warm server: never in containers, which end with their command."""
    is_embedded = not server(settings) and is_local(settings)
    return bool(settings.spark.keep_warm) and is_embedded and not _is_container()


def uses_server(settings: Settings) -> bool:
    """Return whether sessions are of a Spark Connect server, named or warm."""
    return bool(server(settings)) or is_wanted(settings)


def _is_container() -> bool:
    is_container = "KUBERNETES_SERVICE_HOST" in os.environ or any(Path(file).exists() for file in CONTAINER_FILES)
    return os.environ.get(CONTAINER, "yes" if is_container else "no") != "no"


def join(settings: Settings, conf: Mapping[str, str]) -> str:
    """Return address and token of the server for `conf` and this environment. Start one if there is none.

    It runs at least until this process ends. Raises Unavailable if it does not start.
    """
    folder = file_modes.scratch(settings, "spark")
    record = folder / f"warm-{_digest(conf)}.json"
    with locked(folder):
        running = _listening(record)
        if running is None:
            _end_unused(folder)
            running = _start(settings, record)
        _JoinedRecord.lock(record)
    return f"sc://localhost:{running.port}/;token={token_file(settings).read_text('utf-8').strip()}"


class _JoinedRecord:
    descriptor: int | None = None  # of the record of the server that this process uses

    @classmethod
    def lock(cls, record: Path) -> None:
        if cls.descriptor is not None:
            os.close(cls.descriptor)
        cls.descriptor = os.open(record, os.O_RDONLY)
        fcntl.flock(cls.descriptor, fcntl.LOCK_SH)
        os.utime(record)  # lets the server see a command that ends before its next check


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "warm.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_joined() -> bool:
    return _JoinedRecord.descriptor is not None


def has_clients(record: Path) -> bool:
    with suppress(FileNotFoundError), record.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def describe_servers(settings: Settings) -> list[str]:
    return [
        f"pid {running.pid} on port {running.port}, {'in use' if has_clients(record) else 'unused'}"
        for record in settings.path(".lake/spark").glob("warm-*.json")
        if (running := _listening(record))
    ]


def _listening(record: Path) -> WarmServer | None:
    with suppress(OSError):
        if (running := recorded(record)) and is_listening("localhost", running.port):
            os.kill(running.pid, 0)
            return running
    return None


def recorded(record: Path) -> WarmServer | None:
    with suppress(OSError, ValueError, TypeError):
        return WarmServer(**json.loads(record.read_text("utf-8")))
    return None


def _end_unused(folder: Path) -> None:
    """End the servers of other environments, and delete the records of those that were killed."""
    for record in folder.glob("warm-*.json"):
        running = _listening(record)
        if running is None or not has_clients(record):
            record.unlink()
            if running:
                os.kill(running.pid, signal.SIGTERM)


def _start(settings: Settings, record: Path) -> WarmServer:
    log = record.with_name(LOG)
    command = [sys.executable, "-P", "-m", "lake.session.warm_process", str(settings.project), str(record)]
    environment = {name: value for name, value in os.environ.items() if name not in SESSION_VARIABLES}
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=settings.project, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    while process.poll() is None:
        if (running := recorded(record)) and running.pid == process.pid:  # not a record that a killed command left
            return running
        time.sleep(0.05)
    lines = log.read_text("utf-8", "replace").strip().splitlines() or ["no message"]
    raise Unavailable(
        f"the warm Spark server does not start: {lines[-1]}",
        where=str(log),
        fix="see the log for the reason, or leave spark.keep_warm out",
    )


def _digest(conf: Mapping[str, str]) -> str:
    """Return the digest of all that a server depends on: versions, Python, settings and environment."""
    environment = {n: v for n, v in os.environ.items() if n.startswith(PREFIXES) and n not in SESSION_VARIABLES}
    versions = [version(package) for package in ("headwater", "pyspark")]
    parts = [versions, sys.executable, sorted(conf.items()), sorted(environment.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
