"""Names of indexes and documents."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from lake.errors import DeclarationError
from lake.sinks.sink import TargetTable

PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
TABLE: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
ID_BYTES: Final = 512
HASHED: Final = "%sha256-"


@dataclass(frozen=True)
class IndexNames:
    """Names of a sink's indexes. No table's name has a `~`."""

    prefix: str

    @classmethod
    def of(cls, prefix: str, where: str) -> IndexNames:
        if not PREFIX.fullmatch(prefix):
            raise DeclarationError(
                f"prefix: found {prefix!r}",
                where=where,
                fix="use a-z, digits, _, - and ., beginning with a letter or digit",
            )
        return cls(prefix)

    @property
    def positions(self) -> str:
        return f"{self.prefix}~position"

    def alias(self, table: str) -> str:
        return f"{self.prefix}{table}"

    def index(self, table: str, delivery: str) -> str:
        return f"{self.prefix}{table}~{delivery}"

    @staticmethod
    def writing(index: str) -> str:
        """Return the alias used for writing. Writing through an alias does not recreate a deleted index."""
        return f"{index}~writing"

    @property
    def made(self) -> str:
        return f"{self.prefix}*~*"

    def check_table(self, table: TargetTable, where: str) -> None:
        if not TABLE.fullmatch(table.far):
            raise DeclarationError(
                f"{table.name} cannot be called {table.far!r} in OpenSearch",
                where=where,
                fix="give it a `name` of a-z, digits, _, - and .",
            )


def id_of(name: str) -> str:
    """Return the `_id` for a row's name: the name, or a prefixed hash if it is too long."""
    if len(name.encode()) <= ID_BYTES and name:
        return name
    return HASHED + hashlib.sha256(name.encode()).hexdigest()
