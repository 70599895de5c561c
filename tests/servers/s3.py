"""An S3 server as `make s3` starts it, on a free port; each test gets a bucket of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from lake.config import StorageSettings
from lake.jars import listed
from tests.processes import ROOT, free_port, until
from tests.servers import needed

SERVER: Final = ROOT / "infra/s3/server.py"
JARS: Final = Path(os.environ.get("S3PROXY_JARS") or Path(sys.prefix) / "share/headwater/s3proxy")
KEY: Final = {"AWS_ACCESS_KEY_ID": "headwater-tests", "AWS_SECRET_ACCESS_KEY": "of-no-worth-elsewhere"}


def installed() -> None:
    """Skips a test where the client or the server's jars are missing."""
    needed(find_spec("obstore"), "the extra `s3` is not installed: make setup")
    there = all((JARS / jar.file).is_file() for jar in listed(ROOT / "infra/s3/jars.txt"))
    needed(there or None, "S3Proxy's jars are missing: make test-s3 fetches them")


@dataclass
class S3:
    """A server with its buckets in `home`."""

    home: Path
    port: int = field(default_factory=free_port)
    latency: int = 0
    process: subprocess.Popen[bytes] | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> StorageSettings:
        """What a project's settings say of it."""
        return StorageSettings(endpoint=self.url, region="us-east-1", path_style=True)

    @property
    def environment(self) -> dict[str, str]:
        """What a command's environment says of it."""
        named = {"ENDPOINT": self.url, "REGION": "us-east-1", "PATH_STYLE": "true"}
        return {**KEY, **{f"LAKE_STORAGE__{name}": value for name, value in named.items()}}

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        where = [
            "--home",
            str(self.home),
            "--jars",
            str(JARS),
            "--port",
            str(self.port),
            "--latency",
            str(self.latency),
        ]
        with (self.home / "out.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, SERVER, *where], stdout=log, stderr=log, env=os.environ | KEY
            )
        until(self.answers, seconds=60)

    def answers(self) -> bool:
        """Whether it does. Fails where it has ended."""
        import socket

        assert self.process is not None
        assert self.process.poll() is None, (self.home / "out.log").read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Kills it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def bucket(self) -> str:
        """The URL of a new bucket."""
        name = f"lake-{next(self.numbers)}"
        (self.home / "buckets" / name).mkdir()
        return f"s3://{name}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The one server of a run."""
    installed()
    server = S3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, whose key this process has."""
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    return s3_server
