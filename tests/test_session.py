"""Which server a session is of, and what is said where there is none. No JVM."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lake.config import Settings, SparkSettings
from lake.errors import DeclarationError, Unavailable
from lake.serve.spark_server import connect
from lake.session.remote import TOKEN, token_file
from lake.session.spark_session import gone, lost, start


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session puts into the environment is gone after each test."""
    monkeypatch.setenv(TOKEN, "")
    monkeypatch.delenv(TOKEN)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is taken, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def at(project: Settings, remote: str) -> Settings:
    return replace(project, spark=SparkSettings(remote=remote))


@pytest.mark.parametrize("remote", ["localhost:15002", "http://localhost", "sc://", "sc://localhost:many"])
def test_what_is_no_address_is_told_with_one_that_is(project: Settings, remote: str) -> None:
    with pytest.raises(DeclarationError, match="write sc://localhost:15002"):
        start(at(project, remote))


def test_a_token_goes_to_localhost_by_this_name_alone(project: Settings) -> None:
    with pytest.raises(DeclarationError, match=r"localhost, found 127\.0\.0\.1") as told:
        start(at(project, "sc://127.0.0.1:15002/;token=secret"))
    assert "secret" not in str(told.value)


def test_a_server_that_is_not_there_may_come(project: Settings) -> None:
    with pytest.raises(Unavailable, match="Connection refused"):
        start(at(project, f"sc://localhost:{_free()}"))


def test_a_port_that_is_taken_is_named(project: Settings, port: int) -> None:
    with pytest.raises(Unavailable, match=f"cannot listen on port {port}: Address already in use"):
        connect(project, port=port, ready=lambda _: None)


def test_a_token_that_others_can_read_is_refused(project: Settings) -> None:
    file = token_file(project)
    file.parent.mkdir(parents=True)
    file.write_text("secret")
    file.chmod(0o644)
    with pytest.raises(DeclarationError, match="others can read the server's token"):
        connect(project, port=_free(), ready=lambda _: None)


def test_no_server_without_java(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(DeclarationError, match="no bin/java in JAVA_HOME=/nowhere"):
        connect(project, port=_free(), ready=lambda _: None)


def test_only_a_lost_session_is_called_lost() -> None:
    assert gone(ConnectionRefusedError("[Errno 111] Connection refused"))
    assert gone(ValueError("no such column")) is None
    executor = RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_3_0 not found!")
    assert gone(executor) is None
    assert "an executor has ended" in str(lost(executor))


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
def test_a_server_is_for_this_machine_and_for_who_has_the_token(
    project: Settings, conf: dict[str, str], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said) as told:
        connect(replace(project, spark=SparkSettings(conf=conf)), port=_free(), ready=lambda _: None)
    assert "hush" not in str(told.value)
