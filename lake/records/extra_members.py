"""Reader of members in `_extra` that a later contract declares as fields.

`_extra` is a JSON object of undeclared members by name. For a declared field it has only undeclared parts: by name, by
index in an array, by key in a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lake.contracts.fields import Field
from lake.lazy import pa
from lake.records.columns import arrow_type
from lake.records.debezium_values import converter
from lake.records.raw_values import RawValue, WrongValue
from lake.records.unknown_members import object_of
from lake.records.values import Reader, given_default, reader

if TYPE_CHECKING:
    from lake.contracts.origins import ExtraMember


def default_of(field: Field) -> object:
    """Return the value of a field's default; None also if it is invalid."""
    plain, given = given_default(field)
    return None if given is None else _null_if_invalid(reader(plain))(given)


def read_members(
    members: Mapping[ExtraMember, frozenset[int]],
    versions: pa.Array | pa.ChunkedArray,
    extras: pa.Array | pa.ChunkedArray,
) -> pa.StructArray:
    """Return the values of `members`, {member: versions of events that may have it}, as columns m0, m1 …

    `versions` and `extras` are the columns `_version` and `_extra`. A missing or invalid value is null.
    """
    shapes = [member.shape for member in members]
    readers = [_reader(member) for member in members]
    values: list[list[object]] = [[None] * len(extras) for _ in members]
    wanted = frozenset[int]().union(*members.values())
    rows = zip(versions.to_pylist(), extras.to_pylist(), strict=True)
    for row, (version, text) in enumerate(rows if extras.null_count < len(extras) else ()):
        extra = object_of(text) if version in wanted else {}
        if extra:
            for (member, having), read, column in zip(members.items(), readers, values, strict=True):
                if version in having:
                    column[row] = _first_value(read, extra, member.names)
    arrays = [pa.array(column, arrow_type(shape)) for column, shape in zip(values, shapes, strict=True)]
    return pa.StructArray.from_arrays(arrays, names=[f"m{number}" for number in range(len(arrays))])


def _first_value(read: Reader, extra: Mapping[str, RawValue], names: Sequence[str]) -> object:
    values = (read(extra[name]) for name in names if name in extra)
    return next((value for value in values if value is not None), None)


def _reader(member: ExtraMember) -> Reader:
    if member.before is not None:
        return _missing_parts_reader(member.before, member.field)
    convert = converter(member.field, {}) if member.field.encoding else None
    read = reader(member.field)
    return _null_if_invalid(read if convert is None else lambda given: read(convert(given)))


def _null_if_invalid(read: Reader) -> Reader:
    def read_or_null(given: RawValue) -> object:
        try:
            return read(given)
        except WrongValue:
            return None

    return read_or_null


def _missing_parts_reader(before: Field, now: Field) -> Reader:
    """Return the reader of the parts of `now` that `before` lacks; lists and maps become lists of (key, parts)."""
    if not now.type.startswith("struct"):
        part = _missing_parts_reader(before.parts[0], now.parts[0])
        return lambda given: [(key, part(each)) for key, each in given.items()] if isinstance(given, dict) else None
    known = {part.name: part for part in before.parts}
    readers = {
        part.name: _missing_parts_reader(known[part.name], part)
        if part.name in known
        else _null_if_invalid(reader(part))
        for part in now.parts
        if part.name not in known or part.type != known[part.name].type
    }

    def read_parts(given: RawValue) -> object:
        return {name: read(given.get(name)) for name, read in readers.items()} if isinstance(given, dict) else None

    return read_parts
