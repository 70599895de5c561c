"""OpenSearch as `make opensearch` starts it, on a free port; each test gets it empty."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from lake.jars import listed
from tests.processes import ROOT, free_port, until
from tests.servers import needed

if TYPE_CHECKING:
    import opensearchpy

SERVER: Final = ROOT / "infra/opensearch/server.py"
JARS: Final = Path(os.environ.get("OPENSEARCH_JARS") or Path(sys.prefix) / "share/headwater/opensearch")


def installed() -> None:
    """Skips a test where the client or the server's jars are missing."""
    needed(find_spec("opensearchpy"), "the extra `opensearch` is not installed: make setup")
    there = all((JARS / jar.file).is_file() for jar in listed(ROOT / "infra/opensearch/jars.txt"))
    needed(there or None, "OpenSearch's jars are missing: make test-sinks fetches them")


def free_ports() -> int:
    """The first of two ports of this machine that nobody listens on."""
    while True:
        port = free_port()
        with suppress(OSError):
            import socket

            with socket.create_server(("127.0.0.1", port + 1)):
                return port


@dataclass
class OpenSearch:
    """A server with its data in `home`."""

    home: Path
    port: int = field(default_factory=free_ports)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [
            sys.executable,
            SERVER,
            "--home",
            self.home,
            "--jars",
            JARS,
            "--port",
            str(self.port),
        ]
        with (self.home / "out.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self.answers, seconds=180)

    def answers(self) -> bool:
        """Whether it does, and has all that it had. Fails where it has ended."""
        import opensearchpy

        assert self.process is not None
        assert self.process.poll() is None, "\n".join(log.read_text() for log in self.home.glob("*.log"))
        with suppress(opensearchpy.exceptions.OpenSearchException):
            health = self.client().cluster.health(wait_for_status="yellow", timeout="30s", request_timeout=40)
            return health["status"] in {"yellow", "green"}
        return False

    def stop(self) -> None:
        """Kills it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self) -> opensearchpy.OpenSearch:
        import opensearchpy

        return opensearchpy.OpenSearch(self.url, timeout=30)

    def empty(self) -> None:
        """Removes all that it has."""
        client = self.client()
        if names := list(client.indices.get_alias(index="*")):
            client.indices.delete(index=",".join(names))


@pytest.fixture(scope="session")
def opensearch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch]:
    """The one server of a run."""
    installed()
    server = OpenSearch(tmp_path_factory.mktemp("opensearch"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def opensearch(opensearch_server: OpenSearch) -> OpenSearch:
    """The server, empty."""
    opensearch_server.empty()
    return opensearch_server
