"""A receiver of webhooks on this machine: it verifies signatures, keeps what it takes, and misbehaves as it is told."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import pytest

from tests.processes import free_port
from tests.servers import needed

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VARIABLE: Final = "WEBHOOK_SECRET_OF_TESTS"


class Got(NamedTuple):
    """A message that was received: its id, its body, and its headers."""

    id: str
    body: dict[str, Any]
    headers: dict[str, str]


Answer = int | tuple[int, dict[str, str]] | bytes | None
"""A status; with headers; or none: the connection is reset. Bytes are the begin of an answer that drips on."""
DRIPS: Final = 400


@dataclass
class Webhook:
    """A receiver: `behave` is asked what to answer to each message; those of status 2xx are `taken`, in their order."""

    port: int = field(default_factory=free_port)
    behave: Callable[[Got], Answer] = lambda _: 204
    tried: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    dripped_out: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/changes?token=a-secret-of-the-address"

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens any more."""
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()

    def reset(self) -> None:
        """As it began."""
        self.behave = lambda _: 204
        self.dripped_out = 0
        self.tried.clear()
        self.taken.clear()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        from standardwebhooks import Webhook as Signed

        body = handler.rfile.read(int(handler.headers["content-length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        got = Got(headers["webhook-id"], Signed(SECRET).verify(body, headers), headers)
        with self.lock:
            self.tried.append(got)
        match self.behave(got):
            case None:
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.connection.close()
                handler.close_connection = True
                return
            case bytes(begin):
                return self.drip(handler, begin)
            case int(status):
                more: dict[str, str] = {}
            case (status, more):
                pass
        if 200 <= status < 300:
            with self.lock:
                self.taken.append(got)
        handler.send_response(status)
        for name, value in {"content-length": "0", **more}.items():
            handler.send_header(name, value)
        handler.end_headers()

    def drip(self, handler: BaseHTTPRequestHandler, begin: bytes) -> None:
        """Write `begin`, and then one byte after the other, each soon, until the sender closes the connection."""
        handler.close_connection = True
        with suppress(ConnectionError):
            for part in [begin, *[b"x"] * DRIPS]:
                handler.wfile.write(part)
                time.sleep(0.02)
            self.dripped_out += 1

    def changes(self) -> list[dict[str, Any]]:
        """The changes that were taken, those of batches among them; each once."""
        seen: dict[str, dict[str, Any]] = {}
        for got in self.taken:
            data = got.body["data"]
            for change in data if isinstance(data, list) else [data]:
                seen.setdefault(change["id"], change)
        return [*seen.values()]

    def rows(self) -> dict[str, Any]:
        """The rows of who applies what was taken, by key."""
        rows: dict[str, Any] = {}
        for change in self.changes():
            key = json.dumps(change["key"])
            if change["after"] is None:
                rows.pop(key, None)
            else:
                rows[key] = change["after"]
        return rows


def installed() -> None:
    """Skips a test where the extra is missing."""
    for package in ("httpx", "standardwebhooks"):
        needed(find_spec(package), "the extra `webhook` is not installed: make setup")


def slowly(seconds: float) -> Callable[[Got], Answer]:
    """Takes everything, after so many seconds."""

    def behave(_: Got) -> Answer:
        time.sleep(seconds)
        return 200

    return behave


@pytest.fixture(scope="session")
def _receiver() -> Iterator[Webhook]:
    installed()
    receiver = Webhook()
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture
def webhook(_receiver: Webhook, monkeypatch: pytest.MonkeyPatch) -> Webhook:
    """A running receiver that has received nothing."""
    monkeypatch.setenv(VARIABLE, SECRET)
    _receiver.reset()
    return _receiver
