"""What indexes and documents are called."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from lake.errors import DeclarationError
from lake.sinks.sink import FarTable

PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
TABLE: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
ID_BYTES: Final = 512
HASHED: Final = "%sha256-"


@dataclass(frozen=True)
class Names:
    """The indexes of a sink: no name of a table has a `~`."""

    prefix: str

    @classmethod
    def of(cls, prefix: str, where: str) -> Names:
        """Raises DeclarationError for a prefix that no index may have."""
        if not PREFIX.fullmatch(prefix):
            raise DeclarationError(
                f"prefix: found {prefix!r}",
                where=where,
                fix="use a-z, digits, _, - and ., beginning with a letter or digit",
            )
        return cls(prefix)

    @property
    def positions(self) -> str:
        """The index of positions."""
        return f"{self.prefix}~position"

    def alias(self, table: str) -> str:
        """What readers call a table."""
        return f"{self.prefix}{table}"

    def index(self, table: str, delivery: str) -> str:
        """An index that a delivery makes for a table."""
        return f"{self.prefix}{table}~{delivery}"

    @staticmethod
    def writing(index: str) -> str:
        """The alias by which an index is written: what is written by an alias makes no index where it is gone."""
        return f"{index}~writing"

    @property
    def made(self) -> str:
        """The pattern of all indexes that deliveries make."""
        return f"{self.prefix}*~*"

    def must_be_sound(self, table: FarTable, where: str) -> None:
        """Raises DeclarationError for a table that no index can be called as."""
        if not TABLE.fullmatch(table.far):
            raise DeclarationError(
                f"{table.name} cannot be called {table.far!r} in OpenSearch",
                where=where,
                fix="give it a `name` of a-z, digits, _, - and .",
            )


def id_of(name: str) -> str:
    """The `_id` of the row of a name. No name begins as those do that are hashed."""
    if len(name.encode()) <= ID_BYTES and name:
        return name
    return HASHED + hashlib.sha256(name.encode()).hexdigest()
