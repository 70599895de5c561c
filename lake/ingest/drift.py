"""Drift of a stream from its contract: unknown fields, and fields that vanished.

An optional field has vanished if all records of the last batch with it had it, and no record since has it. It never
vanishes once a batch had it in part. The log's newest commit holds this state. The values of unknown fields are kept as
JSON in `_extra`: a field that is declared later has its earlier values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract, most_similar
from lake.contracts.fields import Field
from lake.lazy import DataFrame, pa, pc
from lake.records.unknown_members import (
    REPORTED,
    UnknownMember,
    by_names,
    known_paths,
    masks,
    optional_fields,
    unknown_members,
)
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.text import counted

NAMES: Final = 20
NAME_LENGTH: Final = 60


@dataclass(frozen=True)
class Drift:
    """Drift up to a batch: `records` since batch `since` have unknown fields.

    `unknown` counts records by path, empty if names may be personal. All records have the fields `always`, some have
    `sometimes`; `vanished` maps the others to the first batch without them.
    """

    records: int = 0
    since: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    vanished: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, head: LogHead, contract: Contract) -> Drift:
        data: Mapping[str, Any] = head.position.data.get("drift", {})
        known = known_paths(contract.fields)
        optional = {field.name for field in optional_fields(contract)}
        counts = data.get("unknown", {})
        unknown = {name: count for name, count in counts.items() if name not in known}
        reported = contract.unknown in REPORTED and (bool(unknown) or not counts)
        return cls(
            data.get("records", 0) if reported else 0,
            data.get("since", 0) if reported else 0,
            unknown if reported else {},
            frozenset(data.get("always", ())) & optional,
            frozenset(data.get("sometimes", ())) & optional,
            {name: batch for name, batch in data.get("vanished", {}).items() if name in optional},
        )

    @property
    def as_json(self) -> dict[str, Any]:
        data = {
            "records": self.records,
            "since": self.since,
            "unknown": dict(self.unknown),
            "always": sorted(self.always),
            "sometimes": sorted(self.sometimes),
            "vanished": dict(self.vanished),
        }
        return {name: value for name, value in data.items() if value}

    def with_unknown(self, batch: int, records: int, names: Mapping[str, int]) -> Drift:
        if not records:
            return self
        sums = {name: self.unknown.get(name, 0) + names.get(name, 0) for name in {**self.unknown, **names}}
        most = sorted(sums, key=lambda name: (-sums[name], name))[:NAMES]
        unknown = {name: sums[name] for name in most}
        return replace(self, records=self.records + records, since=self.since or batch, unknown=unknown)

    def with_missing(self, batch: int, fields: Iterable[str], some: set[str], every: set[str]) -> Drift:
        """Return the drift after a batch in which some records lack the fields `some`, and all lack `every`."""
        always, sometimes, vanished = {*self.always}, {*self.sometimes}, dict(self.vanished)
        for name in fields:
            if name in every:
                if name in always:
                    always.remove(name)
                    vanished[name] = batch
            elif name in some:
                always.discard(name)
                vanished.pop(name, None)
                sometimes.add(name)
            elif name not in sometimes:
                vanished.pop(name, None)
                always.add(name)
        return replace(self, always=frozenset(always), sometimes=frozenset(sometimes), vanished=vanished)

    def lines(self, before: Drift | None = None) -> Iterator[str]:
        if self.records and (before is None or self.unknown.keys() - before.unknown.keys() or not before.records):
            names = ", ".join(f"{name} ({count})" for name, count in self.unknown.items())
            since = f"{counted(self.records, 'record')} since batch {self.since}"
            yield f"{since} had fields that the contract does not know{f': {names}' if names else ''}"
        for name, batch in self.vanished.items():
            if before is None or name not in before.vanished:
                yield f"no record since batch {batch} has {name}, which all records just before had"


def _names_of(fields: Iterable[Field], bits: int) -> set[str]:
    return {field.name for n, field in enumerate(fields) if bits >> n & 1}


def after(before: Drift, batch: int, contract: Contract, parsed: DataFrame, tally: pa.Table) -> Drift:
    extras = int(pc.sum(tally["extras"]).as_py() or 0) if contract.unknown in REPORTED else 0
    names = _unknown_counts(parsed) if extras and not contract.sealed else {}
    drift = before.with_unknown(batch, extras, names)
    for column, fields in masks(contract).items():
        some, every = 0, -1
        for row in tally.to_pylist():
            if row[f"bit_or{column}"] is not None:
                some, every = some | row[f"bit_or{column}"], every & row[f"bit_and{column}"]
        missing = _names_of(fields, some), _names_of(fields, every)
        drift = drift.with_missing(batch, [field.name for field in fields], *missing)
    return drift


def _unknown_counts(parsed: DataFrame) -> dict[str, int]:
    names = parsed.where("_reason IS NULL").selectExpr("explode(_unknown) AS name")
    short = names.selectExpr(f"left(name, {NAME_LENGTH}) AS name").groupBy("name").count()
    rows = short.orderBy("count", "name", ascending=[False, True]).limit(NAMES).toArrow()
    return {row["name"]: row["count"] for row in rows.to_pylist()}


TYPES: Final = {"BIGINT": "long", "UBIGINT": "long", "DOUBLE": "double", "BOOLEAN": "boolean", "VARCHAR": "string"}
NESTED: Final = {"ARRAY", "OBJECT"}
SHAPES: Final = """
    SELECT json_structure(_extra) AS shape, count(*)::BIGINT AS events FROM t
    WHERE _extra IS NOT NULL AND json_valid(_extra) GROUP BY ALL ORDER BY ALL"""
SEALED_EVENTS: Final = "SELECT count(*)::BIGINT AS events FROM t WHERE _extra <> '' AND NOT json_valid(_extra)"


@dataclass(frozen=True)
class UnknownField:
    """A field or member, and the `line` that declares it, "" if nested.

    The line goes into the field `record`, "" for the record. `like` is a declared field of a similar name, or "".
    """

    name: str
    events: int
    line: str
    like: str
    record: str = ""


def unknown_fields(settings: Settings, contract: Contract) -> list[UnknownField]:
    known = by_names(contract.fields)
    events: Counter[str] = Counter()
    kinds: dict[str, set[str]] = {}
    found: dict[str, UnknownMember] = {}
    for row in duckdb_tables.rows(Log(settings, contract.name).path, SHAPES):
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
    if not contract.sealed:
        return 0
    return sum(row["events"] for row in duckdb_tables.rows(Log(settings, contract.name).path, SEALED_EVENTS))


def _declaration(name: str, kinds: Collection[str], declared: set[str], *, is_member: bool) -> str:
    """Return a line of the contract, "" if the field is nested or its name declared. A member has no alias."""
    if NESTED & set(kinds):
        return ""
    valid = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "field"
    valid = f"field_{valid}" if valid[0].isdigit() else valid
    if valid.lower() in declared or (is_member and valid != name):
        return ""
    field: dict[str, Any] = {"name": valid, "type": ["null", _type(kinds)], "default": None, "doc": "…"}
    return json.dumps(field | ({} if valid == name else {"aliases": [name]}), ensure_ascii=False)


def _type(kinds: Iterable[str]) -> str:
    types = {TYPES.get(kind, "string") for kind in kinds if kind != "NULL"}
    if types == {"long", "double"}:
        return "double"
    return types.pop() if len(types) == 1 else "string"


def _like(name: str, names: Collection[str], fields: Iterable[Field]) -> str:
    spelling = most_similar(name, names)
    return next((field.name for field in fields if spelling in field.names), "")
