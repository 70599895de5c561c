"""PostgreSQL as a target, a serving copy of tables. Options: docs/how-to/sink-postgres.md."""

from __future__ import annotations

from typing import Final

from lake.connect.postgres.sink.target import PostgresTarget
from lake.errors import DeclarationError
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.sink import Target


def _open(declaration: SinkDeclaration) -> Target:
    options, where = declaration.options, declaration.where
    if not all(isinstance(role, str) for role in options["readers"]):
        raise DeclarationError(
            "readers: expected names of roles", where=where, fix='for example readers = ["bi"], which is there'
        )
    schema, readers = options["schema"], tuple(options["readers"])
    return PostgresTarget(options["url"], name=declaration.name, where=where, schema=schema, readers=readers)


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert", "append"),
    options={"url": (str, None), "schema": (str, "lake"), "readers": (list, [])},
    table_options={"indexes": (list, [])},
)
