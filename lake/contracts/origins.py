"""Origins of a field's values in a log: columns of older contracts, and members of `_extra`.

A name in an old event belongs to the field of the newest contract that has it as name or alias. If no field has it, it
belongs to the field that replaced the latest one with this name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from lake.contracts.contract import Contract
from lake.contracts.fields import Field


def columns(contracts: Sequence[Contract]) -> Mapping[tuple[str, str], str]:
    """Return the physical columns of a log by field name and stored type."""
    physical: dict[tuple[str, str], str] = {}
    for contract in contracts:
        for field in contract.fields:
            kind = stored_type(field, contract)
            if (field.name, kind) not in physical:
                before = sum(name == field.name for name, _ in physical)
                suffix = str(before + 1) if field.nested else re.sub(r"\W+", "_", kind).strip("_")
                column = f"{field.name}__{suffix}" if before else field.name
                while column in physical.values():  # a field with that name
                    column += "_"
                physical[field.name, kind] = column
    return physical


def stored_type(field: Field, contract: Contract) -> str:
    return "string" if field.name in contract.sealed else field.type


class ValueOrigin(NamedTuple):
    """Place of a value in one version: a physical column of field `before`, else the member `name` of `_extra`."""

    name: str
    contract: Contract
    before: Field | None = None
    column: str = ""

    def member(self, field: Field) -> ExtraMember | None:
        """Return the member of `_extra` to read as `field`; None if the column has the whole value."""
        if self.before is None:
            return ExtraMember((self.name,), field)
        return ExtraMember(self.before.names, field, self.before) if has_grown(self.before, field) else None


class ExtraMember(NamedTuple):
    """Member of `_extra`, under one of `names`, to be read as `field`.

    If `before` is given, a column has the value, and the member only the parts that `before` did not declare: by name
    in a struct, by index in a list, by key in a map.
    """

    names: tuple[str, ...]
    field: Field
    before: Field | None = None

    @property
    def shape(self) -> Field:
        return self.field if self.before is None else _missing_parts(self.before, self.field)


def has_grown(before: Field, now: Field) -> bool:
    return now.nested and now.type != before.type


def _missing_parts(before: Field, now: Field) -> Field:
    if not now.type.startswith("struct"):
        part = _missing_parts(before.parts[0], now.parts[0])
        return Field(now.name, f"map<string,{part.type}>", parts=(part,))
    known = {part.name: part for part in before.parts}
    new = [part for part in now.parts if part.name not in known or has_grown(known[part.name], part)]
    parts = tuple(_missing_parts(known[part.name], part) if part.name in known else part for part in new)
    return Field(now.name, f"struct<{','.join(f'{part.name}:{part.type}' for part in parts)}>", parts=parts)


def members(contracts: Sequence[Contract]) -> Mapping[ExtraMember, frozenset[int]]:
    """Return the members of `_extra` to read for the newest contract, and the contract versions that may have them."""
    found: dict[ExtraMember, set[int]] = {}
    places = origins(contracts)
    for field in contracts[-1].fields:
        for version, of_version in enumerate(places[field.name], 1):
            for origin in of_version:
                if member := origin.member(field):
                    found.setdefault(member, set()).add(version)
    return {member: frozenset(versions) for member, versions in found.items()}


Origins: TypeAlias = tuple[tuple[ValueOrigin, ...], ...]
"""Origins of a field by contract version, in order of precedence."""


def origins(contracts: Sequence[Contract]) -> Mapping[str, Origins]:
    return _origins(tuple(contracts))


@cache
def _origins(contracts: tuple[Contract, ...]) -> Mapping[str, Origins]:
    physical, newest = columns(contracts), contracts[-1]
    # Field of the newest contract to which a name belongs; None if its field was removed.
    heirs: dict[str, str | None] = {name: field.name for field in newest.fields for name in field.names}
    found = [_origins_in(newest, newest, heirs, physical)]
    for contract in contracts[-2::-1]:
        found.append(_origins_in(contract, newest, heirs, physical))
        for field in contract.fields:
            heirs = heirs | {name: _heir(field, heirs) for name in field.names if name not in heirs}
    return {field.name: tuple(version[field.name] for version in reversed(found)) for field in newest.fields}


def _heir(field: Field, heirs: Mapping[str, str | None]) -> str | None:
    return next((heirs[name] for name in field.names if name in heirs), None)


def _origins_in(
    contract: Contract, newest: Contract, heirs: Mapping[str, str | None], physical: Mapping[tuple[str, str], str]
) -> dict[str, tuple[ValueOrigin, ...]]:
    known = {name: field for field in contract.fields for name in field.names}
    found: dict[str, dict[str, ValueOrigin]] = {field.name: {} for field in newest.fields}
    for name, heir in heirs.items():
        before = known.get(name)
        if heir is None:
            continue
        if before is None:
            found[heir][name] = ValueOrigin(name, contract)
        elif _heir(before, heirs) == heir:
            column = physical[before.name, stored_type(before, contract)]
            found[heir].setdefault(before.name, ValueOrigin(before.name, contract, before, column))
    return {field.name: _readable(field, [*found[field.name].values()], newest) for field in newest.fields}


def _readable(field: Field, found: Sequence[ValueOrigin], newest: Contract) -> tuple[ValueOrigin, ...]:
    """Drop members that must not be read as `field`, and origins after a column that is never null.

    A field of key or subject has the value that decided the event's place. `_extra` has members of the record itself
    only, so none for a field with a path.
    """
    stored = [origin for origin in found if origin.column]
    if stored and field.name in {*newest.key, newest.subject}:
        return (stored[0],)
    kept = [each for each in found if each.column or not field.path]
    for at, origin in enumerate(kept, 1):
        if origin.before and not (origin.before.nullable or origin.before.has_default or origin.contract.envelope):
            return tuple(kept[:at])
    return tuple(kept)


def several_names(contracts: Sequence[Contract]) -> dict[str, str]:
    """Return by field a text such as `under A, B in version 1`: the versions with several or unknown names of it.

    The text is "" if there are none. It is part of the field's definition: values of older events change only with it.
    """
    texts = {}
    for field in contracts[-1].fields:
        known = {(name, True) for name in field.names} | {(field.name, False)}
        versions: dict[str, list[str]] = {}
        for number, found in enumerate(origins(contracts)[field.name], 1):
            if len(found) > 1 or not known.issuperset((origin.name, bool(origin.column)) for origin in found):
                versions.setdefault(", ".join(origin.name for origin in found), []).append(str(number))
        parts = (f"{names} in version {', '.join(some)}" for names, some in versions.items())
        texts[field.name] = f"under {' or '.join(parts)}" if versions else ""
    return texts
