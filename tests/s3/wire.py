"""Connection between a client and an S3 server: it counts requests, and loses an answer or cuts a request on demand."""

from __future__ import annotations

import re
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from lake.connect.s3.place import S3Settings

Fault = Literal["lose", "cut"]
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.I)
PART: Final = 1 << 16
WRITES: Final = {"PUT", "POST", "DELETE"}
SOON: Final = {
    f"lake.store.locks.lease.{name}": value for name, value in (("EXPIRED", 3.0), ("BEAT", 0.7), ("LOOK", 0.1))
}
"""Tuned so, a command takes the holder of a lease soon for dead."""


class Cut(Exception):
    """The connection ends here."""


@dataclass
class Wire:
    """Proxy that listens on `port` of this machine and talks to the server on `to`.

    If `fails` returns a fault for a request, its answer is lost or the request is cut; `happened` counts these.
    `struck` is called at each of them, before the client sees it.
    """

    to: int
    fails: Callable[[str, str], Fault | None] = lambda method, path: None
    struck: Callable[[], object] = lambda: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    happened: int = 0
    listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    @property
    def storage(self) -> S3Settings:
        """Return the storage settings of a project."""
        return S3Settings(endpoint=self.url, region="us-east-1", path_style=True)

    def counted(self) -> Counter[str]:
        """Return the number of requests by method, without those of leases and heartbeats, which depend on the time."""
        lives = ("/locks/", "locks%2F", "?delete")
        with self.lock:
            return Counter(method for method, path in self.requests if not any(part in path for part in lives))

    def kinds(self) -> dict[str, int]:
        """Return the number of requests of each kind, sorted, with listings apart from other GETs."""
        with self.lock:
            kinds = Counter("LIST" if "list-type=" in path else method for method, path in self.requests)
        return dict(sorted(kinds.items()))

    def serve(self) -> None:
        """Serve until it is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self.relay, args=[client], daemon=True).start()

    def relay(self, client: socket.socket) -> None:
        """Relay one connection until either side ends it."""
        server = socket.create_connection(("127.0.0.1", self.to))
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client, server, suppress(OSError, Cut):
            # A server closes idle connections: a client without notice would lose its next request.
            while server not in select.select([client, server], [], [])[0]:
                self.exchange(Stream(client), Stream(server), client, server)

    def exchange(self, asks: Stream, answers: Stream, client: socket.socket, server: socket.socket) -> None:
        """Relay a request and its answer."""
        head = asks.head()
        method, path = head.split(b" ", 2)[:2]
        with self.lock:
            self.requests.append((method.decode(), path.decode()))
            fault = self.fails(method.decode(), path.decode())
            self.happened += fault is not None
        length = int(found[1]) if (found := LENGTH.search(head)) else 0
        if b"100-continue" in head.lower():
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"\r\nexpect: *100-continue", b"", head, flags=re.I)
        server.sendall(head)
        for part in asks.body(length // 2 if fault == "cut" else length):
            server.sendall(part)
        if fault == "cut":
            self.struck()
            raise Cut
        answer = answers.head()
        bodiless = method == b"HEAD" or answer.split(b" ", 2)[1] in {b"204", b"304"}
        body = b"" if bodiless else answers.chunks() if CHUNKED.search(answer) else b"".join(answers.of(answer))
        if fault == "lose":
            self.struck()
            raise Cut
        client.sendall(answer + body)


@dataclass
class Stream:
    """Byte stream of one side."""

    of_socket: socket.socket
    held: bytes = b""

    def more(self) -> None:
        """Read more bytes. Raises Cut at the end."""
        part = self.of_socket.recv(PART)
        if not part:
            raise Cut
        self.held += part

    def head(self) -> bytes:
        """Return the lines before a body."""
        while b"\r\n\r\n" not in self.held:
            self.more()
        return self.take(self.held.index(b"\r\n\r\n") + 4)

    def take(self, size: int) -> bytes:
        """Return `size` bytes."""
        while len(self.held) < size:
            self.more()
        taken, self.held = self.held[:size], self.held[size:]
        return taken

    def body(self, length: int) -> Iterator[bytes]:
        """Yield `length` bytes in parts."""
        while length:
            part = self.take(min(length, PART))
            length -= len(part)
            yield part

    def of(self, head: bytes) -> Iterator[bytes]:
        """Yield the body whose length is in a head."""
        return self.body(int(found[1]) if (found := LENGTH.search(head)) else 0)

    def chunks(self) -> bytes:
        """Return a chunked body unchanged."""
        whole = b""
        while True:
            while b"\r\n" not in self.held:
                self.more()
            line = self.take(self.held.index(b"\r\n") + 2)
            size = int(line.split(b";")[0], 16)
            whole += line + self.take(size + 2)
            if not size:
                return whole


@contextmanager
def wired(to: int, fails: Callable[[str, str], Fault | None] | None = None) -> Iterator[Wire]:
    """Run a proxy to the server on the port `to`."""
    wire = Wire(to, fails) if fails else Wire(to)
    threading.Thread(target=wire.serve, daemon=True).start()
    try:
        yield wire
    finally:
        wire.listening.shutdown(socket.SHUT_RDWR)
        wire.listening.close()


def nth(number: int, method: str, pattern: str, fault: Fault) -> Callable[[str, str], Fault | None]:
    """Return a fault for request `number`, from 1, among those of a method and a path."""
    seen = 0

    def fails(asked: str, path: str) -> Fault | None:
        nonlocal seen
        seen += asked == method and bool(re.search(pattern, path))
        return fault if seen == number and asked == method and re.search(pattern, path) else None

    return fails


def nth_write(number: int, fault: Fault) -> Callable[[str, str], Fault | None]:
    """Return a fault for request `number`, from 1, among those that write."""
    seen = 0

    def fails(method: str, _: str) -> Fault | None:
        nonlocal seen
        seen += method in WRITES
        return fault if seen == number and method in WRITES else None

    return fails
