"""A Redis of a run's own; each test gets an empty one, or one with settings of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.processes import free_port, until
from tests.servers import needed

PROGRAMS: Final = ("redis-server", "valkey-server")


def program() -> str:
    """The server's program; skips a test where there is none, or no client."""
    needed(find_spec("redis"), "the extra `redis` is not installed: make setup")
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return needed(found, "Redis is missing: apt install redis-server")


@dataclass
class Redis:
    """A server with its data in `home`, where every write is on the disk before it is answered."""

    home: Path
    settings: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        command = [program(), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.home), *durable]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.settings], stdout=log, stderr=log)
        until(self.answers)

    def answers(self) -> bool:
        import redis

        assert self.process is not None
        assert self.process.poll() is None, (self.home / "log").read_text()
        with suppress(redis.exceptions.BusyLoadingError, redis.exceptions.ConnectionError):
            with suppress(redis.exceptions.AuthenticationError):
                self.client().ping()
            return True
        return False

    def stop(self) -> None:
        """Kills it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self, **options: Any) -> Any:
        """A client whose answers are texts: of its stubs each may be anything."""
        import redis

        return redis.Redis.from_url(self.url, decode_responses=True, **options)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """The one server of a run."""
    program()
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(redis_server: Redis) -> Redis:
    """The server, empty."""
    redis_server.client().flushall()
    return redis_server
