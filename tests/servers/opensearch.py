"""OpenSearch as `make server S=opensearch` starts it, on a free port; each test gets it empty."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from infra.server import OPENSEARCH
from tests.processes import PATIENCE, free_port, until
from tests.servers import Server
from tests.servers import installed as server_installed

if TYPE_CHECKING:
    import opensearchpy


def installed() -> None:
    """Skips a test where the client or the server's jars are missing."""
    server_installed(OPENSEARCH, "opensearchpy", "opensearch")


def free_ports() -> int:
    """The first of two ports of this machine that nobody listens on."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


@dataclass
class OpenSearch(Server):
    """A server with its data in `home`."""

    port: int = field(default_factory=free_ports)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.launch_own(OPENSEARCH, port=self.port)
        until(self.answers)

    def answers(self) -> bool:
        """Whether it does, and has all that it had. Fails where it has ended."""
        import opensearchpy

        self.assert_up()
        with suppress(opensearchpy.exceptions.OpenSearchException):
            health = self.client().cluster.health(wait_for_status="yellow", timeout="60s", request_timeout=PATIENCE)
            return health["status"] in {"yellow", "green"}
        return False

    def client(self) -> opensearchpy.OpenSearch:
        import opensearchpy

        return opensearchpy.OpenSearch(self.url, timeout=PATIENCE)

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
