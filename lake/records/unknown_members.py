"""Undeclared members of records, found in values and in `_extra`; and masks of the fields that a record lacks.

Paths are written `addr.zip`, or `lines[].x` for items of an array or values of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lake.contracts.fields import Field
from lake.lazy import pa
from lake.records.json_value import encoder, parse_if_json
from lake.records.raw_values import RawValue

if TYPE_CHECKING:
    from lake.contracts.contract import Contract


LACKS: Final = "_lacks"
BITS: Final = 62
"""Names of the columns with masks of missing fields, and fields of one mask."""
REPORTED: Final = frozenset({"report", "warn"})
"""Values of a contract's `unknown` by which undeclared members are counted by path."""


class UnknownMember(NamedTuple):
    keys: tuple[str, ...]
    path: str
    value: RawValue
    siblings: tuple[Field, ...]


def by_names(fields: Iterable[Field]) -> dict[str, Field]:
    """Return fields by all their names; the later one wins."""
    return {name: field for field in fields for name in field.names}


def unknown_members(
    members: Mapping[str, RawValue], known: Mapping[str, Field], keys: tuple[str, ...] = (), path: str = ""
) -> Iterator[UnknownMember]:
    """Yield the members of `_extra`, or of its part at `keys`, that `known` fields do not declare, at any depth."""
    siblings = tuple(dict.fromkeys(known.values()))
    for name, value in members.items():
        at, shown = (*keys, name), f"{path}.{name}" if path else name
        if name in known:
            yield from _of_field(known[name], value, at, shown)
        else:
            yield UnknownMember(at, shown, value, siblings)


def _of_field(field: Field, value: RawValue, keys: tuple[str, ...], path: str) -> Iterator[UnknownMember]:
    if field.type.startswith("struct<"):
        if isinstance(value, dict):
            yield from unknown_members(value, by_names(field.parts), keys, path)
    elif field.nested:
        items: Any = dict(enumerate(value)) if isinstance(value, list) else value
        for key, item in items.items() if isinstance(items, dict) else ():
            yield from _of_field(field.parts[0], item, (*keys, str(key)), f"{path}[]")


def has_records(field: Field) -> bool:
    return field.type.startswith("struct") or any(has_records(part) for part in field.parts)


def undeclared_members(field: Field, value: RawValue) -> dict[str, RawValue]:
    """Return the members that the type of `field` lacks: by index in lists, by key in maps."""
    value = parse_if_json(value)
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value)}
    if not field.parts or not isinstance(value, dict):
        return {}
    kept: dict[str, RawValue] = {}
    parts = {part.name: part for part in field.parts}
    for name, given in value.items():
        part = parts.get(name) if field.type.startswith("struct") else field.parts[0]
        if part is None:
            kept[name] = given
        elif part.parts and (members := undeclared_members(part, given)):
            kept[name] = members
    return kept


def known_paths(fields: Iterable[Field]) -> set[str]:
    return {path for name, field in by_names(fields).items() for path in _paths(field, name)}


def _paths(field: Field, path: str) -> Iterator[str]:
    yield path
    for part in field.parts:
        yield from _paths(part, f"{path}.{part.name}" if field.type.startswith("struct<") else f"{path}[]")


def without_declared(fields: Mapping[str, Field], extras: pa.Array) -> pa.Array:
    """Return `extras` without declared members, as canonical JSON; null if nothing is left."""
    return pa.array([_without_declared(text, fields) for text in extras.to_pylist()], pa.string())


def _without_declared(text: str | None, fields: Mapping[str, Field]) -> str | None:
    left: dict[str, Any] = {}
    for unknown in unknown_members(object_of(text), fields):
        node = left
        for key in unknown.keys[:-1]:
            node = node.setdefault(key, {})
        node[unknown.keys[-1]] = unknown.value
    return encoder().encode(left).decode() if left else None


def object_of(text: str | None) -> Mapping[str, RawValue]:
    value = parse_if_json(text)
    return value if isinstance(value, dict) else {}


def optional_fields(contract: Contract) -> list[Field]:
    if contract.envelope:
        return []
    return [field for field in contract.fields if not field.is_fact and (field.nullable or field.has_default)]


def masks(contract: Contract) -> dict[str, list[Field]]:
    fields = optional_fields(contract)
    return {f"{LACKS}{n}": fields[n : n + BITS] for n in range(0, len(fields), BITS)}
