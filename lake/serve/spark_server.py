"""Spark Connect server of the project: one JVM that many commands share, for this machine alone."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.lazy import SparkSession
from lake.ops.doctor import java
from lake.progress import step
from lake.session import file_modes
from lake.session.file_modes import generated_token
from lake.session.remote import BINDING, HOST, TOKEN, connected, token_file
from lake.session.spark_session import embedded_server, first_line, has_jvm_ended
from lake.store.ledger.editions import Edition, current_edition
from lake.store.locks import activity
from lake.store.process import end_signals_handled
from lake.store.snapshot import published
from lake.store.warehouse import LAYERS, Warehouse
from lake.text import SPARK, literal, quoted

LOG: Final = "connect.log"
LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Server:
    """`remote` is the value of SPARK_REMOTE. `token_file` is None if the token came from the environment."""

    remote: str
    port: int
    pid: int
    token_file: Path | None
    log: Path


def serve(settings: Settings, *, port: int, on_ready: Callable[[Server], None]) -> None:
    """Run a Spark Connect server on `port` of loopback until SIGTERM or SIGINT. Calls `on_ready` once it listens.

    It is an embedded session. Its token is in the environment, else in a file for its owner alone, generated on first
    use. Raises DeclarationError if Java or the jars are missing, Unavailable if the port is in use or the JVM ends.
    """
    activity.end()  # the clients register themselves as readers
    log = settings.path(f".lake/spark/{LOG}")
    with step("start", f"Spark Connect on port {port}"):
        _check(settings, port)
        token_file = _set_token(settings)
        log.write_bytes(b"")
        catalogue = _Catalogue(settings, embedded_server(settings, port, log=LOG))
        catalogue.update()
    stopping = Event()
    with end_signals_handled(lambda _: stopping.set()):
        on_ready(Server(f"sc://localhost:{port}", port, os.getpid(), token_file, log))
        while not stopping.wait(LOOK_SECONDS):
            if has_jvm_ended():
                what, fix = "the JVM of the Spark Connect server has ended", "see the log, then start the server again"
                raise Unavailable(what, where=str(log), fix=fix)
            catalogue.update()


def _check(settings: Settings, port: int) -> None:
    runtime = java()
    if not runtime.ok:
        raise DeclarationError(f"no Java to run the server with: {runtime.found}", fix=runtime.fix)
    _check_guarded(settings)
    _check_port(port)


def await_ready(settings: Settings, *, port: int, patience: float) -> str:
    """Open a test session and return the server's version of Spark. Retry for `patience` seconds.

    Raises Unavailable if the server does not respond by then, DeclarationError if it rejects the token.
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
    """Views in the server of the current edition. If an update fails, it is tried again, and the server runs on."""

    settings: Settings
    spark: SparkSession
    edition: Edition | None = None
    is_created: bool = False
    failure: str = ""

    def update(self) -> None:
        try:
            current = current_edition(self.settings)
            if self.is_created and current == self.edition:
                return
            _update_views(self.settings, self.spark, current, previous=self.edition)
            self.edition, self.is_created, self.failure = current, True, ""
        except Exception as error:  # errors of Spark, Delta and the project
            if first_line(error) != self.failure and not has_jvm_ended():
                self.failure = first_line(error)
                logging.getLogger("lake").warning("the server's catalogue is not up to date: %s", self.failure)


def _check_guarded(settings: Settings) -> None:
    """Raise DeclarationError if the project's settings would open the server, or reveal its token."""
    address = settings.spark.conf.get(BINDING, HOST)
    if address not in {HOST, "localhost"}:
        raise DeclarationError(
            f"a server of a project listens on {HOST} only, found {address}",
            where=f"spark.conf: {BINDING}",
            fix="leave it out, and give others access through a tunnel or a TLS proxy on this machine",
        )
    if "spark.connect.authenticate.token" in settings.spark.conf:
        raise DeclarationError(
            "the server's token is in the settings, where anyone who reads them sees it",
            where="spark.conf: spark.connect.authenticate.token",
            fix=f"leave it out to have one generated, or set {TOKEN} in the environment",
        )


def _check_port(port: int) -> None:
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise Unavailable(
            f"cannot listen on port {port}: {os.strerror(error.errno or 0)}",
            where=f"{HOST}:{port}",
            fix="another server may be running: stop it, or choose another port with --port N",
        ) from None


def _set_token(settings: Settings) -> Path | None:
    """Set the server's token in the environment. Return its file, None if the environment has one."""
    file_modes.scratch(settings, "spark")
    if TOKEN in os.environ:
        return None
    file = token_file(settings)
    os.environ[TOKEN] = generated_token(file)
    return file


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
