"""What keys of a sink are called, and what is in those of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError
from lake.sinks.sink import FarTable

TABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
FORMS: Final = ("json", "hash")
SPECIAL: Final = re.compile(r"[*?\[\]\\^]")


@dataclass(frozen=True)
class Keys:
    """The keys of a sink. Those of rows begin with a table's name, and no table's name with `~`."""

    prefix: str

    @property
    def position(self) -> str:
        """What the sink has: JSON of a lake.sinks.sink.Position."""
        return f"{self.prefix}position"

    @property
    def staging(self) -> str:
        """Who is staging a delivery."""
        return f"{self.prefix}staging"

    @property
    def switch(self) -> str:
        """The delivery that is being switched to, in steps."""
        return f"{self.prefix}switch"

    def rows(self, table: str) -> str:
        """What the keys of a table's rows begin with."""
        return f"{self.prefix}{table}:"

    def staged(self, delivery: str, table: str) -> str:
        """What the keys of rows that are staged for a table begin with."""
        return f"{self.prefix}~{delivery}:{table}:"

    def gone(self, delivery: str, table: str) -> str:
        """What the keys that stand for rows that go begin with."""
        return f"{self.prefix}~{delivery}-:{table}:"

    @property
    def all_staged(self) -> str:
        """What everything that is staged begins with."""
        return f"{self.prefix}~"


def pattern(beginning: str) -> str:
    """The pattern of keys that begin so."""
    return SPECIAL.sub(r"\\\g<0>", beginning) + "*"


def must_be_sound(table: FarTable, where: str) -> None:
    """Raises DeclarationError for a table that cannot be kept as the sink's file says."""
    if not TABLE.fullmatch(table.far):
        raise DeclarationError(
            f"{table.name} cannot be called {table.far!r} in Redis", where=where, fix="use letters, digits, _, - and ."
        )
    if (form := table.options["form"]) not in FORMS:
        raise DeclarationError(f"{table.name}: form: found {form!r}", where=where, fix='write "json" or "hash"')


def fields(row: str) -> dict[str, str]:
    """The fields of a hash: the columns of a row, given as JSON, that are not null; what is no text is JSON."""
    values: Mapping[str, Any] = json.loads(row)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value is not None
    }


def row_of(table: FarTable, found: Mapping[bytes, bytes]) -> str:
    """The JSON of a row, given as the fields of its hash."""
    return json.dumps(dict(_values(table, found)), ensure_ascii=False)


def _values(table: FarTable, found: Mapping[bytes, bytes]) -> Iterator[tuple[str, Any]]:
    for name, kind in table.types.items():
        value = found.get(name.encode())
        if value is not None:
            text = value.decode()
            yield name, json.loads(text) if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")) else text
