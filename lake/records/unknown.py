"""Members of records that their contract does not declare: found in a value, and read from `_extra`.

A path is as a person writes it: `addr.zip`, `lines[].x` for the items of an array or the values of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lake.contracts.fields import Field
from lake.records.given import Given
from lake.records.json_members import encoder
from lake.records.json_value import parsed

if TYPE_CHECKING:
    import pyarrow as pa


class Unknown(NamedTuple):
    """A member that no field declares: its keys from the record on, its path, its value, and the fields beside it."""

    keys: tuple[str, ...]
    path: str
    value: Given
    beside: tuple[Field, ...]


def by_names(fields: Iterable[Field]) -> dict[str, Field]:
    """Return fields by every name that records have for them; of two, the later one."""
    return {name: field for field in fields for name in field.names}


def unknown_members(extra: Mapping[str, Given], known: Mapping[str, Field]) -> Iterator[Unknown]:
    """Yield the members of `_extra` that the `known` fields do not declare, also within these."""
    yield from _of_record(extra, known, (), "")


def _of_record(
    members: Mapping[str, Given], known: Mapping[str, Field], keys: tuple[str, ...], path: str
) -> Iterator[Unknown]:
    beside = tuple(dict.fromkeys(known.values()))
    for name, value in members.items():
        at, shown = (*keys, name), f"{path}.{name}" if path else name
        if name in known:
            yield from _within(known[name], value, at, shown)
        else:
            yield Unknown(at, shown, value, beside)


def _within(field: Field, value: Given, keys: tuple[str, ...], path: str) -> Iterator[Unknown]:
    if field.type.startswith("struct<"):
        if isinstance(value, dict):
            yield from _of_record(value, by_names(field.parts), keys, path)
    elif field.nested:
        items: Iterable[tuple[Any, Given]] = ()
        if isinstance(value, list):
            items = enumerate(value)
        elif isinstance(value, dict):
            items = value.items()
        for key, item in items:
            yield from _within(field.parts[0], item, (*keys, str(key)), f"{path}[]")


def has_records(field: Field) -> bool:
    """Return whether values of a field may have members that its type lacks."""
    return field.type.startswith("struct") or any(has_records(part) for part in field.parts)


def undeclared_members(field: Field, value: Given) -> dict[str, Given]:
    """Return the members that the type of `field` lacks: of items by their index, of a map's values by their key."""
    value = parsed(value)
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value)}
    if not field.parts or not isinstance(value, dict):
        return {}
    kept: dict[str, Given] = {}
    parts = {part.name: part for part in field.parts}
    for name, given in value.items():
        part = parts.get(name) if field.type.startswith("struct") else field.parts[0]
        if part is None:
            kept[name] = given
        elif part.parts and (members := undeclared_members(part, given)):
            kept[name] = members
    return kept


def known_paths(fields: Iterable[Field]) -> set[str]:
    """Return the paths of all that fields declare."""
    return {path for name, field in by_names(fields).items() for path in _paths(field, name)}


def _paths(field: Field, path: str) -> Iterator[str]:
    yield path
    for part in field.parts:
        yield from _paths(part, f"{path}.{part.name}" if field.type.startswith("struct<") else f"{path}[]")


def unknown_paths(fields: Mapping[str, Field], extras: pa.Array) -> pa.Array:
    """Return for each `_extra` the paths of its unknown members, each once; null if there are none."""
    import pyarrow as pa

    found = ({each.path for each in unknown_members(object_of(text), fields)} for text in extras.to_pylist())
    return pa.array([sorted(paths) or None for paths in found], pa.list_(pa.string()))


def undeclared(fields: Mapping[str, Field], extras: pa.Array) -> pa.Array:
    """Return each `_extra` without what the fields declare, in one spelling: null if nothing is left."""
    import pyarrow as pa

    return pa.array([_rest(text, fields) for text in extras.to_pylist()], pa.string())


def _rest(text: str | None, fields: Mapping[str, Field]) -> str | None:
    left: dict[str, Any] = {}
    for unknown in unknown_members(object_of(text), fields):
        within = left
        for key in unknown.keys[:-1]:
            within = within.setdefault(key, {})
        within[unknown.keys[-1]] = unknown.value
    return encoder().encode(left).decode() if left else None


def object_of(text: str | None) -> Mapping[str, Given]:
    """Return the members of `_extra`; none if it is null, or sealed."""
    value = parsed(text)
    return value if isinstance(value, dict) else {}
