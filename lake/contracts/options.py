"""The facts of a contract, its `lake` object and where its fields are: what is wrong with them, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from lake.contracts.csv_options import wrong_options
from lake.contracts.fields import FACTS_OF, FILE, FILE_FACTS, UNCHANGED, WITH_PARTS, Field
from lake.contracts.upcast import wrong_upcast
from lake.errors import did_you_mean

FACTS: Final = {
    "key",
    "id",
    "time",
    "buckets",
    "max_ahead",
    "broadcast",
    "dump",
    "envelope",
    "table",
    "placeholder",
    "subject",
    "max_refused",
    "csv",
    "complete",
    "clock",
    "horizon",
    "unknown",
    "missing",
    "upcast",
}
CHOICES: Final = {"unknown": ("keep", "report", "warn", "refuse"), "missing": ("report", "refuse")}
ENVELOPES: Final[Mapping[str, frozenset[str]]] = {
    "debezium": frozenset({"op", "before", "after", "source", "transaction", "ts_ms", "ts_us", "ts_ns", *UNCHANGED}),
}
CLOCK: Final = re.compile(
    r"\b(now|curdate|current_\w+|localtimestamp|rand\w*|uuid|unix_timestamp)\b(?=\W|$)", re.IGNORECASE
)
MAPS: Final = re.compile(r"\b(map|map_concat|map_from_\w+|str_to_map|transform_keys)\s*\(", re.IGNORECASE)
CONSTANT_MAP: Final = re.compile(r"\bmap\s*\((?:\s*(?:'[^']*'|-?[0-9.]+)\s*,?)*\)", re.IGNORECASE)
_FACTS: Final = " or ".join(f'"{FILE}.{fact}"' for fact in FILE_FACTS)
UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def duration(text: Any) -> timedelta | None:
    """`1 day`, `90 minutes` … as a timedelta; None where it is not one."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", text) if isinstance(text, str) else None
    if match is None or match[2] not in UNITS:
        return None
    return timedelta(seconds=int(match[1]) * UNITS[match[2]])


def wrong_facts(facts: Any, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    """Each fault of the `lake` object as (fact, what, fix); names are checked only where all fields are known."""
    if not isinstance(facts, dict) or "key" not in facts:
        given = sorted(set(facts) - FACTS) if isinstance(facts, dict) else []
        meant = next((fact for fact in given if did_you_mean(fact, FACTS) == "did you mean 'key'?"), "")
        yield (
            meant or "lake",
            'no key declared: "lake": {"key": [...]} is missing',
            f"write 'key' instead of {meant!r}" if meant else "name the fields that identify what an event is about",
        )
        return
    for fact in sorted(set(facts) - FACTS):
        yield fact, f"unknown attribute {fact!r} of lake", did_you_mean(fact, FACTS)
    for fact in ("key", "id"):
        yield from _wrong_names(fact, facts.get(fact), fields, names)
    time = facts.get("time")
    if time is not None and names is not None:
        yield from _wrong_time(time, fields, names)
    buckets = facts.get("buckets", 8)
    if not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets <= 4096:
        yield "buckets", f"invalid buckets: {buckets!r}", "use a whole number from 1 to 4096"
    if "max_ahead" in facts and duration(facts["max_ahead"]) is None:
        yield (
            "max_ahead",
            f"invalid max_ahead: {facts['max_ahead']!r}",
            'write a duration such as "1 day" or "90 minutes"',
        )
    yield from _wrong_limit(facts.get("max_refused", {}))
    yield from (("broadcast", what, fix) for what, fix in _wrong_broadcast(facts.get("broadcast", "")))
    yield from _wrong_choices(facts)
    yield from _wrong_envelope(facts)
    if "csv" in facts:
        yield from (("csv", what, fix) for what, fix in wrong_options(facts["csv"]))
        if "envelope" in facts:
            yield "csv", '"csv" together with "envelope"', "change messages are JSON: leave one of them out"
    if names is not None:
        yield from (("upcast", what, fix) for what, fix in wrong_upcast(facts, fields))
    yield from (("complete", what, fix) for what, fix in _wrong_complete(facts, fields, names))
    yield from (("clock", what, fix) for what, fix in _wrong_clock(facts, fields, names))
    yield from (("horizon", what, fix) for what, fix in _wrong_horizon(facts, fields, names))
    if facts.get("dump") is not None and names is not None:
        yield from _wrong_names("dump", [facts["dump"]], fields, names)
        if any(field.name == facts["dump"] and field.personal for field in fields):
            yield (
                "dump",
                f"dump names {facts['dump']!r}, which is personal",
                "dumps are identified by fields that are not encrypted",
            )
    if "subject" in facts and names is not None:
        yield from _wrong_subject(facts, fields, names)


def _wrong_limit(limit: Any) -> Iterator[tuple[str, str, str]]:
    written = 'write {"share": 0.1, "records": 20}'
    if not isinstance(limit, dict):
        yield "max_refused", f"invalid max_refused: {limit!r}", written
        return
    for name in sorted(set(limit) - {"share", "records"}):
        yield "max_refused", f"unknown member {name!r} of max_refused", did_you_mean(name, ["share", "records"])
    share, records = limit.get("share", 0), limit.get("records", 0)
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        yield "max_refused", f"invalid share of max_refused: {share!r}", "use a number from 0 to 1"
    if not isinstance(records, int) or isinstance(records, bool) or records < 0:
        yield "max_refused", f"invalid records of max_refused: {records!r}", "use a whole number, 0 or more"


def _wrong_clock(facts: dict[str, Any], fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str]]:
    if "clock" not in facts:
        return
    clock, members = facts["clock"], ("sent", "received")
    if not isinstance(clock, dict) or set(clock) != {*members}:
        yield f"invalid clock: {clock!r}", 'write {"sent": "sent_at", "received": "received_at"}'
        return
    if facts.get("time") is None:
        yield "clock corrects the event time, and events have none", 'declare "time"'
    by_name = {field.name: field for field in fields}
    for member in members if names is not None else ():
        field = by_name.get(clock[member]) if isinstance(clock[member], str) else None
        if field is None:
            yield f"clock names an unknown field {clock[member]!r}", did_you_mean(str(clock[member]), by_name)
        elif field.type != "timestamp":
            yield f"clock names {field.name!r} of type {field.type}", "use a field of type timestamp"
        elif not field.transport:
            yield (
                f"clock names {field.name!r}, which a redelivery may not differ in",
                'add "transport": true to the field',
            )
        elif field.name in facts["key"] or field.name in (facts.get("id") or ()):
            yield f"clock names {field.name!r}, which is of the identity", "use a field that says how the event came"


def _wrong_complete(facts: dict[str, Any], fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str]]:
    complete = facts.get("complete", {})
    if not isinstance(complete, dict) or (
        "complete" in facts and not complete.keys() & {"producer", "number", "every"}
    ):
        yield f"invalid complete: {complete!r}", 'write {"producer": "device", "number": "seq"} or {"every": "1 day"}'
        return
    members = ("producer", "number", "every")
    for name in sorted(set(complete) - {*members}):
        yield f"unknown member {name!r} of complete", did_you_mean(name, members)
    if "producer" in complete and "number" not in complete:
        yield "complete names a producer and no number", 'add "number": the field that its events are counted in'
    if "every" in complete and duration(complete["every"]) in {None, timedelta(0)}:
        yield f"invalid every of complete: {complete['every']!r}", 'write a duration such as "1 day" or "15 minutes"'
    if "every" in complete and facts.get("time") is None:
        yield "complete has every, and events have no time", 'declare "time"'
    by_name = {field.name: field for field in fields}
    for member in ("producer", "number") if names is not None else ():
        if member not in complete:
            continue
        field = by_name.get(complete[member]) if isinstance(complete[member], str) else None
        if field is None:
            yield (
                f"complete names an unknown {member} {complete[member]!r}",
                did_you_mean(str(complete[member]), by_name),
            )
        elif field.personal or field.nested:
            yield (
                f"complete names {field.name!r}, which is {'personal' if field.personal else 'nested'}",
                "use another field",
            )
        elif member == "number" and field.type not in {"int", "bigint"} and not field.type.endswith(",0)"):
            yield f"complete names {field.name!r} of type {field.type} as number", "use a whole number"


def _wrong_horizon(facts: dict[str, Any], fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str]]:
    if "horizon" not in facts:
        return
    horizon, members = facts["horizon"], ("producer", "punctuation", "idle", "limit")
    if not isinstance(horizon, dict) or "producer" not in horizon:
        yield (
            f"invalid horizon: {horizon!r}",
            'write {"producer": "device"}, and "punctuation", "idle", "limit" if need be',
        )
        return
    for name in sorted(set(horizon) - {*members}):
        yield f"unknown member {name!r} of horizon", did_you_mean(name, members)
    if facts.get("time") is None:
        yield "horizon waits for event times, and events have none", 'declare "time"'
    if "idle" in horizon and duration(horizon["idle"]) in {None, timedelta(0)}:
        yield f"invalid idle of horizon: {horizon['idle']!r}", 'write a duration such as "2 hours" or "1 day"'
    limit = horizon.get("limit", 1)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield f"invalid limit of horizon: {limit!r}", "use a whole number, 1 or more"
    if "punctuation" in horizon:
        yield from _wrong_punctuation(horizon["punctuation"], names)
    field = next((field for field in fields if field.name == horizon["producer"]), None)
    if names is None:
        return
    if field is None:
        yield (
            f"horizon names an unknown producer {horizon['producer']!r}",
            did_you_mean(str(horizon["producer"]), names),
        )
    elif field.personal:
        yield (
            f"horizon names {field.name!r}, which is personal",
            "use another field: the log's commits name producers in clear",
        )
    elif field.type not in {"string", "int", "bigint"}:
        yield f"horizon names {field.name!r} of type {field.type} as producer", "use a text or a whole number"


def _wrong_broadcast(condition: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(condition, str):
        yield f"invalid broadcast: {condition!r}", "write a SQL condition over the fields"
    else:
        yield from _wrong_maps("broadcast", condition)


def _wrong_punctuation(condition: Any, names: list[str] | None) -> Iterator[tuple[str, str]]:
    if not isinstance(condition, str):
        yield f"invalid punctuation of horizon: {condition!r}", "write a SQL condition over the fields"
    elif clock := CLOCK.search(condition):
        yield f"punctuation {condition!r} is not deterministic: {clock[0]}", "derive it from the record"
    elif names is not None and not set(re.findall(r"\w+", condition)) & set(names):
        yield f"punctuation {condition!r} uses no field", f"known: {', '.join(names)}"
    else:
        yield from _wrong_maps("punctuation", condition)


def _wrong_subject(facts: dict[str, Any], fields: list[Field], names: list[str]) -> Iterator[tuple[str, str, str]]:
    personal = {field.name: field for field in fields if field.personal}
    yield from _wrong_names("subject", [facts["subject"]], fields, names)
    if not personal:
        yield (
            "subject",
            "there is a subject, but no field is personal",
            'add "personal": true to the fields about a person',
        )
    for name, field in personal.items():
        if field.nested or field.type == "binary":
            yield (
                "subject",
                f"personal field {name!r} is of type {field.type}",
                "only fields with single values can be personal",
            )
        if name in re.findall(r"\w+", str(facts.get("time") or "")):
            yield "time", f"event time uses {name!r}, which is personal", "event times are not encrypted in the log"


def _wrong_choices(facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for fact, choices in CHOICES.items():
        if facts.get(fact, choices[0]) not in choices:
            yield fact, f"invalid {fact}: {facts[fact]!r}", did_you_mean(str(facts[fact]), choices)
    if facts.get("missing") == "refuse" and "envelope" in facts:
        yield (
            "missing",
            '"missing" together with "envelope"',
            "a change message may lack columns: leave one of them out",
        )


def _wrong_envelope(facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    envelope, table = facts.get("envelope"), facts.get("table")
    if "envelope" in facts and envelope not in ENVELOPES:
        yield "envelope", f"unknown envelope {envelope!r}", did_you_mean(str(envelope), ENVELOPES)
    if "table" in facts and "envelope" not in facts:
        yield "table", '"table" needs an "envelope"', 'add "envelope": "debezium"'
    elif "table" in facts and (not isinstance(table, str) or not table.strip(". ")):
        yield (
            "table",
            f"invalid table: {table!r}",
            'write the table\'s name as its messages have it, such as "inventory.customers"',
        )
    placeholder = facts.get("placeholder", "")
    if "placeholder" in facts and "envelope" not in facts:
        yield "placeholder", '"placeholder" needs an "envelope"', 'add "envelope": "debezium"'
    elif "placeholder" in facts and (not isinstance(placeholder, str) or not placeholder):
        fix = "write the connector's unavailable.value.placeholder"
        yield "placeholder", f"invalid placeholder: {placeholder!r}", fix


def wrong_paths(field: Field, facts: Any) -> Iterator[tuple[str, str]]:
    """Each fault of where a field's value is, and how it is written there, as (what, fix)."""
    envelope = facts.get("envelope") if isinstance(facts, dict) else None
    if envelope is None and field.is_fact:
        yield from _wrong_fact(field)
    elif envelope is None and field.path:
        yield (
            f"field {field.name!r} has 'from', but records have no envelope",
            f'add "envelope" to "lake", or write {_FACTS} for what is known of its file',
        )
    if envelope is None and field.encoding:
        yield f"field {field.name!r} has 'encoding', but records have no envelope", 'add "envelope" to "lake"'
    if envelope is not None and not field.form.plain:
        yield f"field {field.name!r} says how it is written{field.form.words}", 'with an envelope, use "encoding"'
    roots = ENVELOPES.get(envelope, frozenset()) if isinstance(envelope, str) else frozenset()
    if roots and field.path and field.path[0] not in roots:
        yield (
            f"field {field.name!r} comes from {field.path[0]!r}, which the envelope does not have",
            did_you_mean(field.path[0], roots),
        )
    if field.path[:1] == UNCHANGED and (field.path != UNCHANGED or field.type != "array<string>"):
        yield (
            f"field {field.name!r} of type {field.type} comes from {'.'.join(field.path)!r}",
            'write "from": "unchanged" for an array of strings: the names of columns',
        )


def _wrong_fact(field: Field) -> Iterator[tuple[str, str]]:
    origin, path, facts = field.path[0], ".".join(field.path), FACTS_OF[field.path[0]]
    least = WITH_PARTS.get(field.path[:2])
    right = len(field.path) == 2 if least is None else len(field.path) >= least
    if field.path[1:2] and field.path[1] in facts and not right:
        yield f"field {field.name!r} has an invalid path: {path!r}", f'write a path such as "{origin}.headers.source"'
    elif field.path[1:2] == () or field.path[1] not in facts:
        whose = "files do" if field.of_file else f"a record by {origin} does"
        yield (
            f"field {field.name!r} comes from {path!r}, which {whose} not have",
            "use " + " or ".join(f'"{origin}.{fact}"' for fact in facts),
        )
    if field.nested:
        what = "a file" if field.of_file else origin
        yield f"field {field.name!r} of type {field.type} comes from {what}", "use a type of single values"
    if field.path == (FILE, "time") and not field.form.plain:
        yield (
            f"field {field.name!r} has a format, and is the time of a file",
            "leave it out: it is known",
        )


def _wrong_names(fact: str, given: Any, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    if fact == "id" and (given is None or given == "content"):
        return
    if not isinstance(given, list) or not given:
        yield (
            fact,
            f"invalid {fact}: {given!r}",
            "write a list of field names" + (' or "content"' if fact == "id" else ""),
        )
        return
    for name in {name: None for name in given if given.count(name) > 1}:
        yield fact, f"{fact} names {name!r} twice", "name it once"
    if names is None:
        return
    for name in given:
        if name not in names:
            fix = did_you_mean(str(name), names) if names else 'declare it in "fields"'
            yield fact, f"{fact} names {name!r}, which is not a field", fix
        elif next(field for field in fields if field.name == name).nested:
            yield fact, f"{fact} field {name!r} is nested", "use a field that is not nested"


def _wrong_time(time: Any, fields: list[Field], names: list[str]) -> Iterator[tuple[str, str, str]]:
    if not isinstance(time, str):
        yield "time", f"invalid time: {time!r}", "write a field name or a SQL expression over the fields"
    elif re.fullmatch(r"\w+", time):
        field = next((field for field in fields if field.name == time), None)
        if field is None:
            yield "time", f"time names {time!r}, which is not a field", did_you_mean(time, names)
        elif field.type not in {"timestamp", "date"}:
            yield "time", f"time field {time!r} is of type {field.type}", "use a timestamp or date, or an expression"
    elif clock := CLOCK.search(time):
        yield "time", f"time expression {time!r} is not deterministic: {clock[0]}", "derive it from the event"
    elif not set(re.findall(r"\w+", time)) & set(names):
        yield "time", f"time expression {time!r} uses no field", f"known: {', '.join(names)}"
    else:
        yield from (("time", what, fix) for what, fix in _wrong_maps("time expression", time))


def _wrong_maps(name: str, expression: str) -> Iterator[tuple[str, str]]:
    """Find the function that makes a map of a record's values.

    Spark keeps keys of a map that it fails to make, because one is there twice, for the map of the next record.
    """
    if function := MAPS.search(CONSTANT_MAP.sub("", expression)):
        what = f"{name} {expression!r} makes a map of a record's values: {function[1]}"
        yield what, "use CASE, or a map of constants"
