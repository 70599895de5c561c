"""Server of a session, and errors without one. No JVM."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings, SparkSettings
from lake.errors import DeclarationError, Unavailable
from lake.serve.spark_server import serve
from lake.session.remote import TOKEN, token_file
from lake.session.spark_session import embedded, gone, lost, start


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that a session sets after each test."""
    monkeypatch.setenv(TOKEN, "")
    monkeypatch.delenv(TOKEN)


@pytest.fixture
def port() -> Iterator[int]:
    """Bind a port that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def at(project: Settings, remote: str) -> Settings:
    return replace(project, spark=SparkSettings(remote=remote))


@pytest.mark.parametrize("remote", ["localhost:15002", "http://localhost", "sc://", "sc://localhost:many"])
def test_invalid_address_is_reported_with_an_example(project: Settings, remote: str) -> None:
    with pytest.raises(DeclarationError, match="write sc://localhost:15002"):
        start(at(project, remote))


@pytest.mark.parametrize(
    ("remote", "fix"),
    [
        ("sc://127.0.0.1:9/;token=secret", "sc://localhost:9/;token=…"),
        ("sc://[::1]:9/;token=secret", "sc://localhost:9/;token=…"),
        ("sc://[::1]/;token=secret", "sc://localhost:15002/;token=…"),
        ("sc://127.0.0.1/;user_id=127.0.0.1;token=secret", "sc://localhost:15002/;user_id=127.0.0.1;token=…"),
    ],
)
def test_token_is_sent_to_localhost_by_name_only(project: Settings, remote: str, fix: str) -> None:
    with pytest.raises(DeclarationError, match=r"localhost, found (127\.0\.0\.1|::1)") as told:
        start(at(project, remote))
    assert told.value.fix == f"write {fix}"
    assert "secret" not in str(told.value)


def test_missing_server_is_unavailable(project: Settings) -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        start(at(project, f"sc://localhost:{_free()}"))


def test_port_in_use_is_named(project: Settings, port: int) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on port {port}: Address already in use"):
        serve(project, port=port, on_ready=lambda _: None)


def test_token_readable_by_others_is_rejected(project: Settings) -> None:
    file = token_file(project)
    file.parent.mkdir(parents=True)
    file.write_text("secret")
    file.chmod(0o644)
    with pytest.raises(DeclarationError, match="others can read the server's token"):
        serve(project, port=_free(), on_ready=lambda _: None)


def test_connect_server_requires_java(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(DeclarationError, match="no bin/java in JAVA_HOME=/nowhere"):
        serve(project, port=_free(), on_ready=lambda _: None)


def test_interrupts_are_handled_as_before_a_session_starts(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(_: object) -> SparkSession:
        signal.signal(signal.SIGINT, lambda *_: None)  # as PySpark does
        raise RuntimeError("no JVM in this test")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", started)
    monkeypatch.setattr("lake.session.spark_session.class_path", lambda _: "")
    seen = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with pytest.raises(Unavailable, match="no JVM in this test"):
            embedded(project)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_lost_session_is_distinguished_from_other_errors() -> None:
    assert gone(ConnectionRefusedError("[Errno 111] Connection refused"))
    assert gone(ValueError("no such column")) is None
    executor = RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_3_0 not found!")
    assert gone(executor) is None
    assert "an executor with rows of this command has ended" in str(lost(executor))


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"spark.connect.grpc.binding.address": "0.0.0.0"}, r"listens on 127\.0\.0\.1 only, found 0\.0\.0\.0"),
        ({"spark.connect.authenticate.token": "hush"}, "the server's token is in the settings"),
    ],
)
def test_server_requires_loopback_and_the_token(project: Settings, conf: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as told:
        serve(replace(project, spark=SparkSettings(conf=conf)), port=_free(), on_ready=lambda _: None)
    assert "hush" not in str(told.value)
