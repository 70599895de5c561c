"""Where a log has the values of a field: in columns of older contracts, and among the members they did not know.

A name belongs to the field of the newest contract that knows it. If that contract does not know it, the name belongs to
whatever became of the field that last had it. So a name that is an alias, or was one, leads to its field whichever
version took an event in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias

from lake.contracts.contract import Contract
from lake.contracts.fields import Field


def columns(contracts: Sequence[Contract]) -> Mapping[tuple[str, str], str]:
    """The physical column of each (field name, type there) that any version has."""
    physical: dict[tuple[str, str], str] = {}
    for contract in contracts:
        for field in contract.fields:
            kind = stored_type(field, contract)
            if (field.name, kind) not in physical:
                before = sum(name == field.name for name, _ in physical)
                suffix = str(before + 1) if field.nested else re.sub(r"\W+", "_", kind).strip("_")
                physical[field.name, kind] = f"{field.name}__{suffix}" if before else field.name
    return physical


def stored_type(field: Field, contract: Contract) -> str:
    """The type of the field's physical column."""
    return "string" if field.name in contract.sealed else field.type


class Origin(NamedTuple):
    """Where events of one contract version may have a value: a physical column, else the member `name` of `_extra`.

    `before` is the field that the column belonged to in `contract`.
    """

    name: str
    contract: Contract
    before: Field | None = None
    column: str = ""

    def member(self, field: Field) -> Member | None:
        """The member of `_extra` to read for `field`: its value, or what its records in the column lack."""
        if self.before is None:
            return Member((self.name,), field)
        return Member(self.before.names, field, self.before) if has_grown(self.before, field) else None


class Member(NamedTuple):
    """A member of `_extra`, under one of `names`, to be read as `field`.

    If `before` is given, the value is in a column, as `before` has it, and the member has only what that does not: the
    members of a record by name, the items of an array by index, the values of a map by key.
    """

    names: tuple[str, ...]
    field: Field
    before: Field | None = None

    @property
    def shape(self) -> Field:
        """The field with the type of what is read."""
        return self.field if self.before is None else lacking(self.before, self.field)


def has_grown(before: Field, now: Field) -> bool:
    """Whether records within `now` have members that those within `before` lack."""
    return now.nested and now.type != before.type


def lacking(before: Field, now: Field) -> Field:
    """What `before` lacks of the nested `now`: records with the other members alone; maps in place of arrays."""
    if not now.type.startswith("struct"):
        part = lacking(before.parts[0], now.parts[0])
        return Field(now.name, f"map<string,{part.type}>", parts=(part,))
    known = {part.name: part for part in before.parts}
    grown = [part for part in now.parts if part.name not in known or has_grown(known[part.name], part)]
    parts = tuple(lacking(known[part.name], part) if part.name in known else part for part in grown)
    return Field(now.name, f"struct<{','.join(f'{part.name}:{part.type}' for part in parts)}>", parts=parts)


def members(contracts: Sequence[Contract]) -> Mapping[Member, frozenset[int]]:
    """The members of `_extra` that fields of the newest contract are read from, and the versions that have them."""
    found: dict[Member, set[int]] = {}
    places = origins(contracts)
    for field in contracts[-1].fields:
        for version, of_version in enumerate(places[field.name], 1):
            for origin in of_version:
                if member := origin.member(field):
                    found.setdefault(member, set()).add(version)
    return {member: frozenset(versions) for member, versions in found.items()}


Origins: TypeAlias = tuple[tuple[Origin, ...], ...]
"""Of one field, by contract version: its origins, the one that takes precedence first."""


def origins(contracts: Sequence[Contract]) -> Mapping[str, Origins]:
    """Where a log has the values of each field of its newest contract."""
    return _origins(tuple(contracts))


@cache
def _origins(contracts: tuple[Contract, ...]) -> Mapping[str, Origins]:
    """Go from the newest version to the oldest, with all names of later ones and the fields they belong to."""
    physical, newest = columns(contracts), contracts[-1]
    heirs: dict[str, str | None] = {name: field.name for field in newest.fields for name in field.names}
    found = [_in_version(newest, newest, heirs, physical)]
    for contract in contracts[-2::-1]:
        found.append(_in_version(contract, newest, heirs, physical))
        for field in contract.fields:
            heirs = heirs | {name: _heir(field, heirs) for name in field.names if name not in heirs}
    return {field.name: tuple(version[field.name] for version in reversed(found)) for field in newest.fields}


def _heir(field: Field, heirs: Mapping[str, str | None]) -> str | None:
    """The field of the newest contract that has the values of `field`: the first name that is known later decides."""
    return next((heirs[name] for name in field.names if name in heirs), None)


def _in_version(
    contract: Contract, newest: Contract, heirs: Mapping[str, str | None], physical: Mapping[tuple[str, str], str]
) -> dict[str, tuple[Origin, ...]]:
    known = {name: field for field in contract.fields for name in field.names}
    found: dict[str, dict[str, Origin]] = {field.name: {} for field in newest.fields}
    for name, heir in heirs.items():
        before = known.get(name)
        if heir is None:
            continue
        if before is None:
            found[heir][name] = Origin(name, contract)
        elif _heir(before, heirs) == heir:
            column = physical[before.name, stored_type(before, contract)]
            found[heir].setdefault(before.name, Origin(before.name, contract, before, column))
    return {field.name: _reachable(field, [*found[field.name].values()], newest) for field in newest.fields}


def _reachable(field: Field, found: Sequence[Origin], newest: Contract) -> tuple[Origin, ...]:
    """Leave out members that are not to be read as `field`, and what follows a column that is never null.

    An event's key and subject stay what they were when the event was placed by them. `_extra` has no facts of a source
    and nothing else that is not a member of the record itself.
    """
    columns = [origin for origin in found if origin.column]
    if columns and field.name in {*newest.key, newest.subject}:
        return (columns[0],)
    kept = [each for each in found if each.column or not field.path]
    for at, origin in enumerate(kept, 1):
        if origin.before and not (origin.before.nullable or origin.before.has_default or origin.contract.envelope):
            return tuple(kept[:at])
    return tuple(kept)


def several_names(contracts: Sequence[Contract]) -> dict[str, str]:
    """By field, `under A, B` if an event of an older contract may have it under several names or an unknown one."""
    texts = {}
    for field in contracts[-1].fields:
        known = {(name, True) for name in field.names} | {(field.name, False)}
        versions = origins(contracts)[field.name]
        usual = [len(found) == 1 and (found[0].name, bool(found[0].column)) in known for found in versions]
        names = {each.name for found, alone in zip(versions, usual, strict=True) if not alone for each in found}
        texts[field.name] = f"under {', '.join(sorted(names))}" if names else ""
    return texts


class Dialect(Protocol):
    """SQL in which the values of a field are read, each of the field's type."""

    def stored(self, origin: Origin, field: Field) -> str:
        """The value in the column of `origin`."""

    def default(self, of: Field, field: Field) -> str:
        """The default of the field `of`, which may be narrower than `field`."""

    def carried(self, member: Member) -> str:
        """The value of a member of `_extra`; null if it is not of the type."""

    def first(self, values: Sequence[tuple[bool, str]]) -> str:
        """The first of `values` that is not null; each is marked with whether it is from `_extra`."""


def reading(field: Field, places: Origins, dialect: Dialect) -> str:
    """SQL of the value of `field`; places are its `origins`."""
    plain: dict[str, None] = {}
    mixed: dict[str, list[int]] = {}
    for number, found in enumerate(places, 1):
        if len(found) == 1 and found[0].column:
            plain[dialect.stored(found[0], field)] = None
        else:
            mixed.setdefault(_first_of(field, found, dialect), []).append(number)
    kept = [*reversed(plain)]
    stored = kept[0] if len(kept) == 1 else f"coalesce({', '.join(kept)})"
    cases = " ".join(f"WHEN _version IN ({', '.join(map(str, of))}) THEN {sql}" for sql, of in mixed.items())
    return f"CASE {cases} ELSE {stored} END" if cases else stored


def _first_of(field: Field, found: Sequence[Origin], dialect: Dialect) -> str:
    """The value in events of one version. A default that was filled in counts only if nothing else is there."""
    values, last = [], []
    for origin in found:
        if not origin.column:
            values.append((True, dialect.carried(Member((origin.name,), field))))
            continue
        stored = dialect.stored(origin, field)
        if origin.before and origin.before.default is not None:
            last.append((False, stored))
            stored = _other_than(stored, dialect.default(origin.before, field), field)
        values.append((False, stored))
    if not any(origin.column for origin in found):
        last.append((False, dialect.default(field, field)))
    return dialect.first([*values, *last])


def _other_than(value: str, default: str, field: Field) -> str:
    if not field.nested:
        return f"nullif({value}, {default})"
    return f"CASE WHEN to_json({value}) IS DISTINCT FROM to_json({default}) THEN {value} END"
