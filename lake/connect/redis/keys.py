"""Keys of a sink in Redis, and their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError
from lake.sinks.sink import TargetTable

TABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
FORMS: Final = ("json", "hash")
SPECIAL: Final = re.compile(r"[*?\[\]\\^]")


@dataclass(frozen=True)
class RedisKeys:
    """Row keys begin with a table's name; no table's name begins with `~`."""

    prefix: str

    @property
    def position(self) -> str:
        return f"{self.prefix}position"

    @property
    def staging(self) -> str:
        return f"{self.prefix}staging"

    @property
    def switch(self) -> str:
        return f"{self.prefix}switch"

    def rows(self, table: str) -> str:
        return f"{self.prefix}{table}:"

    def staged(self, delivery: str, table: str) -> str:
        return f"{self.prefix}~{delivery}:{table}:"

    def gone(self, delivery: str, table: str) -> str:
        return f"{self.prefix}~{delivery}-:{table}:"

    @property
    def all_staged(self) -> str:
        return f"{self.prefix}~"


def pattern(beginning: str) -> str:
    return SPECIAL.sub(r"\\\g<0>", beginning) + "*"


def check_table(table: TargetTable, where: str) -> None:
    if not TABLE.fullmatch(table.far):
        raise DeclarationError(
            f"{table.name} cannot be called {table.far!r} in Redis", where=where, fix="use letters, digits, _, - and ."
        )
    if (form := table.options["form"]) not in FORMS:
        raise DeclarationError(f"{table.name}: form: found {form!r}", where=where, fix='write "json" or "hash"')


def fields(row: str) -> dict[str, str]:
    """Columns that are null have no field; values other than text are JSON."""
    values: Mapping[str, Any] = json.loads(row)
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
        if value is not None
    }


def row_of(table: TargetTable, found: Mapping[bytes, bytes]) -> str:
    return json.dumps(dict(_values(table, found)), ensure_ascii=False)


def _values(table: TargetTable, found: Mapping[bytes, bytes]) -> Iterator[tuple[str, Any]]:
    for name, kind in table.types.items():
        value = found.get(name.encode())
        if value is not None:
            text = value.decode()
            yield name, json.loads(text) if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")) else text
