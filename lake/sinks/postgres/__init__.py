"""PostgreSQL as a target, a serving copy of tables. Options: docs/how-to/sink-postgres.md.

One transaction writes all tables of an edition, and the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg  # noqa: F401 - a sink whose extra is missing is told when it is read

from lake.errors import DeclarationError
from lake.sinks.postgres.target import PostgresTarget

MODES: Final = ("mirror", "upsert", "append")
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"url": (str, None), "schema": (str, "lake"), "readers": (list, [])}
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"indexes": (list, [])}


def of(name: str, options: Mapping[str, Any], where: str) -> PostgresTarget:
    """Return the target, not connected. Raises DeclarationError."""
    if not all(isinstance(role, str) for role in options["readers"]):
        raise DeclarationError(
            "readers: expected names of roles", where=where, fix='for example readers = ["bi"], which is there'
        )
    return PostgresTarget(name, options["url"], options["schema"], tuple(options["readers"]), where)
