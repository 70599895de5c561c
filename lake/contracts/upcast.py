"""Expressions that convert events of an older contract version, {version: {field: expression}}.

With steps for versions 1 and 3, an event of version 1 passes both in this order, one of version 2 or 3 only the second.
An expression is DuckDB SQL over the newest contract's fields before the step. Fields that identify or place events
cannot be upcast, so ids stay.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lake.contracts.fields import Field, duckdb_type
from lake.errors import did_you_mean
from lake.session.duck import expression_fault
from lake.text import literal, quoted

EXAMPLE: Final = 'write {"1": {"energy": "energy * 1000"}}: a version, a field, an expression over the fields'
DURATIONS: Final = ("every", "idle")
FAILED: Final = "_failed"


class UpcastStep(NamedTuple):
    """Expressions by field for events up to `version`; within a log, only for those of `versions`."""

    version: int
    expressions: tuple[tuple[str, str], ...]
    versions: tuple[int, ...] = ()

    @property
    def applies(self) -> str:
        if self.versions:
            return f"_version IN ({', '.join(map(str, self.versions))})"
        return f"_version <= {self.version}"


def steps_of(declared: Mapping[str, Mapping[str, str]]) -> tuple[UpcastStep, ...]:
    return tuple(sorted(UpcastStep(int(version), tuple(fields.items())) for version, fields in declared.items()))


def wrong_upcast(facts: Mapping[str, Any], fields: Sequence[Field]) -> Iterator[tuple[str, str]]:
    declared, names = facts.get("upcast", {}), [field.name for field in fields]
    if not isinstance(declared, dict) or not all(isinstance(step, dict) for step in declared.values()):
        yield f"invalid upcast: {declared!r}", EXAMPLE
        return
    for version, step in declared.items():
        if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
            yield f"upcast names {version!r}, which is not a version", "versions are numbers, beginning with 1"
        if not step:
            yield f"upcast of version {version} names no field", EXAMPLE
        for name, expression in step.items():
            if not isinstance(expression, str):
                yield f"invalid upcast of {name!r}: {expression!r}", EXAMPLE
            if name not in names:
                yield f"upcast names {name!r}, which is not a field", did_you_mean(name, names)
            elif fact := _fact_of(name, facts):
                yield f"upcast changes {name!r}, which is of the {fact}", "add a new field, or publish a new stream"


def _fact_of(name: str, facts: Mapping[str, Any]) -> str:
    users: dict[str, Collection[Any]] = {
        "key": listed(facts["key"]),
        "id": listed(facts.get("id")),
        "event time": words(facts.get("time")),
        "broadcast": words(facts.get("broadcast")),
        "subject": [facts.get("subject")],
        "dump": [facts.get("dump")],
        **{fact: words(facts.get(fact)) for fact in ("clock", "complete", "horizon")},
    }
    return next((fact for fact, fields in users.items() if name in fields), "")


def listed(fact: Any) -> list[Any]:
    return fact if isinstance(fact, list) else []


def words(fact: Any) -> set[str]:
    """Return the words of an expression, or of the members of an object except its durations."""
    texts = [text for name, text in fact.items() if name not in DURATIONS] if isinstance(fact, dict) else [fact]
    return {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}


def wrong_expressions(steps: Sequence[UpcastStep], fields: Sequence[Field]) -> Iterator[tuple[str, str]]:
    by_name = {field.name: field for field in fields}
    row = ", ".join(f"CAST(NULL AS {duckdb_type(field)}) AS {quoted(field.name)}" for field in fields)
    for step in steps:
        for name, expression in step.expressions:
            what = f"upcast of {name!r} from version {step.version}: {expression!r}"
            personal = sorted(name for name in used_fields([expression], fields) if by_name[name].personal)
            if fault := expression_fault(expression, duckdb_type(by_name[name]), row):
                yield f"{what} {fault[0]}", fault[1]
            elif personal and not by_name[name].personal:
                yield f"{what} uses {personal[0]!r}, which is personal", f"use other fields, or make {name!r} personal"


def used_fields(expressions: Collection[str], fields: Sequence[Field]) -> set[str]:
    mentioned = {word.lower() for expression in expressions for word in words(expression)}
    return {field.name for field in fields if field.name.lower() in mentioned}


def upcast_fields(steps: Sequence[UpcastStep], fields: Sequence[Field]) -> list[Field]:
    names = {name for step in steps for name, _ in step.expressions}
    return [field for field in fields if field.name in names]


def definition(steps: Sequence[UpcastStep], fields: Sequence[Field], texts: Mapping[str, str]) -> dict[str, str]:
    described = dict(texts)
    every = used_fields([sql for step in steps for _, sql in step.expressions], fields)
    written = ", ".join(f"{step.version}: {name} = {sql}" for step in steps for name, sql in step.expressions)
    for field in upcast_fields(steps, fields):
        others = [f"{name} {texts[name]}" for name in sorted(every - {field.name})]
        described[field.name] = "; ".join([f"{texts[field.name]} upcast {written}", *others])
    return described


def upcast_sql(
    steps: Sequence[UpcastStep], fields: Sequence[Field], rows: str, *, opened: bool, tried: bool = False
) -> str:
    """Return DuckDB's SQL of `rows` (a query or a table, with `_version`) with their fields upcast.

    Personal fields are null unless `opened`. If `tried`, failures give null, and FAILED names a failed field.
    """
    by_name = {field.name: field for field in fields}
    if tried:
        rows = f"(SELECT *, CAST(NULL AS VARCHAR) AS {FAILED} FROM {rows})"
    for step in steps:
        values, failed = [], [FAILED]
        for name, expression in step.expressions:
            field, older, column = by_name[name], step.applies, quoted(name)
            value = f"CAST(({expression}) AS {duckdb_type(field)})" if opened or not field.personal else "NULL"
            failed.append(f"CASE WHEN {older} AND TRY(struct_pack(v := {value})) IS NULL THEN {literal(name)} END")
            values.append(f"CASE WHEN {older} THEN {f'TRY({value})' if tried else value} ELSE {column} END AS {column}")
        values += [f"coalesce({', '.join(failed)}) AS {FAILED}"] if tried else []
        rows = f"(SELECT * REPLACE ({', '.join(values)}) FROM {rows})"
    return rows
