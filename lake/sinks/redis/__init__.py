"""Redis or Valkey as a target, a cache of rows. Options: docs/how-to/sink-redis.md.

A row's key is `<prefix><table>:<name>`, with the name of lake.sinks.json_rows. Up to `at_once` changes are one
transaction with the position, `<prefix>position`. A larger delivery is staged and swapped in by steps
(lake.sinks.redis.staged_swap), between which readers may see a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.sinks.redis.server import RedisServer
from lake.sinks.redis.target import RedisTarget

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


def of(name: str, options: Mapping[str, Any], where: str) -> RedisTarget:
    """Return the target, not connected. Raises DeclarationError."""
    server = RedisServer.of(options, where)
    return RedisTarget(name, server, options["prefix"] or f"{name}:", options["at_once"])
