"""Reader of the members of `_extra` that a later contract declares as fields.

`_extra` is a JSON object: members of the record by name. Of a declared one it has only what its records do not declare,
by name, the items of an array by index, the values of a map by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.contracts.fields import Field
from lake.records.columns import arrow_type
from lake.records.debezium_values import converter
from lake.records.given import Given, Wrong
from lake.records.unknown import object_of
from lake.records.values import Reader, given_default, reader

if TYPE_CHECKING:
    from lake.contracts.origins import Member


def default_of(field: Field) -> object:
    """Return the value of a field's default; None if it has none, or if it is not of the type."""
    plain, given = given_default(field)
    return None if given is None else _or_none(reader(plain))(given)


def read_members(
    members: Mapping[Member, frozenset[int]], versions: pa.Array | pa.ChunkedArray, extras: pa.Array | pa.ChunkedArray
) -> pa.StructArray:
    """Return the values of `members`, named m0, m1 …; null unless an event of one of their versions has such a value.

    `versions` and `extras` are the columns `_version` and `_extra` of events, also in chunks.
    """
    shapes = [member.shape for member in members]
    readers = [_reader(member) for member in members]
    values: list[list[object]] = [[None] * len(extras) for _ in members]
    wanted = frozenset[int]().union(*members.values())
    rows = zip(versions.to_pylist(), extras.to_pylist(), strict=True)
    for row, (version, text) in enumerate(rows if extras.null_count < len(extras) else ()):
        carried = object_of(text) if version in wanted else {}
        if carried:
            for (member, of), read, column in zip(members.items(), readers, values, strict=True):
                if version in of:
                    column[row] = _first(read, carried, member.names)
    arrays = [pa.array(column, arrow_type(shape)) for column, shape in zip(values, shapes, strict=True)]
    return pa.StructArray.from_arrays(arrays, names=[f"m{number}" for number in range(len(arrays))])


def _first(read: Reader, carried: Mapping[str, Given], names: Sequence[str]) -> object:
    values = (read(carried[name]) for name in names if name in carried)
    return next((value for value in values if value is not None), None)


def _reader(member: Member) -> Reader:
    if member.before is not None:
        return _lacking_reader(member.before, member.field)
    convert = converter(member.field, {}) if member.field.encoding else None
    read = reader(member.field)
    return _or_none(read if convert is None else lambda given: read(convert(given)))


def _or_none(read: Reader) -> Reader:
    def tried(given: Given) -> object:
        try:
            return read(given)
        except Wrong:
            return None

    return tried


def _lacking_reader(before: Field, now: Field) -> Reader:
    """Return the reader of the members that `before` lacks. A member that is not of its type is null."""
    if not now.type.startswith("struct"):
        part = _lacking_reader(before.parts[0], now.parts[0])
        return lambda given: [(key, part(each)) for key, each in given.items()] if isinstance(given, dict) else None
    known = {part.name: part for part in before.parts}
    readers = {
        part.name: _lacking_reader(known[part.name], part) if part.name in known else _or_none(reader(part))
        for part in now.parts
        if part.name not in known or part.type != known[part.name].type
    }

    def read(given: Given) -> object:
        return {name: read(given.get(name)) for name, read in readers.items()} if isinstance(given, dict) else None

    return read
