"""Indexes of a sink: their names, document ids, and mappings.

Fields are only searched; rows are read back from the unchanged source. Decimals of up to 15 digits are scaled integers,
others doubles. Binary, maps and non-finite numbers are stored but not searchable. A list is mapped as its element; a
list of structs is flattened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError, did_you_mean
from lake.session.duck import connect
from lake.sinks.sink import TargetTable

PREFIX: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
TABLE: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
ID_BYTES: Final = 512
HASHED: Final = "%sha256-"
KEYWORD_CHARACTERS: Final = 8191
"""At most 32,766 bytes, the limit of a keyword."""
EXACT_DIGITS: Final = 15
SIMPLE: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "tinyint": {"type": "byte"},
    "smallint": {"type": "short"},
    "integer": {"type": "integer"},
    "bigint": {"type": "long"},
    "float": {"type": "float", "ignore_malformed": True},
    "double": {"type": "double", "ignore_malformed": True},
    "date": {"type": "date", "format": "strict_date_optional_time"},
    "timestamp": {"type": "date", "format": "strict_date_optional_time"},
    "timestamp with time zone": {"type": "date", "format": "strict_date_optional_time"},
    "blob": {"type": "keyword", "index": False, "doc_values": False},
    "varchar": {
        "type": "text",
        "fields": {"keyword": {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS}},
    },
    "map": {"type": "object", "enabled": False},
}


@dataclass(frozen=True)
class IndexNames:
    """No table's name has a `~`."""

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
        """Return the alias to write by: unlike a write by the index's name, it does not recreate a deleted index."""
        return f"{index}~writing"

    @property
    def staged_pattern(self) -> str:
        return f"{self.prefix}*~*"

    def check_table(self, table: TargetTable, where: str) -> None:
        if not TABLE.fullmatch(table.far):
            raise DeclarationError(
                f"{table.name} cannot be called {table.far!r} in OpenSearch",
                where=where,
                fix="give it a `name` of a-z, digits, _, - and .",
            )


def id_of(name: str) -> str:
    if len(name.encode()) <= ID_BYTES and name:
        return name
    return HASHED + hashlib.sha256(name.encode()).hexdigest()


def index_body(table: TargetTable, where: str) -> dict[str, Any]:
    declared: Mapping[str, Any] = table.options["mapping"]
    for column in declared:
        if column not in table.types:
            raise DeclarationError(
                f"{table.name}: mapping: no column {column!r}", where=where, fix=did_you_mean(column, table.types)
            )
    with connect() as con:
        types = {name: con.type(kind) for name, kind in table.types.items()}
    properties = {name: declared.get(name) or _mapping(kind, name in table.identity) for name, kind in types.items()}
    described = {"table": table.name, "doc": table.doc}
    mappings = {"dynamic": False, "_meta": described, "properties": properties}
    return {"settings": {"gc_deletes": "1h", **_without_prefix(table.options["settings"])}, "mappings": mappings}


def _without_prefix(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings may be named `index.NAME`, or NAME in a table `index`."""
    within = settings.get("index", {})
    named = {name.removeprefix("index."): value for name, value in settings.items() if name != "index"}
    return {**(within if isinstance(within, dict) else {"index": within}), **named}


def _mapping(kind: Any, is_key: bool = False) -> Mapping[str, Any]:
    match kind.id:
        case "list":
            return _mapping(kind.children[0][1])
        case "struct":
            return {"type": "object", "properties": {name: _mapping(inner) for name, inner in kind.children}}
        case "decimal":
            (_, precision), (_, scale) = kind.children
            if precision > EXACT_DIGITS:
                return {"type": "double"}
            return {"type": "scaled_float", "scaling_factor": 10**scale}
        case "varchar" if is_key:
            return {"type": "keyword"}
    return SIMPLE[kind.id]


def reason(error: Mapping[str, Any]) -> str:
    """Return why a document was rejected, without its values, which may be personal."""
    innermost = error
    while isinstance(innermost.get("caused_by"), dict):
        innermost = innermost["caused_by"]
    field = re.search(r"field \[([^\]]+)\]|field=\"([^\"]+)\"", str(error.get("reason", "")))
    about = f"{field[1] or field[2]}: " if field else ""
    why = re.sub(r"[\"'].*[\"']|\[[^\]]{40,}\]", "…", str(innermost.get("reason") or innermost.get("type", "")))
    return f"{about}{why}"[:300]
