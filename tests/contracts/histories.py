"""Histories of a contract, and a model of the values that its newest version reads in events of any version.

The model knows records as written by producers, and the rules of docs/how-to/change-contracts.md. It shares no code
with `lake.contracts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import permutations, product
from random import Random
from typing import Any, Final

KEY: Final = "id"
DEFAULT: Final = 7
TYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "number": ("int", "long", "double"),
    "decimal": tuple({"type": "bytes", "logicalType": "decimal", "precision": p, "scale": 1} for p in (5, 20, 30)),
}
"""By chain, the types of a field from the narrowest to the widest."""
VALUES: Final = {"a": 11, "b": 1 << 40, "c": 33, "a__bigint": 44}
"""By name, the value that a record carries under it; that of b is too large for the narrowest type."""
ABSENT: Final = -1
WIDEST: Final = 2
NARROW: Final = 1000
"""The narrowest type of each chain has room for values below it, and none for that of b."""
Record = Mapping[str, int | None]


@dataclass(frozen=True)
class Field:
    """Field of a version: its name, its aliases, its position in the chain of types, and whether it has a default."""

    names: tuple[str, ...]
    width: int = 0
    default: int | None = None

    @property
    def name(self) -> str:
        return self.names[0]

    def reads(self, value: int | None) -> int | None:
        """Return the value, or null if it does not fit the type."""
        return value if value is None or self.width or value < NARROW else None


Version = tuple[Field, ...]
History = tuple[Version, ...]


def contract(version: Version, chain: str = "number") -> dict[str, Any]:
    """Return the text of a version as JSON."""
    fields = []
    for each in version:
        union = ["null", TYPES[chain][each.width]]
        said = {"type": union if each.default is None else union[::-1], "default": each.default}
        fields.append({"name": each.name, "aliases": [*each.names[1:]], **said})
    about = {"key": [KEY], "id": [KEY], "buckets": 1}
    return {"type": "record", "name": "things", "lake": about, "fields": [{"name": KEY, "type": "long"}, *fields]}


def successors(version: Version, names: Sequence[str], width: int) -> Iterator[Version]:
    """Yield the versions that differ by one change; new fields have the type number `width` of the chain."""
    unknown = [name for name in names if all(name not in field.names for field in version)]
    for name, default in product(unknown, (None, DEFAULT)):
        yield (*version, Field((name,), width, default))
    for at, field in enumerate(version):
        changed = [replace(field, names=(*field.names, name)) for name in unknown]
        changed += [replace(field, names=(name, *field.names)) for name in unknown]
        changed += [
            replace(field, names=(name, *(other for other in field.names if other != name))) for name in field.names[1:]
        ]
        changed += [
            replace(field, names=tuple(other for other in field.names if other != name)) for name in field.names[1:]
        ]
        yield from ((*version[:at], each, *version[at + 1 :]) for each in changed)
        yield (*version[:at], *version[at + 1 :])
    if version and width < WIDEST:
        yield tuple(replace(field, width=width + 1) for field in version)


def _extended(history: History, names: Sequence[str]) -> Iterator[History]:
    width = max((field.width for version in history for field in version), default=0)
    yield from ((*history, after) for after in successors(history[-1], names, width))


def newest_versions(history: History, names: Sequence[str]) -> Iterator[History]:
    """Yield the history, and with one more version: one change, or one field under some names in any order."""
    yield history
    yield from _extended(history, names)
    width = max((field.width for version in history for field in version), default=0)
    for count in range(1, len(names) + 1):
        yield from ((*history, (Field(chosen, width),)) for chosen in permutations(names, count))


def every_history(length: int, names: Sequence[str] = "ab") -> Iterator[History]:
    """Yield all histories of `length` changes of a contract that begins with its key alone."""
    histories: list[History] = [((),)]
    for _ in range(length):
        histories = [longer for history in histories for longer in _extended(history, names)]
    yield from histories


def some_history(dice: Random, length: int, names: Sequence[str] = "abc") -> History:
    """Return a random history."""
    history: History = ((),)
    for _ in range(length):
        history = dice.choice([*_extended(history, names)])
    return history


def records(names: Sequence[str]) -> list[Record]:
    """Return records with each name absent, null, or with its value; and with the default written out."""
    choices = product(*((ABSENT, None, VALUES[name]) for name in names))
    members = [dict(zip(names, values, strict=True)) for values in choices]
    carried: list[Record] = [{name: value for name, value in each.items() if value != ABSENT} for each in members]
    return [*carried, *({name: DEFAULT, other: VALUES[other]} for name, other in permutations(names, 2))]


@dataclass(frozen=True)
class Stored:
    """Event in the log: the version that ingested it, its values by field, and its unknown members."""

    version: int
    values: Mapping[str, int | None]
    extra: Record


def taken(history: History, version: int, record: Record) -> Stored | None:
    """Return the event that version number `version`, from 0, stores for a record; None if it rejects the record."""
    values: dict[str, int | None] = {}
    for field in history[version]:
        carried = [record[name] for name in field.names if name in record]
        value = next((each for each in carried if each is not None), None if carried else field.default)
        if field.reads(value) != value or any(each not in (value, None) for each in carried):
            return None
        values[field.name] = value
    known = {name for field in history[version] for name in field.names}
    return Stored(version, values, {name: value for name, value in record.items() if name not in known})


def read(history: History, event: Stored) -> dict[str, int | None]:
    """Return the values that the newest version reads in an event."""
    return {field.name: _value(history, event, field) for field in history[-1]}


def _value(history: History, event: Stored, field: Field) -> int | None:
    if event.version == len(history) - 1:
        return event.values[field.name]
    later = [name for version in history[: event.version : -1] for known in version for name in known.names]
    names = dict.fromkeys([*field.names, *later])
    filled: list[int | None] = []
    for name in (name for name in names if _owner(history, event.version, (name,)) == field.name):
        column = next((each for each in history[event.version] if name in each.names), None)
        if column is None:
            value = field.reads(event.extra.get(name))
        elif _owner(history, event.version, column.names) != field.name:
            continue
        else:
            value = event.values[column.name]
            filled.append(value)
            value = None if value is not None and value == column.default else value
        if value is not None:
            return value
    return next((value for value in filled if value is not None), None) if filled else field.default


def _owner(history: History, version: int, names: Sequence[str]) -> str | None:
    """Return the field of the newest version that holds the values of any of `names` in `version`."""
    for name in names:
        for number in range(len(history) - 1, version, -1):
            for field in history[number]:
                if name in field.names:
                    return field.name if number == len(history) - 1 else _owner(history, number, field.names)
    return None


def extra(event: Stored) -> str | None:
    """Return the JSON of the unknown members."""
    return json.dumps(event.extra) if event.extra else None


def plain(value: Any) -> int | None:
    """Return the value of a reader as in the model."""
    if isinstance(value, float | Decimal):
        assert value == int(value)
        return int(value)
    assert value is None or isinstance(value, int)
    return value
