"""Limits of connections: half-open ones, slow and long heads, and too many at once."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from lake.serve import connections
from tests import intake
from tests.reading import Served, served, small
from tests.servers.http import installed

pytestmark = pytest.mark.http
PATIENCE = 60.0


@contextmanager
def open_connections(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open `count` connections, each of which sends the beginning of a request."""
    with ExitStack() as ends:
        connections = []
        for _ in range(count):
            connection = ends.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            connection.sendall(sent)
            connections.append(connection)
        yield connections


def answer(connection: socket.socket) -> bytes:
    """Return the bytes received until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def trickle(connection: socket.socket) -> None:
    """Send single bytes until the server closes the connection."""
    while True:
        connection.sendall(b"x")
        with suppress(TimeoutError):
            if not connection.recv(1 << 16):
                raise ConnectionResetError


def flood(connection: socket.socket, part: bytes) -> None:
    """Send much more than a server may buffer before it answers. Fail if it closes the connection."""
    for _ in range(1_000):
        connection.sendall(part)


def problem(text: bytes) -> tuple[int, str]:
    """Return the status and the kind of problem of a raw answer."""
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), str(json.loads(body)["type"]).removeprefix("/problems#")


@pytest.mark.parametrize("sent", [b"GET /tables HTTP/1.1\r\nhost: x\r\n"])
def test_half_open_connections_do_not_block_others(tmp_path: Path, sent: bytes) -> None:
    installed()
    project = small(tmp_path / "shop")
    with intake.serving(project.project, under=["prlimit", "--nofile=256:256"]) as serving:
        site = Served(project, serving)
        with open_connections(serving.port, 600, sent):
            assert site.get("/tables").status_code == 200
            assert site.sql("select 1 as one").json() == [{"one": 1}]


@pytest.mark.parametrize("sent", [b"", b"G", b"POST /sql HTTP/1.1\r\ncontent-length: 5\r\n"])
def test_head_that_does_not_arrive_in_time_is_answered_408(tmp_path: Path, sent: bytes) -> None:
    installed()
    with (
        served(tmp_path / "shop", "[tool.lake.serve]\nhead_seconds = 0.2\n") as site,
        open_connections(site.serving.port, 1, sent) as [slow],
    ):
        assert problem(answer(slow)) == (408, "too-slow")


@pytest.mark.parametrize(
    "sent",
    [
        b"NO HTTP\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nNO HTTP\r\n\r\n",
        b"POST /sql HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /sql HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n",
    ],
)
def test_invalid_http_is_answered_by_a_problem(tmp_path: Path, sent: bytes) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        with open_connections(site.serving.port, 1) as [wrong]:
            first, _, rest = sent.partition(b"NO HTTP") if sent.startswith(b"GET") else (b"", b"", b"")
            if first:
                wrong.sendall(first)
                assert b"200 OK" in wrong.recv(1 << 16)
            wrong.sendall(b"NO HTTP" + rest if first else sent)
            assert problem(answer(wrong)) == (400, "wrong-request")
        assert site.get("/health").status_code == 200


def test_connection_is_closed_when_the_next_head_arrives_too_slowly(tmp_path: Path) -> None:
    installed()
    whole = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    for rest in (b"GET /health HT", b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"):
        with (
            served(tmp_path / f"shop{len(rest)}", "[tool.lake.serve]\nhead_seconds = 0.2\n") as site,
            open_connections(site.serving.port, 1, whole + rest) as [drip],
        ):
            assert b"200 OK" in drip.recv(1 << 16)
            drip.settimeout(0.05)
            with pytest.raises(ConnectionError):  # the server closes it although bytes keep arriving
                trickle(drip)


def test_head_of_any_length_is_cut_off(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site, open_connections(site.serving.port, 1, b"GET / HTTP/1.1\r\n") as [long]:
        with pytest.raises(ConnectionError):
            long.sendall((b"x-header: " + b"x" * 1000 + b"\r\n") * 100_000)
        assert site.get("/health").status_code == 200


@pytest.mark.parametrize(
    "head", [b"GET /health HTTP/1.1\r\nhost: x\r\nx-long: %b", b"GET /health?%b HTTP/1.1\r\nhost: x"]
)
@pytest.mark.parametrize(("length", "status"), [(60_000, 200), (66_000, 431), (70_000, 431), (500_000, 431)])
def test_length_of_a_head_that_arrives_at_once_is_limited(
    tmp_path: Path, head: bytes, length: int, status: int
) -> None:
    installed()
    sent = head % (b"x" * length) + b"\r\nconnection: close\r\n\r\n"
    with served(tmp_path / "shop") as site, open_connections(site.serving.port, 1) as [long]:
        with suppress(ConnectionError):
            long.sendall(sent)
        assert int(answer(long).split()[1]) == status
        assert site.get("/health").status_code == 200


@pytest.mark.parametrize("setting", ["connections", "connections_per_address"])
def test_connection_is_answered_503_when_requests_use_all_connections(tmp_path: Path, setting: str) -> None:
    installed()
    with served(tmp_path / "shop", f"[tool.lake.serve]\n{setting} = 3\n") as site:
        token = site.reader("all")
        head = f"POST /sql HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 9\r\n\r\n"
        begun = f"{head}select".encode()
        with open_connections(site.serving.port, 3, begun) as [first, *_]:
            refused = httpx.get(f"{site.serving.url}/health")
            assert (refused.status_code, refused.json()["type"]) == (503, "/problems#too-many")
            assert refused.headers["retry-after"] == "1"
            first.sendall(b" 1;")
            assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert httpx.get(f"{site.serving.url}/health").status_code == 200


def test_limit_of_open_files_is_raised_for_connections(tmp_path: Path) -> None:
    installed()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    project = small(tmp_path / "shop")
    with intake.serving(project.project, under=["prlimit", f"--nofile=128:{hard}"]) as serving:
        limits = Path(f"/proc/{serving.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert int(line.split()[3]) == min(2000, hard)


def test_connection_is_not_upgraded_to_a_websocket(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert httpx.get(f"{site.serving.url}/health", headers=upgrade).json() == {"status": "ok"}
        site.serving.process.terminate()
        assert site.serving.process.stderr is not None
        assert "pip install" not in site.serving.process.stderr.read()


def test_connection_that_sends_many_requests_ahead_is_closed(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site, open_connections(site.serving.port, 1) as [ahead]:
        with pytest.raises(ConnectionError):
            flood(ahead, b"GET /problems HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
        assert site.get("/health").status_code == 200


def test_long_head_is_cut_off_while_an_earlier_request_is_in_progress(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site, open_connections(site.serving.port, 1) as [ahead]:
        query = b"select levenshtein(repeat('a', 400000), repeat('b', 400000))"
        head = f"POST /sql HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.reader('all')}\r\n"
        ahead.sendall(f"{head}content-length: {len(query)}\r\n\r\n".encode() + query + b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            flood(ahead, (b"x-header: " + b"x" * 1000 + b"\r\n") * 100)
        assert site.get("/health").status_code == 200


CHUNKED = b"POST /sql HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
LAST_CHUNK = b"\r\n8\r\nselect 1\r\n0\r\n"


def test_connection_that_sends_long_trailers_is_closed(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        token = f"authorization: Bearer {site.reader('all')}\r\n".encode()
        for head in (CHUNKED, CHUNKED + token):  # answered before its end, and after it
            for part in (b"x" * 100_000, b"x: y\r\n" * 20_000):
                with (
                    open_connections(site.serving.port, 1, head + LAST_CHUNK) as [long],
                    pytest.raises(ConnectionError),
                ):
                    flood(long, part)
        trailer = LAST_CHUNK + token + b"\r\n"
        with open_connections(site.serving.port, 1, CHUNKED + b"connection: close\r\n" + trailer) as [trailing]:
            assert problem(answer(trailing)) == (401, "no-reader")


class _Http:
    """A request in progress that never advances."""

    cycle = None

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_made(self, transport: object) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


class _Transport(asyncio.Transport):
    """A transport whose client receives `taken` bytes between two checks."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.left, self.taken, self.aborted = 1 << 20, taken, asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.left -= self.taken
        return self.left

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize("taken", [0, 1])
def test_connection_is_closed_when_its_client_receives_nothing(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.001)

    async def stall() -> int:
        transport = _Transport(taken)
        connection = connections.Connection(connections.Connections(1, 1, 60.0), cast(Any, _Http()))
        connection.connection_made(transport)
        connection.pause_writing()
        await transport.aborted.wait()
        connection.connection_lost(None)
        return transport.left

    assert asyncio.run(stall()) >= (1 << 20) - 2


def test_connection_stays_when_its_client_receives_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.001)

    async def take() -> bool:
        transport = _Transport(connections.WRITE_BYTES)
        connection = connections.Connection(connections.Connections(1, 1, 60.0), cast(Any, _Http()))
        connection.connection_made(transport)
        connection.pause_writing()
        while transport.left > 0:
            await asyncio.sleep(0)
        connection.resume_writing()
        connection.connection_lost(None)
        return transport.aborted.is_set()

    assert not asyncio.run(take())
