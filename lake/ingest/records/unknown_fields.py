"""Fields that events of a log carry and the contract does not know: how many events, and how to declare each.

The log keeps them as JSON in `_extra`: a field that is added to the contract has its values from before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.store import small
from lake.store.log import Log

TYPES: Final = {"BIGINT": "long", "UBIGINT": "long", "DOUBLE": "double", "BOOLEAN": "boolean", "VARCHAR": "string"}
NESTED: Final = {"ARRAY", "OBJECT"}
QUERY: Final = """
    WITH carried AS (
        SELECT unnest(json_keys(_extra)) AS name, _extra FROM t WHERE _extra IS NOT NULL AND json_valid(_extra)
    )
    SELECT name, count(*)::BIGINT AS events,
           list_distinct(list(json_type(_extra, '/' || replace(replace(name, '~', '~0'), '/', '~1')))) AS kinds
    FROM carried GROUP BY name ORDER BY events DESC, name"""
SEALED: Final = "SELECT count(*)::BIGINT AS events FROM t WHERE _extra <> '' AND NOT json_valid(_extra)"


@dataclass(frozen=True)
class UnknownField:
    """A field that `events` carry; `line` is what declares it in the contract, "" of what is nested.

    `like` is the contract's field whose name is nearly the same, which it may be under another name; else "".
    """

    name: str
    events: int
    line: str
    like: str


def unknown_fields(settings: Settings, contract: Contract) -> list[UnknownField]:
    """The fields that events of the log carry and the contract of now does not know, those of most events first.

    None is known of events whose `_extra` is sealed: see `sealed_events`.
    """
    rows = small.rows(Log(settings, contract.name).path, QUERY)
    names = {name for field in contract.fields for name in field.names}
    taken = {name.lower() for name in names}
    fields = []
    for row in rows:
        if row["name"] not in names:
            line = _declared(row["name"], set(row["kinds"]), taken)
            fields.append(UnknownField(row["name"], row["events"], line, _like(row["name"], names, contract)))
    return fields


def sealed_events(settings: Settings, contract: Contract) -> int:
    """How many events carry something that the contract of then did not know, sealed with what is personal of them."""
    if not contract.sealed:
        return 0
    [counted] = small.rows(Log(settings, contract.name).path, SEALED) or [{"events": 0}]
    events: int = counted["events"]
    return events


def _declared(name: str, kinds: Collection[str], taken: set[str]) -> str:
    """A field of a contract that reads what records call `name`; "" where it is nested, or its name would clash."""
    if NESTED & set(kinds):
        return ""
    own = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "field"
    own = f"field_{own}" if own[0].isdigit() else own
    if own.lower() in taken:
        return ""
    field: dict[str, Any] = {"name": own, "type": ["null", _type(kinds)], "default": None, "doc": "…"}
    return json.dumps(field | ({} if own == name else {"aliases": [name]}), ensure_ascii=False)


def _type(kinds: Iterable[str]) -> str:
    """The type of values of these kinds; text where they are of several."""
    types = {TYPES.get(kind, "string") for kind in kinds if kind != "NULL"}
    if types == {"long", "double"}:
        return "double"
    return types.pop() if len(types) == 1 else "string"


def _like(name: str, names: Collection[str], contract: Contract) -> str:
    """The field that is nearly called so."""
    by_case = {spelling.lower(): spelling for spelling in sorted(names)}
    close = get_close_matches(name.lower(), by_case, n=1, cutoff=0.75)
    spelling = by_case[close[0]] if close else ""
    return next((field.name for field in contract.fields if spelling in field.names), "")
