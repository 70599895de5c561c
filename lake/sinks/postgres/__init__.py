"""A serving copy in PostgreSQL: kind = "postgres". Needs the extra `postgres`.

    kind = "postgres"
    url = "env:CRM_URL"                what libpq reads: host=… dbname=… user=… password=…, or postgresql://…
    schema = "lake"                    where the tables are made; it is made where it is missing
    readers = ["bi"]                   roles that are there, and may read the tables
    [tables.customer_daily]
    indexes = [["day"], ["customer", "day"]]   besides that of the key

All tables of an edition, and the position, are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg  # noqa: F401 - a sink whose extra is missing is told when it is read

from lake.errors import DeclarationError
from lake.sinks.postgres.target import Postgres

MODES: Final = ("mirror", "upsert", "append")
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"url": (str, None), "schema": (str, "lake"), "readers": (list, [])}
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {"indexes": (list, [])}


def of(name: str, options: Mapping[str, Any], where: str) -> Postgres:
    """The target that the file `where` declares; connects to nothing. Raises DeclarationError."""
    if not all(isinstance(role, str) for role in options["readers"]):
        raise DeclarationError(
            "readers: expected names of roles", where=where, fix='for example readers = ["bi"], which is there'
        )
    return Postgres(name, options["url"], options["schema"], tuple(options["readers"]), where)
