"""`lake serve http` as users start it, and a cheap client that keeps it busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

LAKE: Final = Path(sys.executable).with_name("lake")


@dataclass(frozen=True)
class Serving:
    """Running `lake serve http`: its `pid` differs from that of the `process` if another program watches it."""

    process: subprocess.Popen[str]
    url: str
    token: str
    pid: int

    @property
    def port(self) -> int:
        return int(urlsplit(self.url).port or 0)

    @property
    def allowed(self) -> dict[str, str]:
        """Return the header that authenticates."""
        return {"authorization": f"Bearer {self.token}"}


def start(project: Path, *options: str, under: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    """Start a server on a free port, `under` a program that watches it."""
    line = [*under, LAKE, "serve", "http", "--project", str(project), "--json", "--port", "0", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, env=os.environ | environment, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def ready(process: subprocess.Popen[str]) -> Serving:
    """Wait until the server listens."""
    assert process.stdout is not None
    text = ""
    while line := process.stdout.readline():
        text += line
        with suppress(ValueError):
            said = json.loads(text)
            if "url" not in said:
                break
            token = Path(said["token_file"]).read_text().strip() if said.get("token_file") else ""
            return Serving(process, said["url"], token, said["pid"])
    assert process.stderr is not None
    raise AssertionError(text + process.stderr.read())


@contextmanager
def serving(project: Path, *options: str, under: Sequence[str] = (), **environment: str) -> Iterator[Serving]:
    """Run a server until the end of the block, then stop it."""
    with start(project, *options, under=under, **environment) as process:
        pid = process.pid
        try:
            serving = ready(process)
            pid = serving.pid
            yield serving
        finally:
            if process.poll() is None:
                os.kill(pid, signal.SIGTERM)
            process.wait()


def request(serving: Serving, stream: str, body: bytes, kind: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a complete request as bytes."""
    told = {"host": "127.0.0.1", "content-type": kind, "content-length": str(len(body))} | serving.allowed
    lines = "".join(f"{name}: {value}\r\n" for name, value in (told | dict(headers or {})).items())
    return f"POST /streams/{stream} HTTP/1.1\r\n{lines}\r\n".encode() + body


@dataclass
class Client:
    """Connections that post one request after another, each as soon as the previous one is answered."""

    port: int
    make: Callable[[int], bytes]
    acknowledged: list[int] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    last: int = 0

    async def post(self, connections: int, until: Callable[[], bool]) -> None:
        """Post requests number 1, 2, 3 … until the condition holds or the server ends."""
        await asyncio.gather(*(self._connection(until) for _ in range(connections)))

    async def _connection(self, until: Callable[[], bool]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                while not until():
                    self.last = number = self.last + 1
                    began = time.monotonic()
                    writer.write(self.make(number))
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = int(head.split(None, 2)[1])
                    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    self.statuses[status] = self.statuses.get(status, 0) + 1
                    self.seconds.append(time.monotonic() - began)
                    if status in {200, 202}:
                        self.acknowledged.append(number)
            finally:
                writer.close()


def spooled(files: Sequence[Path]) -> list[Any]:
    """Return the records of spool files on disk: [stream, text, facts]."""
    return [json.loads(line) for file in sorted(files) for line in file.read_text().splitlines()]
