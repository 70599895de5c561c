"""SQL of Spark and of DuckDB that reads the fields of a contract from columns of a log, of any version.

Members that an event's contract did not know are read from a struct, which `lake.records.extra_members` makes of
`_extra`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from lake import text as texts
from lake.contracts import encryption
from lake.contracts.contract import Contract
from lake.contracts.fields import Field, duckdb_type
from lake.contracts.origins import ExtraMember, Origins, ValueOrigin, has_grown, members, origins
from lake.text import DUCKDB, SPARK

MEMBERS: Final = "_members"
"""Struct of the members of `_extra` that are read: m0, m1 …"""


class SparkDialect:
    quote = SPARK

    def __init__(self, carried: Iterable[ExtraMember]) -> None:
        self._columns = {member: f"{MEMBERS}.m{number}" for number, member in enumerate(carried)}

    def value(self, field: Field, places: Origins) -> str:
        """Return SQL of the value of `field` in an event of any version."""
        plain: dict[str, None] = {}
        mixed: dict[str, list[int]] = {}
        for number, found in enumerate(places, 1):
            if len(found) == 1 and found[0].column:
                plain[self._stored(found[0], field)] = None
            else:
                mixed.setdefault(self._first_value(field, found), []).append(number)
        kept = [*reversed(plain)]
        stored = kept[0] if len(kept) == 1 else f"coalesce({', '.join(kept)})"
        cases = " ".join(f"WHEN _version IN ({', '.join(map(str, of))}) THEN {sql}" for sql, of in mixed.items())
        return f"CASE {cases} ELSE {stored} END" if cases else stored

    def _first_value(self, field: Field, found: Sequence[ValueOrigin]) -> str:
        values, last = [], []
        for origin in found:
            if not origin.column:
                values.append((True, self._columns[ExtraMember((origin.name,), field)]))
                continue
            stored = self._stored(origin, field)
            if origin.before and origin.before.default is not None:
                last.append((False, stored))
                stored = self._unless_default(stored, self._default(origin.before, field), field)
            values.append((False, stored))
        if not any(origin.column for origin in found):
            last.append((False, self._default(field, field)))
        return self.first([*values, *last])

    def _unless_default(self, value: str, default: str, field: Field) -> str:
        """Return null for the default, which may stand for an absent member."""
        if not field.nested:
            return f"nullif({value}, {default})"
        return f"CASE WHEN to_json({value}) IS DISTINCT FROM to_json({default}) THEN {value} END"

    def _stored(self, origin: ValueOrigin, field: Field) -> str:
        """Return the value of `field` in the column of `origin`, with the members that the older contract lacked."""
        column = self.name(origin.column)
        if self.is_sealed(origin):
            return self.cast(encryption.decrypted_sql(column, encryption.place(origin.contract, origin.column)), field)
        if member := origin.member(field):
            assert origin.before is not None
            return self._grown(origin.before, field, column, self._columns[member])
        return self._widened(origin.before or field, column, field)

    def is_sealed(self, origin: ValueOrigin) -> bool:
        return origin.before is not None and origin.before.name in origin.contract.sealed

    def first(self, values: Sequence[tuple[bool, str]]) -> str:
        """Return the first non-null value; each is marked with whether it is from `_extra`."""
        return f"coalesce({', '.join(value for _, value in values)})"

    def _default(self, of: Field, field: Field) -> str:
        from lake.records.extra_members import default_of  # imports Arrow

        if field.nested:
            return self.literal(field, None if of.default is None else default_of(replace(field, default=of.default)))
        return self._widened(of, self.literal(of, default_of(of)), field)

    def _widened(self, before: Field, value: str, field: Field) -> str:
        if before.type == field.type:
            return value
        # A float becomes the double of its shortest decimal text, as if it had been read as one.
        return self.cast(self.text(value) if before.type == "float" else value, field)

    def _grown(self, before: Field, now: Field, value: str, more: str, depth: int = 0) -> str:
        """Return a nested `value` as type `now`; `more` has the members that `before` lacks."""
        if not has_grown(before, now):
            return value
        if now.type.startswith("struct"):
            known = {part.name: part for part in before.parts}
            parts = {
                part.name: self._grown(known[part.name], part, self.member(value, part), self.member(more, part), depth)
                if part.name in known
                else self.member(more, part)
                for part in now.parts
            }
            return f"CASE WHEN {value} IS NOT NULL THEN {self.struct(parts)} END"
        item, at = f"_item{depth}", f"_at{depth}"
        of_map = now.type.startswith("map")
        of_item = f"{item}.value" if of_map and self.quote == DUCKDB else item
        key = self.key(item, at, of_map=of_map)
        body = self._grown(before.parts[0], now.parts[0], of_item, f"{more}[{key}]", depth + 1)
        return self.each(value, item, at, body, of_map=of_map)

    def literal(self, field: Field, value: Any) -> str:
        if value is None:
            return self.cast("NULL", field)
        if not field.nested:
            return self.scalar(field, value)
        if field.type.startswith("struct"):
            parts = {part.name: self.literal(part, value[part.name]) for part in field.parts}
            return self.cast(self.struct(parts), field)
        (part,) = field.parts
        if field.type.startswith("map"):
            pairs = [(self.quoted(key), self.literal(part, each)) for key, each in value]
            return self.cast(self.map(pairs), field)
        return self.cast(self.array([self.literal(part, each) for each in value]), field)

    def scalar(self, field: Field, value: Any) -> str:
        if isinstance(value, bytes):
            return f"unhex('{value.hex()}')"
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        return self.cast(self.quoted(text), field)

    def name(self, name: str) -> str:
        return texts.quoted(name, self.quote)

    def quoted(self, text: str) -> str:
        return texts.literal(text, self.quote)

    def cast(self, value: str, field: Field) -> str:
        return f"cast({value} AS {field.type})"

    def text(self, value: str) -> str:
        return f"cast({value} AS string)"

    def member(self, value: str, part: Field) -> str:
        return f"{value}.{self.name(part.name)}"

    def struct(self, parts: Mapping[str, str]) -> str:
        return f"named_struct({', '.join(f'{self.quoted(name)}, {value}' for name, value in parts.items())})"

    def array(self, items: Sequence[str]) -> str:
        return f"array({', '.join(items)})"

    def map(self, pairs: Sequence[tuple[str, str]]) -> str:
        return f"map({', '.join(part for pair in pairs for part in pair)})"

    def key(self, item: str, at: str, *, of_map: bool) -> str:
        return at if of_map else self.text(at)

    def each(self, value: str, item: str, at: str, body: str, *, of_map: bool) -> str:
        """Put `body` in place of each `item`, whose index or key is `at`."""
        if of_map:
            return f"transform_values({value}, ({at}, {item}) -> {body})"
        return f"transform({value}, ({item}, {at}) -> {body})"


class DuckDBDialect(SparkDialect):
    """Dialect of DuckDB's SQL. Nothing sealed is decrypted."""

    quote = DUCKDB

    def is_sealed(self, origin: ValueOrigin) -> bool:
        return False

    def first(self, values: Sequence[tuple[bool, str]]) -> str:
        """A sealed `_extra` may have any member, so only values before the first of `_extra` are known."""
        known = takewhile(lambda value: not value[0], values)
        sealed = "coalesce(_extra, '') <> '' AND NOT json_valid(_extra)"
        before = f"coalesce({', '.join(['NULL', *(sql for _, sql in known)])})"
        value = f"coalesce({', '.join(sql for _, sql in values)})"
        return f"CASE WHEN {sealed} THEN {before} ELSE {value} END" if any(carried for carried, _ in values) else value

    def cast(self, value: str, field: Field) -> str:
        return f"CAST({value} AS {duckdb_type(field)})"

    def text(self, value: str) -> str:
        return f"CAST({value} AS VARCHAR)"

    def struct(self, parts: Mapping[str, str]) -> str:
        return f"struct_pack({', '.join(f'{self.name(name)} := {value}' for name, value in parts.items())})"

    def array(self, items: Sequence[str]) -> str:
        return f"[{', '.join(items)}]"

    def map(self, pairs: Sequence[tuple[str, str]]) -> str:
        return f"MAP {{{', '.join(f'{key}: {value}' for key, value in pairs)}}}"

    def key(self, item: str, at: str, *, of_map: bool) -> str:
        """Indices of lists begin with 1."""
        return f"{item}.key" if of_map else self.text(f"{at} - 1")

    def each(self, value: str, item: str, at: str, body: str, *, of_map: bool) -> str:
        if not of_map:
            return f"list_transform({value}, lambda {item}, {at}: {body})"
        entry = f"struct_pack(k := {item}.key, v := {body})"
        return f"map_from_entries(list_transform(map_entries({value}), lambda {item}: {entry}))"


def fields_sql(contracts: Sequence[Contract]) -> list[str]:
    places, dialect = origins(contracts), SparkDialect(members(contracts))
    return [
        f"{dialect.value(field, places[field.name])} AS {dialect.name(field.name)}" for field in contracts[-1].fields
    ]


def unchanged(contracts: Sequence[Contract]) -> set[str]:
    places, dialect, newest = origins(contracts), SparkDialect(members(contracts)), contracts[-1]
    upcast = {name for step in newest.upcast for name, _ in step.expressions}
    return {
        field.name
        for field in newest.fields
        if field.name not in upcast and dialect.value(field, places[field.name]) == dialect.name(field.name)
    }
