"""A Redis of a run's own; each test gets an empty one, or one with settings of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

import pytest

from tests.processes import free_port, until
from tests.servers import Server, needed

PROGRAMS: Final = ("redis-server", "valkey-server")


def program() -> str:
    """The server's program; skips a test where there is none, or no client."""
    needed(find_spec("redis"), "the extra `redis` is not installed: make setup")
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return needed(found, "Redis is missing: apt install redis-server")


@dataclass
class Redis(Server):
    """A server with its data in `home`, where every write is on the disk before it is answered."""

    settings: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        where = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.home))
        self.launch([program(), *where, *durable, *self.settings])
        until(self.answers)

    def answers(self) -> bool:
        import redis

        self.assert_up()
        with suppress(redis.exceptions.BusyLoadingError, redis.exceptions.ConnectionError):
            with suppress(redis.exceptions.AuthenticationError):
                self.client().ping()
            return True
        return False

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
