"""Connection to a Redis server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sinks.server import SinkServer

CAUSED: Final = "of pipeline caused error: "
"""End of the part of a message that quotes the command, which has the row."""
REFUSED: Final[Mapping[str, tuple[type[LakeError], str]]] = {
    "NOAUTH": (DeclarationError, 'give it a password: password = "env:NAME"'),
    "WRONGPASS": (DeclarationError, "look at username and password"),
    "NOPERM": (
        DeclarationError,
        "allow the user the commands and the keys that it needs: see docs/how-to/sink-redis.md",
    ),
    "OOM": (Unavailable, "raise its maxmemory, or leave out columns or tables"),
    "READONLY": (Unavailable, "name the primary: this is a replica, or was made one"),
    "MISCONF": (Unavailable, "it cannot write to its disk, and refuses all changes: see its log"),
    "LOADING": (Unavailable, "it is loading its data: try again"),
    "BUSY": (Unavailable, "a script of somebody's keeps it busy: try again"),
    "MASTERDOWN": (Unavailable, "try again"),
    "TRYAGAIN": (Unavailable, "try again"),
    "CLUSTERDOWN": (Unavailable, "try again"),
    "NOREPLICAS": (Unavailable, "it has too few replicas to take changes"),
    **dict.fromkeys(
        ("MOVED", "ASK", "CROSSSLOT"),
        (DeclarationError, "deliver to a server that is no cluster: rows of one edition cannot change at once in one"),
    ),
}
"""By the first word of the server's error."""


class RedisServer(SinkServer):
    schemes = ("redis", "rediss", "unix")
    tls = "rediss"
    example = "redis://127.0.0.1:6379/0"
    errors = redis.exceptions.RedisError

    @cached_property
    def client(self) -> redis.Redis:
        """Deliveries are retried as a whole, so the client never retries."""
        more: dict[str, Any] = {"username": self.username or None, "password": self.password or None}
        if self.certificates:
            more["ssl_ca_certs"] = self.certificates
        return redis.Redis.from_url(
            self.url,
            socket_timeout=self.seconds,
            socket_connect_timeout=self.seconds,
            retry=Retry(NoBackoff(), 0),
            client_name="headwater",
            **{name: value for name, value in more.items() if value is not None},
        )

    def as_error(self, error: Exception) -> LakeError:
        message = str(error).rpartition(CAUSED)[2].strip() or type(error).__name__
        for word, (kind, fix) in REFUSED.items():
            if _begins(error, message, word):
                return kind(f"{self.place} refuses: {message}", where=self.where, fix=fix)
        if isinstance(error, redis.exceptions.TimeoutError):
            return Unavailable(
                f"{self.place} does not answer within {self.seconds} s",
                where=self.where,
                fix="try again, or give it more `seconds`",
            )
        if isinstance(error, redis.exceptions.ConnectionError):
            return Unavailable(
                f"{self.place} does not answer: {message}", where=self.where, fix="try again when it does"
            )
        return LakeError(f"{self.place} failed: {message}", where=self.where, fix="see the server's log")

    @property
    def place(self) -> str:
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname}:{parts.port or 6379}" if parts.hostname else f"Redis at {parts.path}"


def _begins(error: Exception, message: str, word: str) -> bool:
    """The client strips codes that it knows."""
    known = {
        "NOAUTH": (redis.exceptions.AuthenticationError,),
        "WRONGPASS": (redis.exceptions.AuthenticationError,),
        "OOM": (redis.exceptions.OutOfMemoryError,),
        "READONLY": (redis.exceptions.ReadOnlyError,),
        "NOPERM": (redis.exceptions.NoPermissionError,),
        "LOADING": (redis.exceptions.BusyLoadingError,),
        "CLUSTERDOWN": (redis.exceptions.ClusterDownError,),
        "MOVED": (redis.exceptions.AskError, redis.exceptions.ClusterCrossSlotError),
    }
    return f"{word} " in f"{message} " or isinstance(error, known.get(word, ()))
