"""Evolution of contracts: allowed changes, and reading of events written under an older version.

A log stores every contract it was written with; an event's `_version` is the number of its contract. Physical columns
never change: a renamed or widened field gets a new one. Fields unknown to an event's contract are read from `_extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from lake.contracts import encryption
from lake.contracts.avro_text import parse_schema
from lake.contracts.contract import Contract
from lake.contracts.declared_text import json_text
from lake.contracts.expressions import quoted
from lake.contracts.fields import Field
from lake.contracts.origins import columns, origins, stored_type
from lake.contracts.upcast import UpcastStep
from lake.errors import DeclarationError

WIDER: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"bigint", "float", "double"}),
    "bigint": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
}

EXACT: Final[Mapping[str, frozenset[str]]] = {
    "tinyint": frozenset({"smallint", "int", "bigint", "float", "double"}),
    "smallint": frozenset({"int", "bigint", "float", "double"}),
    "int": frozenset({"bigint", "double"}),
    "float": frozenset({"double"}),
}
"""Column types that hold every value of a narrower one. For decimals see `is_lossless`."""

PRECISION: Final = 38


@cache
def with_current(stored: tuple[Contract, ...], contract: Contract) -> tuple[Contract, ...]:
    """Add `contract` as the last version. Raises DeclarationError if a new one cannot read older events."""
    contracts = append_version(stored, contract)
    if len(contracts) > len(stored):
        by_version = (incompatibilities(contract, old, stored[n:]) for n, old in enumerate(stored, 1))
        if faults := {str(fault): fault for fault in chain(_upcast_faults(contract, stored), *by_version)}:
            raise DeclarationError.all(faults.values())
    return contracts


def steps_of_log(contracts: Sequence[Contract]) -> tuple[UpcastStep, ...]:
    """Limit each step to versions without it; events of other versions were written in its form."""
    steps = []
    for step in contracts[-1].upcast:
        older = enumerate(contracts[:-1], 1)
        lacking = (n for n, old in older if step.version not in {declared.version for declared in old.upcast})
        if versions := tuple(number for number in lacking if number <= step.version):
            steps.append(step._replace(versions=versions))
    return tuple(steps)


def _upcast_faults(contract: Contract, stored: Sequence[Contract]) -> Iterator[DeclarationError]:
    declared = {step.version for old in stored for step in old.upcast}
    for step in contract.upcast if stored else ():
        if step.version > len(stored) and step.version not in declared:
            yield DeclarationError(
                f"{contract.name}: upcast names version {step.version}, and its log has versions 1 to {len(stored)}",
                where=contract.where,
                fix="take it out: lake schemas shows the version that the log was last written with",
            )


def append_version(stored: tuple[Contract, ...], contract: Contract) -> tuple[Contract, ...]:
    """Add `contract` unchecked; it replaces the last version if it means the same."""
    same = bool(stored) and stored[-1].document == contract.document
    return (*(stored[:-1] if same else stored), contract)


def incompatibilities(new: Contract, old: Contract, between: Sequence[Contract] = ()) -> Iterator[DeclarationError]:
    """Yield the reasons why `new` cannot read events of `old`; `between` are the versions after `old`."""
    for fact, before in old.unchangeable.items():
        now = new.unchangeable[fact]
        if now != before and (fact, before) != ("dump", None):
            yield DeclarationError(
                f"{fact} of {new.name} was {_fact_text(before)} when its log was written, and now is {_fact_text(now)}",
                where=new.where,
                fix="restore it, or publish a new stream: events are placed in the log by it",
            )
    places = {name: found[0] for name, found in origins((old, *between, new)).items()}
    has_faults = False
    for field in new.fields:
        befores: list[Field | None] = [origin.before for origin in places[field.name] if origin.before]
        for before in befores or [None]:
            for what, fix in _field_faults(field, before, new, old):
                has_faults = True
                yield DeclarationError(what, where=f"{new.file}:{field.line}", fix=fix)
    names = {origin.name: name for name, found in places.items() for origin in found[:1] if origin.before}
    reader = parse_schema(json_text(_with_defaults(new.document)), file=new.file)
    writer = parse_schema(_renamed(old, names), file=old.file)
    checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader, writer)
    if not has_faults and result.compatibility is SchemaCompatibilityType.incompatible:
        reasons = "; ".join(sorted(result.messages))
        yield DeclarationError(
            f"{new.name} cannot read {old.file}: {reasons}",
            where=_place_of(new, result.locations),
            fix="restore it, also the names of nested records, enums and fixed types; or publish a new stream",
        )


def _renamed(contract: Contract, names: Mapping[str, str]) -> str:
    record = contract.document
    fields = [{**field, "name": names.get(field["name"], field["name"])} for field in record["fields"]]
    return json_text(record | {"fields": fields})


def _with_defaults(schema: Any) -> Any:
    """Give nullable fields the default null, as Avro's check of compatibility expects."""
    if isinstance(schema, list):
        return [_with_defaults(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {part: _with_defaults(schema[part]) for part in ("type", "items", "values") if part in schema}
    if isinstance(schema.get("fields"), list):
        changed["fields"] = [_with_defaults(field) for field in schema["fields"]]
    union = changed.get("type")
    if "name" in schema and isinstance(union, list) and "null" in union and "default" not in schema:
        changed |= {"type": ["null", *(part for part in union if part != "null")], "default": None}
    return schema | changed


def physical_columns_sql(contracts: Sequence[Contract]) -> list[str]:
    physical, newest = columns(contracts), contracts[-1]

    def value_of(field: Field, column: str) -> str:
        if field.name not in newest.sealed:
            return quoted(field.name)
        return encryption.encrypted_sql(f"cast({quoted(field.name)} AS string)", encryption.place(newest, column))

    stored = {field: physical[field.name, stored_type(field, newest)] for field in newest.fields}
    return [f"{value_of(field, column)} AS {quoted(column)}" for field, column in stored.items()]


def predecessor(field: Field, contract: Contract) -> Field | None:
    by_name = {old.name: old for old in contract.fields}
    return next((by_name[name] for name in field.names if name in by_name), None)


def _field_faults(field: Field, before: Field | None, new: Contract, old: Contract) -> Iterator[tuple[str, str]]:
    name = f"{new.name} field {field.name!r}"
    old_name = next((each.name for each in old.fields if each.name.lower() == field.name.lower()), field.name)
    if old_name != field.name:
        fix = "restore it, or choose another name: in tables the two would be one column"
        yield f"{name} was {old_name!r} in {old.file}: the names differ in nothing but case", fix
        return
    if before is None:
        if not field.has_default:
            fix = 'give it a default (null for a type that begins with "null")'
            yield f"{name} is new, and older events have no value for it", fix
        return
    if before.nested and _container_of(before) == _container_of(field):
        for member, what, fix in _nested_faults(field.name, before, field):
            yield f"{new.name}: {member} {what} in {old.file}", fix
    elif before.type != field.type and (fix := _type_fix(before.type, field, new)):
        yield f"{name} was {before.type} in {old.file}, and now is {field.type}", fix
    if (before.name in old.sealed) != (field.name in new.sealed):
        fix = "restore it, or add a new field: what the log holds stays encrypted, or unencrypted, for good"
        yield f"{name} {'was' if before.personal else 'was not'} personal in {old.file}", fix
    if before.nullable and not field.nullable:
        yield f"{name} could be null in {old.file}, and can no longer", 'make it ["null", …] again'
    gone = sorted(set(before.symbols) - set(field.symbols))
    if gone and field.symbols:
        yield f"{name} has lost the symbols {', '.join(gone)}", "add them again"


def _nested_faults(path: str, before: Field, now: Field) -> Iterator[tuple[str, str, str]]:
    """Yield path, fault, and fix. A record may get more members if they are optional; nothing else may change."""
    if _container_of(before) != _container_of(now) or (not before.nested and before.type != now.type):
        yield path, f"is {now.type}, and was {before.type}", "restore it, or add a new field"
    elif _container_of(now) == "struct":
        known = {part.name: part for part in before.parts}
        old_names = {name.lower(): name for name in known}
        for part in now.parts:
            at = f"{path}.{part.name}"
            if part.name in known:
                yield from _nested_faults(at, known[part.name], part)
            elif part.name.lower() in old_names:
                yield at, f"was {old_names[part.name.lower()]!r}", "restore it: the names differ in nothing but case"
            elif not (part.nullable or part.has_default):
                fix = 'make its type ["null", …], with the default null'
                yield at, "did not exist, and older events have no value for it", fix
        for name in sorted(known.keys() - {part.name for part in now.parts}):
            yield f"{path}.{name}", "existed, and is gone", "restore it: a record may only get more members"
    else:
        for old, new in zip(before.parts, now.parts, strict=True):
            yield from _nested_faults(f"{path}[]", old, new)


def _container_of(field: Field) -> str:
    return field.type.partition("<")[0] if field.nested else ""


def _type_fix(before: str, field: Field, new: Contract) -> str:
    """Return the fix of a type that changed; "" if the change is allowed."""
    if field.name in {*new.key, *new.id} or field.name in re.findall(r"\w+", new.time or ""):
        return "restore it: fields of the key, the id or the event time cannot change"
    if field.name == new.subject and (before, field.type) != ("int", "bigint"):
        return "restore it: people are identified by the text of the subject, and one person would become two"
    both = _common_type(before, field.type)
    if both == field.type:
        return ""
    if both is None:
        return "restore it, or add a new field"
    if both == before:
        return f"restore it: {before} holds every {field.type} too; or add a new field"
    precision, scale = _precision_and_scale(both)
    return f'make it {both}, which holds both: "precision": {precision}, "scale": {scale}; or add a new field'


def _common_type(before: str, now: str) -> str | None:
    if before.startswith("decimal") and now.startswith("decimal"):
        (p0, s0), (p1, s1) = _precision_and_scale(before), _precision_and_scale(now)
        scale = max(s0, s1)
        precision = max(p0 - s0, p1 - s1) + scale
        return f"decimal({precision},{scale})" if precision <= PRECISION else None
    if before == now or now in WIDER.get(before, ()):
        return now
    return before if before in WIDER.get(now, ()) else None


def is_lossless(before: str, now: str) -> bool:
    if before.startswith("decimal") and now.startswith("decimal"):
        return _common_type(before, now) == now
    return now == before or now in EXACT.get(before, ())


def _precision_and_scale(decimal: str) -> tuple[int, int]:
    precision, scale = map(int, re.findall(r"\d+", decimal))
    return precision, scale


def _place_of(contract: Contract, locations: set[str]) -> str:
    numbers = [int(n) for location in locations for n in re.findall(r"fields/(\d+)", location.replace("//", "/"))]
    line = contract.fields[numbers[0]].line if numbers else 1
    return f"{contract.file}:{line}"


def _fact_text(fact: object) -> str:
    return ", ".join(map(str, fact)) if isinstance(fact, tuple) else str(fact)
