"""A cache in Redis or Valkey: kind = "redis". Needs the extra `redis`.

    kind = "redis"
    url = "env:CACHE_URL"              redis://host:6379/0, rediss://… for TLS, unix://…; a password is not for files
    username = "", password = ""       where the url does not say them; "env:NAME"
    certificates = ""                  a PEM file of authorities that TLS trusts; default: those of the system
    prefix = "cache:"                  of all keys; default: the sink's name and a colon. No other sink may have it
    at_once = 10000                    so many changes, and 64 MiB, are the most that one step applies
    seconds = 10                       how long the server may take to answer
    [tables.customer]
    form = "json"                      a text of JSON for each row; or "hash": a hash with a field for each column

A row's key is `<prefix><table>:<name>`, where `name` is that of lake.sinks.json_rows. A delivery of up to `at_once`
changes is one transaction with the position, `<prefix>position`. A larger one is staged beside, and then switched to
in steps (lake.sinks.redis.switch), of which readers may see some and not the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.sinks.redis.server import RedisServer
from lake.sinks.redis.target import Redis

MODES: Final = ("mirror", "upsert")
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {
    "url": (str, None),
    "username": (str, ""),
    "password": (str, ""),
    "certificates": (str, ""),
    "prefix": (str, ""),
    "at_once": (int, 10_000),
    "seconds": (int, 10),
}
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"form": (str, "json")}


def of(name: str, options: Mapping[str, Any], where: str) -> Redis:
    """The target that the file `where` declares; connects to nothing. Raises DeclarationError."""
    server = RedisServer.of(options, where)
    return Redis(name, server, options["prefix"] or f"{name}:", options["at_once"])
