"""The fields of events in DuckDB's SQL, as contracts of now read them; `lake.store.dialects` has them in Spark's too.

Nothing that is personal is opened: it is null. What an event's contract did not know is read by the same Python as in
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lake.contracts import origins
from lake.contracts.contract import Contract
from lake.contracts.duckdb_types import type_of
from lake.contracts.evolution import steps_of_log
from lake.contracts.fields import Field
from lake.contracts.origins import Member
from lake.contracts.upcast import upcast_sql
from lake.read.relation import Function
from lake.store.dialects import MEMBERS, DuckDB

FUNCTION: Final = "_members_of_{}"
"""The function that reads members of `_extra`, of a stream."""


def note(field: Field, contracts: Sequence[Contract]) -> str:
    """Return why `field` is null, or may be, in an event that has a value; "" if it never is."""
    if field.personal:
        return "personal, so always null here"
    if contracts[-1].sealed and any(member.field == field for member in _members(contracts)):
        return "null of events that may have carried it before the contract knew that name: they have it sealed"
    return ""


def functions(contracts: Sequence[Contract]) -> tuple[Function, ...]:
    """Return the functions that the SQL of `read` calls."""
    from lake.records.members import read_members  # with Arrow

    members = _members(contracts)
    if not members:
        return ()
    kinds = ", ".join(f"m{number} {type_of(member.shape)}" for number, member in enumerate(members))
    name, takes = FUNCTION.format(contracts[-1].name), ("INTEGER", "VARCHAR")

    def work(versions, extras):  # type: ignore[no-untyped-def]  # DuckDB evaluates annotations
        return read_members(members, versions, extras)

    return (Function(name, work, takes, f"STRUCT({kinds})"),)


def read(contracts: Sequence[Contract], events: str, own: Sequence[str]) -> str:
    """Return SQL of the fields of the newest contract, and of `own` columns, of `events`: a query of a log's files.

    The `own` columns have `_version`.
    """
    members, newest, places = _members(contracts), contracts[-1], origins.origins(contracts)
    if members:
        call = f'"{FUNCTION.format(newest.name)}"(CAST(_version AS INTEGER), _extra)'
        events = f"(SELECT *, {call} AS {MEMBERS} FROM {events})"
    dialect, values = DuckDB(members), []
    for field in newest.fields:
        value = "NULL" if field.personal else origins.reading(field, places[field.name], dialect)
        values.append(f"{dialect.cast(value, field)} AS {dialect.name(field.name)}")
    rows = f"(SELECT {', '.join([*values, *own])} FROM {events})"
    return upcast_sql(steps_of_log(contracts), newest.fields, rows, opened=False)


def _members(contracts: Sequence[Contract]) -> Mapping[Member, frozenset[int]]:
    """The members that are read; personal ones are sealed."""
    every = origins.members(contracts)
    return {member: versions for member, versions in every.items() if not member.field.personal}
