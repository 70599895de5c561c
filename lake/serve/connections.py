"""Limits of connections: open ones, in total and per address, and the size of a request's head.

At a limit, the oldest connection without a request in progress is closed for the new one, so idle connections lock
nobody out; a new one is rejected (503) only if there is none. A connection is also closed if its client reads no
answer, or pipelines too many requests.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lake.config import ServeSettings
from lake.serve.problems import Problem

ACCEPTED_AT_ONCE: Final = 256
HEAD_BYTES: Final = 64 << 10
UNREAD_BODY_BYTES: Final = 64 << 20
"""Most bytes of a body that are dropped after its request was answered."""
PIPELINED: Final = 64
WRITE_SECONDS: Final = 30.0
"""Seconds within which a client has to read WRITE_BYTES of an answer."""
WRITE_BYTES: Final = 16 << 10


class LongHead(Exception):
    pass


class HttpWithoutTrailers(HttpToolsProtocol):
    """Uvicorn's protocol without trailers, which httptools would add to the headers. Counts bytes of heads and bodies.

    It rejects a long head even if that arrives at once. Upgrades such as WebSocket are ignored.
    """

    body_bytes = 0
    has_long_head = False
    is_invalid = False
    _head_bytes = 0
    _in_body = False

    def on_message_begin(self) -> None:
        self._in_body = False
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            self._head_bytes += len(name) + len(value) + len(": \r\n")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body = True
        if self._head_bytes > HEAD_BYTES:
            self.has_long_head = True
            raise LongHead
        super().on_headers_complete()

    def send_400_response(self, _: str) -> None:
        self.is_invalid = True  # `Connection` answers

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: its advice is to install another package."""

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        super().on_body(body)


def protocol(serve: ServeSettings) -> type[asyncio.Protocol]:
    total = min(serve.connections, _descriptors(2 * serve.connections) // 2)
    connections = Connections(total, min(total, serve.connections_per_address), serve.head_seconds)

    class Guarded(Connection):
        def __init__(self, **options: Any) -> None:
            super().__init__(connections, HttpWithoutTrailers(**options))

    return Guarded


def _descriptors(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most) if soft != resource.RLIM_INFINITY else wanted


@dataclass
class Connections:
    total: int
    per_address: int
    head_seconds: float
    _by_address: dict[str, dict[Connection, None]] = field(default_factory=dict)

    def admit(self, connection: Connection) -> None:
        own = self._by_address.get(connection.address, {})
        if len(own) >= self.per_address:
            self._close_idle([own], f"{self.per_address:,} connections from this address")
        elif sum(map(len, self._by_address.values())) >= self.total:
            largest_first = sorted(self._by_address.values(), key=len, reverse=True)
            self._close_idle(largest_first, f"{self.total:,} connections")
        self._by_address.setdefault(connection.address, {})[connection] = None

    def discard(self, connection: Connection) -> None:
        own = self._by_address.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_address.pop(connection.address, None)

    def _close_idle(self, groups: Iterable[Iterable[Connection]], found: str) -> None:
        for group in groups:
            idle = [connection for connection in group if connection.is_idle]
            if idle:  # those that never had a request come first
                oldest = min(idle, key=lambda connection: connection.was_used)
                self.discard(oldest)
                oldest.transport.abort()
                return
        raise Problem("too-many", f"{found} have a request in progress", after=1.0)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport
    address: str = ""

    def __init__(self, connections: Connections, http: HttpWithoutTrailers) -> None:
        self.connections, self.http = connections, http
        self.is_admitted = self.is_refused = self.was_used = False
        self._unread_bytes = self._framing_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return self.http.cycle is None or self.http.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        try:
            self.connections.admit(self)
        except Problem as problem:
            self._refuse(problem)
            return
        self.is_admitted = True
        self.http.connection_made(self.transport)
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        newest, body_bytes = self.http.cycle, self.http.body_bytes
        if self.is_idle:
            self._begin_head()
        if newest is None or newest.response_complete or not newest.more_body:
            self._unread_bytes += len(data)
        self.http.data_received(data)
        if self.http.has_long_head:
            return self._refuse(Problem("long-head", f"more than {HEAD_BYTES:,} bytes"))
        if self.http.is_invalid:
            return self._refuse(Problem("wrong-request", "not a valid HTTP request"))
        self._framing_bytes = 0 if self.http.body_bytes > body_bytes else self._framing_bytes + len(data)
        if self.http.cycle is not newest:
            self.was_used = True
            self._end_head()
            if len(self.http.pipeline) > PIPELINED:
                self._refuse(Problem("too-many", f"more than {PIPELINED} requests wait on a connection"))
        elif self._framing_bytes > HEAD_BYTES:  # trailers, or chunk extensions
            self._refuse(Problem("long-head", f"more than {HEAD_BYTES:,} bytes"))
        elif self._unread_bytes > (most := UNREAD_BODY_BYTES if self._is_rest_of_body else HEAD_BYTES):
            self._refuse(Problem("long-head", f"more than {most:,} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._end_head()
        self._stop_write_timer()
        if self.is_admitted:
            self.http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._check_later()
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        self.http.resume_writing()

    def _check_later(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._write_timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < WRITE_BYTES:
            self.transport.abort()
        else:
            self._check_later()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    @property
    def _can_answer(self) -> bool:
        """Return False if another answer has begun or comes first."""
        is_receiving = self._is_rest_of_body and not self.http.cycle.response_started
        return not self.http.pipeline and (self.is_idle or is_receiving)

    @property
    def _is_rest_of_body(self) -> bool:
        return self.http.cycle is not None and self.http.cycle.more_body

    def _begin_head(self) -> None:
        if self._head_timer is None:
            seconds, loop = self.connections.head_seconds, asyncio.get_running_loop()
            problem = Problem("too-slow", f"its head took more than {seconds:g} s")
            self._head_timer = loop.call_later(seconds, self._refuse, problem)

    def _end_head(self) -> None:
        self._unread_bytes = self._framing_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, problem: Problem) -> None:
        self.is_refused = True
        if self._can_answer:
            answer = problem.response
            headers = {name.decode(): value.decode() for name, value in answer.raw_headers} | {"connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            first = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
            self.transport.write(f"{first}{lines}\r\n".encode() + bytes(answer.body))
        self.transport.close()
