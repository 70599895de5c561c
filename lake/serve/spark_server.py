"""Spark Connect server of the project: one warm JVM that many commands share, for this machine alone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.ops.doctor import java
from lake.progress import step
from lake.session import file_modes
from lake.session.file_modes import generated_token
from lake.session.remote import BINDING, DETACHED, TOKEN, binding_conf, connected, token_file
from lake.session.spark_session import embedded_conf, first_line, properties
from lake.store.ledger.editions import Edition, current_edition
from lake.store.locks import activity
from lake.store.process import end_signals_handled
from lake.store.snapshot import published
from lake.store.warehouse import LAYERS, Warehouse
from lake.text import SPARK, literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
LOOPBACK: Final = "127.0.0.1"
LOOK_SECONDS: Final = 1.0
REPORT_SECONDS: Final = 60.0
"""Seconds between two reports that the server does not listen yet; a warm machine takes five to eight."""


@dataclass(frozen=True)
class Server:
    """Listening server: `remote` as SPARK_REMOTE has it, `pid` of its JVM.

    `token_file` is None if the token came from the environment.
    """

    remote: str
    port: int
    pid: int
    token_file: Path | None
    log: Path


def connect(settings: Settings, *, port: int, ready: Callable[[Server], None]) -> None:
    """Run a Spark Connect server on `port` of loopback until SIGTERM or SIGINT. Calls `ready` once it listens.

    Its token is that of the environment, else of a file for its owner alone, made on first use. Raises DeclarationError
    if Java or the jars are missing, Unavailable if the port is taken or the server ends by itself.
    """
    activity.end()  # the clients register themselves as readers
    log = settings.path(".lake/spark/connect.log")
    with ExitStack() as serving:
        with step("start", f"Spark Connect on port {port}"):
            conf, (token, file) = _prepared(settings, port), _token(settings)
            process = serving.enter_context(_jvm(settings, conf, token, log))
            stopping = serving.enter_context(_ended_by_signals(process))
            _wait_until_listening(process, port, log)
            catalogue = _Catalogue(settings, f"sc://localhost:{port}")
            catalogue.update(process)
        if process.poll() is None:
            ready(Server(catalogue.remote, port, process.pid, file, log))
        while _is_alive_after_pause(process):
            catalogue.update(process)
        code = process.wait()
        if not stopping:
            raise Unavailable(
                f"the Spark Connect server {_ending_text(code, log)}",
                where=str(log),
                fix="see the log for the reason, then start it again",
            )


def _prepared(settings: Settings, port: int) -> dict[str, str]:
    runtime = java()
    if not runtime.ok:
        raise DeclarationError(f"no Java to run the server with: {runtime.found}", fix=runtime.fix)
    _must_be_guarded(settings)
    _must_be_free(port)
    return {**DETACHED, **embedded_conf(settings), **binding_conf(port)}


def ready(settings: Settings, *, port: int, patience: float) -> str:
    """Return the server's version of Spark, after a test session; retry for `patience` seconds.

    Raises Unavailable if it does not respond by then, DeclarationError if it refuses the token.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            session = connected(settings, f"sc://localhost:{port}")
            version = str(session.version)
            session.stop()
            return version
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)


@dataclass
class _Catalogue:
    """Views in the server, of the `shown` edition once it `is_made`. If that fails, the server runs without them."""

    settings: Settings
    remote: str
    shown: Edition | None = None
    is_made: bool = False
    failed: str = ""

    def update(self, server: subprocess.Popen[bytes]) -> None:
        try:
            current = current_edition(self.settings)
            if self.is_made and current == self.shown:
                return
            spark = connected(self.settings, self.remote)
            try:
                _update_views(self.settings, spark, current, previous=self.shown)
            finally:
                spark.stop()
            self.shown, self.is_made, self.failed = current, True, ""
        except Exception as error:  # errors of Spark, Delta and the project: the server keeps running
            if first_line(error) != self.failed and server.poll() is None:
                self.failed = first_line(error)
                logging.getLogger("lake").warning("the server's catalogue is not up to date: %s", self.failed)


def _is_alive_after_pause(server: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        server.wait(LOOK_SECONDS)
    return server.returncode is None


def _must_be_guarded(settings: Settings) -> None:
    """Raise DeclarationError if the project's settings would open the server, or reveal its token."""
    address = settings.spark.conf.get(BINDING, LOOPBACK)
    if address not in {LOOPBACK, "localhost"}:
        raise DeclarationError(
            f"a server of a project listens on {LOOPBACK} only, found {address}",
            where=f"spark.conf: {BINDING}",
            fix="leave it out, and give others access through a tunnel or a TLS proxy on this machine",
        )
    if "spark.connect.authenticate.token" in settings.spark.conf:
        raise DeclarationError(
            "the server's token is in the settings, where anyone who reads them sees it",
            where="spark.conf: spark.connect.authenticate.token",
            fix=f"leave it out to have one generated, or set {TOKEN} in the environment",
        )


def _must_be_free(port: int) -> None:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise Unavailable(
            f"cannot listen on port {port}: {os.strerror(error.errno or 0)}",
            where=f"{LOOPBACK}:{port}",
            fix="another server may be running: stop it, or choose another port with --port N",
        ) from None


def _token(settings: Settings) -> tuple[str, Path | None]:
    if given := os.environ.get(TOKEN):
        return given, None
    file_modes.scratch(settings, "spark")
    file = token_file(settings)
    return generated_token(file), file


@contextmanager
def _jvm(settings: Settings, conf: Mapping[str, str], token: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The token reaches the process by its environment alone."""
    home = Path(str(files("pyspark")))
    environment = {name: value for name, value in os.environ.items() if name not in {"SPARK_REMOTE", "MASTER"}}
    environment |= {
        TOKEN: token,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with properties(settings, conf) as file:
        command = [str(home / "bin/spark-submit"), "--properties-file", str(file), "--class", SERVER, "spark-internal"]
        log.write_bytes(b"")
        with log.open("ab") as out:  # a purge may empty it meanwhile
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _ended_by_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        process.terminate()

    with end_signals_handled(end):
        yield came


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait without a time limit, unless the process ends."""
    began, reported = time.monotonic(), 1
    while process.poll() is None:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            return
        except OSError:
            if (waited := time.monotonic() - began) > reported * REPORT_SECONDS:
                reported = int(waited / REPORT_SECONDS) + 1
                logging.getLogger("lake").warning("the server does not listen after %d s: see %s", waited, log)
            time.sleep(0.1)


def _ending_text(code: int, log: Path) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()] or ["no message"]
    reason = next((line for line in reversed(lines) if "Exception:" in line or "Error:" in line), lines[-1])
    return f"ended with exit code {code}: {reason}"


def _update_views(
    settings: Settings, spark: SparkSession, edition: Edition | None, *, previous: Edition | None
) -> None:
    before, tables = previous.tables if previous else {}, edition.tables if edition else {}
    statements = [f"CREATE DATABASE IF NOT EXISTS {layer}" for layer in LAYERS]
    for name, entry in tables.items():
        if edition and entry != before.get(name):
            statements += _views(settings, edition, name)
    for name, entry in before.items():
        now = tables.get(name)
        if now is None or now.layer != entry.layer:
            statements.append(f"DROP VIEW IF EXISTS {entry.layer}.{quoted(name, SPARK)}")
        if now is None:
            statements.append(f"DROP VIEW IF EXISTS {quoted(name, SPARK)}")
    for statement in statements:
        spark.sql(statement).collect()


def _views(settings: Settings, edition: Edition, name: str) -> list[str]:
    table, entry = published(settings, name, edition), edition.tables[name]
    path = f"{Warehouse(settings).root / entry.path}@v{entry.version}"
    columns = ", ".join(f"{quoted(c.name, SPARK)} COMMENT {literal(c.description, SPARK)}" for c in table.columns)
    rows = f"SELECT {', '.join(quoted(c.name, SPARK) for c in table.columns)} FROM delta.{quoted(path, SPARK)}"
    return [
        f"CREATE OR REPLACE VIEW {view} ({columns}) COMMENT {literal(table.doc, SPARK)} AS {rows}"
        for view in (f"{entry.layer}.{quoted(name, SPARK)}", quoted(name, SPARK))
    ]
