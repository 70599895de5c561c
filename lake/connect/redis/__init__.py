"""Redis or Valkey as a target, a cache of rows. Options: docs/how-to/sink-redis.md.

A row's key is `<prefix><table>:<name>`, with the name of lake.sinks.json_rows. Up to `at_once` changes are one
transaction. A larger delivery is swapped in by steps (`staged_swap`), between which readers may see a part of it.
"""

from __future__ import annotations

from typing import Final

from lake.connect.redis.server import RedisServer
from lake.connect.redis.target import RedisTarget
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.server import SERVER_OPTIONS
from lake.sinks.sink import Target


def _open(declaration: SinkDeclaration) -> Target:
    options = declaration.options
    server = RedisServer.of(options, declaration.where)
    return RedisTarget(declaration.name, server, options["prefix"] or f"{declaration.name}:", options["at_once"])


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert"),
    options={**SERVER_OPTIONS, "at_once": (int, 10_000), "seconds": (int, 10)},
    table_options={"form": (str, "json")},
)
