"""Unknown fields of a log's events, kept as JSON in `_extra`. A field that is declared later has its earlier values."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from lake.config import Settings
from lake.contracts.attributes import most_similar
from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.records.unknown_members import UnknownMember, by_names, unknown_members
from lake.store import duckdb_tables
from lake.store.log import Log

TYPES: Final = {"BIGINT": "long", "UBIGINT": "long", "DOUBLE": "double", "BOOLEAN": "boolean", "VARCHAR": "string"}
NESTED: Final = {"ARRAY", "OBJECT"}
QUERY: Final = """
    SELECT json_structure(_extra) AS shape, count(*)::BIGINT AS events FROM t
    WHERE _extra IS NOT NULL AND json_valid(_extra) GROUP BY ALL ORDER BY ALL"""
SEALED: Final = "SELECT count(*)::BIGINT AS events FROM t WHERE _extra <> '' AND NOT json_valid(_extra)"


@dataclass(frozen=True)
class UnknownField:
    """A field or member in `events` events, and the `line` that declares it, "" if nested.

    The line goes into the field `record`, "" for the record. `like` is a declared field of a similar name, or "".
    """

    name: str
    events: int
    line: str
    like: str
    record: str = ""


def unknown_fields(settings: Settings, contract: Contract) -> list[UnknownField]:
    """Return unknown fields, most frequent first, except encrypted ones: see `sealed_events`."""
    known = by_names(contract.fields)
    events: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    found: dict[str, UnknownMember] = {}
    for row in duckdb_tables.rows(Log(settings, contract.name).path, QUERY):
        unknown = {member.path: member for member in unknown_members(json.loads(row["shape"]), known)}
        found |= unknown
        events.update(dict.fromkeys(unknown, row["events"]))
        for path, member in unknown.items():
            kinds.setdefault(path, set()).add(_kind(member.value))
    return [
        _unknown_field(found[path], count, kinds[path])
        for path, count in sorted(events.items(), key=lambda item: (-item[1], item[0]))
    ]


def _kind(structure: Any) -> str:
    if isinstance(structure, str):
        return "OBJECT" if structure == "JSON" else structure  # an object without members
    return "OBJECT" if isinstance(structure, dict) else "ARRAY"


def _unknown_field(unknown: UnknownMember, events: int, kinds: Collection[str]) -> UnknownField:
    name, record = unknown.keys[-1], unknown.path.removesuffix(unknown.keys[-1]).removesuffix(".")
    names = {name for field in unknown.siblings for name in field.names}
    line = _declaration(name, kinds, {name.lower() for name in names}, is_member=bool(record))
    return UnknownField(unknown.path, events, line, "" if record else _like(name, names, unknown.siblings), record)


def sealed_events(settings: Settings, contract: Contract) -> int:
    """Return the number of events with encrypted unknown fields."""
    if not contract.sealed:
        return 0
    [counted] = duckdb_tables.rows(Log(settings, contract.name).path, SEALED) or [{"events": 0}]
    events: int = counted["events"]
    return events


def _declaration(name: str, kinds: Collection[str], taken: set[str], *, is_member: bool) -> str:
    """Return a line of the contract, "" if the field is nested or its name taken. A member has no alias."""
    if NESTED & set(kinds):
        return ""
    own = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "field"
    own = f"field_{own}" if own[0].isdigit() else own
    if own.lower() in taken or (is_member and own != name):
        return ""
    field: dict[str, Any] = {"name": own, "type": ["null", _type(kinds)], "default": None, "doc": "…"}
    return json.dumps(field | ({} if own == name else {"aliases": [name]}), ensure_ascii=False)


def _type(kinds: Iterable[str]) -> str:
    types = {TYPES.get(kind, "string") for kind in kinds if kind != "NULL"}
    if types == {"long", "double"}:
        return "double"
    return types.pop() if len(types) == 1 else "string"


def _like(name: str, names: Collection[str], fields: Iterable[Field]) -> str:
    spelling = most_similar(name, names)
    return next((field.name for field in fields if spelling in field.names), "")
