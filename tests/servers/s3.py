"""An S3 server as `make server S=s3` starts it, on a free port; each test gets a bucket of its own."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from infra import server
from lake.connect.s3.place import S3Settings
from tests.processes import free_port, until
from tests.servers import Server
from tests.servers import installed as server_installed

KEY: Final = {"AWS_ACCESS_KEY_ID": "headwater-tests", "AWS_SECRET_ACCESS_KEY": "of-no-worth-elsewhere"}
JARS: Final = Path(sys.prefix) / "share/headwater/jars"


def installed() -> None:
    """Skips a test where the client or the server's jars are missing."""
    server_installed(server.S3, "obstore", "s3")


@dataclass
class S3(Server):
    """A server with its buckets in `home`."""

    port: int = field(default_factory=free_port)
    latency: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> S3Settings:
        """What a project's settings say of it."""
        return S3Settings(endpoint=self.url, region="us-east-1", path_style=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a command's environment says of it."""
        named = {"ENDPOINT": self.url, "REGION": "us-east-1", "PATH_STYLE": "true"}
        return {**KEY, **{f"LAKE_STORAGE__{name}": value for name, value in named.items()}}

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.launch_own(server.S3, KEY, port=self.port, latency=self.latency)
        until(self.answers)

    def answers(self) -> bool:
        """Whether it does. Fails where it has ended."""
        self.assert_up()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def bucket(self) -> str:
        """The URL of a new bucket."""
        name = f"lake-{next(self.numbers)}"
        (self.home / "buckets" / name).mkdir()
        return f"s3://{name}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The one server of a run."""
    installed()
    buckets = S3(tmp_path_factory.mktemp("s3"))
    buckets.start()
    yield buckets
    buckets.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, whose key this process has."""
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    return s3_server
