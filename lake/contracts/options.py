"""Validation of a contract's `lake` object and of its fields' paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

from lake.connectors import connector, connectors
from lake.contracts.csv_options import wrong_options
from lake.contracts.determinism import nondeterministic_function
from lake.contracts.fields import FILE, FILE_FACTS, UNCHANGED, Field
from lake.contracts.upcast import listed, wrong_upcast
from lake.errors import DeclarationError, did_you_mean
from lake.text import LONGEST, duration

FACTS: Final = {
    *("key", "id", "time", "buckets", "max_ahead", "broadcast", "dump", "envelope", "table", "placeholder", "subject"),
    *("max_refused", "csv", "complete", "clock", "horizon", "unknown", "missing", "upcast"),
}
CHOICES: Final = {"unknown": ("keep", "report", "warn", "refuse"), "missing": ("report", "refuse")}
ENVELOPES: Final[Mapping[str, frozenset[str]]] = {
    "debezium": frozenset({"op", "before", "after", "source", "transaction", "ts_ms", "ts_us", "ts_ns", *UNCHANGED}),
}
MAPS: Final = re.compile(r"\b(map|map_concat|map_from_\w+|str_to_map|transform_keys)\s*\(", re.IGNORECASE)
CONSTANT_MAP: Final = re.compile(r"\bmap\s*\((?:\s*(?:'[^']*'|-?[0-9.]+)\s*,?)*\)", re.IGNORECASE)
PART: Final = ".NAME"
"""End of a fact's name that stands for any name, which may have dots."""
DURATION: Final = f'write a duration such as "1 day" or "90 minutes", of at most {LONGEST.days:,} days'

Facts: TypeAlias = dict[str, Any]
Faults: TypeAlias = Iterator[tuple[str, str]]


def wrong_facts(facts: Any, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    """Yield (fact, fault, fix). Names are checked only if all fields are known."""
    if not isinstance(facts, dict) or "key" not in facts:
        given = sorted(set(facts) - FACTS) if isinstance(facts, dict) else []
        typo = next((fact for fact in given if did_you_mean(fact, FACTS) == "did you mean 'key'?"), "")
        fix = f"write 'key' instead of {typo!r}" if typo else "name the fields that identify what an event is about"
        yield typo or "lake", 'no key declared: "lake": {"key": [...]} is missing', fix
        return
    for fact in sorted(set(facts) - FACTS):
        yield fact, f"unknown attribute {fact!r} of lake", did_you_mean(fact, FACTS)
    for fact, faults in _checks(facts, fields, names):
        yield from ((fact, what, fix) for what, fix in faults)


def _checks(facts: Facts, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, Faults]]:
    yield "key", _wrong_names("key", facts["key"], fields, names)
    if facts.get("id") not in (None, "content"):
        yield "id", _wrong_names("id", facts["id"], fields, names)
    if facts.get("time") is not None and names is not None:
        yield "time", _wrong_time(facts["time"], fields, names)
    buckets, max_ahead = facts.get("buckets", 8), facts.get("max_ahead", "1 day")
    is_right = _is_whole(buckets, 1, 4096)
    yield "buckets", _unless(is_right, f"invalid buckets: {buckets!r}", "use a whole number from 1 to 4096")
    yield "max_ahead", _unless(duration(max_ahead) is not None, f"invalid max_ahead: {max_ahead!r}", DURATION)
    yield "max_refused", _wrong_limit(facts.get("max_refused", {}))
    yield "broadcast", _wrong_broadcast(facts.get("broadcast", ""), names)
    for fact, choices in CHOICES.items():
        given = facts.get(fact, choices[0])
        yield fact, _unless(given in choices, f"invalid {fact}: {given!r}", did_you_mean(str(given), choices))
    yield from _checks_of_envelope(facts)
    if "csv" in facts:
        yield "csv", wrong_options(facts["csv"])
    if names is not None:
        yield "upcast", wrong_upcast(facts, fields)
    if "complete" in facts:
        yield "complete", _wrong_complete(facts, fields, names)
    if "clock" in facts:
        yield "clock", _wrong_clock(facts, fields, names)
    if "horizon" in facts:
        yield "horizon", _wrong_horizon(facts, fields, names)
    if facts.get("dump") is not None and names is not None:
        yield "dump", _wrong_name("dump", facts["dump"], fields, names)
        field = _field(fields, facts["dump"])
        what, fix = f"dump names {facts['dump']!r}, which is personal", "use a field that is not encrypted"
        yield "dump", _unless(not (field and field.personal), what, fix)
    if "subject" in facts and names is not None:
        yield "subject", _wrong_name("subject", facts["subject"], fields, names)
        yield "subject", _wrong_subject(fields)
        yield "time", _personal_time(facts, fields)


def _checks_of_envelope(facts: Facts) -> Iterator[tuple[str, Faults]]:
    envelope, table, placeholder = facts.get("envelope"), facts.get("table", "t"), facts.get("placeholder", "p")
    if "envelope" not in facts:
        for fact in ("table", "placeholder"):
            yield fact, _unless(fact not in facts, f'"{fact}" needs an "envelope"', 'add "envelope": "debezium"')
        return
    is_known = envelope in [*ENVELOPES]
    yield "envelope", _unless(is_known, f"unknown envelope {envelope!r}", did_you_mean(str(envelope), ENVELOPES))
    is_name = isinstance(table, str) and bool(table.strip(". "))
    fix = 'write the table\'s name as its messages have it, such as "inventory.customers"'
    yield "table", _unless(is_name, f"invalid table: {table!r}", fix)
    is_text = isinstance(placeholder, str) and bool(placeholder)
    fix = "write the connector's unavailable.value.placeholder"
    yield "placeholder", _unless(is_text, f"invalid placeholder: {placeholder!r}", fix)
    fix = "a change message may lack columns: leave one of them out"
    yield "missing", _unless(facts.get("missing") != "refuse", '"missing" together with "envelope"', fix)
    fix = "change messages are JSON: leave one of them out"
    yield "csv", _unless("csv" not in facts, '"csv" together with "envelope"', fix)


def _unless(is_right: bool, what: str, fix: str) -> Faults:
    if not is_right:
        yield what, fix


def _is_whole(given: Any, least: int, most: int | None = None) -> bool:
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return is_number and least <= given and (most is None or given <= most)


def _field(fields: list[Field], name: Any) -> Field | None:
    return next((field for field in fields if field.name == name), None)


def _wrong_limit(limit: Any) -> Faults:
    if not isinstance(limit, dict):
        yield f"invalid max_refused: {limit!r}", 'write {"share": 0.1, "records": 20}'
        return
    for name in sorted(set(limit) - {"share", "records"}):
        yield f"unknown member {name!r} of max_refused", did_you_mean(name, ["share", "records"])
    share, records = limit.get("share", 0), limit.get("records", 0)
    if not isinstance(share, int | float | Decimal) or isinstance(share, bool) or not 0 <= share <= 1:
        yield f"invalid share of max_refused: {share!r}", "use a number from 0 to 1"
    if not _is_whole(records, 0):
        yield f"invalid records of max_refused: {records!r}", "use a whole number, 0 or more"


def _wrong_clock(facts: Facts, fields: list[Field], names: list[str] | None) -> Faults:
    clock, members = facts["clock"], ("sent", "received")
    if not isinstance(clock, dict) or set(clock) != {*members}:
        yield f"invalid clock: {clock!r}", 'write {"sent": "sent_at", "received": "received_at"}'
        return
    if facts.get("time") is None:
        yield "clock corrects the event time, and events have none", 'declare "time"'
    for name in [clock[member] for member in members] if names is not None else []:
        field = _field(fields, name)
        if field is None:
            yield f"clock names an unknown field {name!r}", did_you_mean(str(name), names or ())
        elif field.type != "timestamp":
            yield f"clock names {name!r} of type {field.type}", "use a field of type timestamp"
        elif not field.transport:
            yield f"clock names {name!r}, which a redelivery may not differ in", 'add "transport": true to the field'
        elif name in [*listed(facts["key"]), *listed(facts.get("id"))]:
            yield f"clock names {name!r}, which is of the identity", "use a field that says how the event came"


def _wrong_complete(facts: Facts, fields: list[Field], names: list[str] | None) -> Faults:
    complete, members = facts["complete"], ("producer", "number", "every")
    if not isinstance(complete, dict) or not complete.keys() & {*members}:
        yield f"invalid complete: {complete!r}", 'write {"producer": "device", "number": "seq"} or {"every": "1 day"}'
        return
    for name in sorted(set(complete) - {*members}):
        yield f"unknown member {name!r} of complete", did_you_mean(name, members)
    if "producer" in complete and "number" not in complete:
        yield "complete names a producer and no number", 'add "number": the field that its events are counted in'
    if "every" in complete and duration(complete["every"]) in {None, timedelta(0)}:
        yield f"invalid every of complete: {complete['every']!r}", DURATION
    if "every" in complete and facts.get("time") is None:
        yield "complete has every, and events have no time", 'declare "time"'
    for member in [each for each in ("producer", "number") if each in complete] if names is not None else []:
        name = complete[member]
        field = _field(fields, name)
        if field is None:
            yield f"complete names an unknown {member} {name!r}", did_you_mean(str(name), names or ())
        elif field.personal or field.nested:
            why = "personal" if field.personal else "nested"
            yield f"complete names {name!r}, which is {why}", "use another field"
        elif member == "number" and field.type not in {"int", "bigint"} and not field.type.endswith(",0)"):
            yield f"complete names {name!r} of type {field.type} as number", "use a whole number"


def _wrong_horizon(facts: Facts, fields: list[Field], names: list[str] | None) -> Faults:
    horizon, members = facts["horizon"], ("producer", "punctuation", "idle", "limit")
    if not isinstance(horizon, dict) or "producer" not in horizon:
        fix = 'write {"producer": "device"}, and "punctuation", "idle", "limit" if need be'
        yield f"invalid horizon: {horizon!r}", fix
        return
    for name in sorted(set(horizon) - {*members}):
        yield f"unknown member {name!r} of horizon", did_you_mean(name, members)
    if facts.get("time") is None:
        yield "horizon waits for event times, and events have none", 'declare "time"'
    if "idle" in horizon and duration(horizon["idle"]) in {None, timedelta(0)}:
        yield f"invalid idle of horizon: {horizon['idle']!r}", DURATION
    if not _is_whole(horizon.get("limit", 1), 1):
        yield f"invalid limit of horizon: {horizon['limit']!r}", "use a whole number, 1 or more"
    if "punctuation" in horizon:
        yield from _wrong_punctuation(horizon["punctuation"], names)
    if names is None:
        return
    name = horizon["producer"]
    field = _field(fields, name)
    if field is None:
        yield f"horizon names an unknown producer {name!r}", did_you_mean(str(name), names)
    elif field.personal:
        fix = "use another field: the log's commits name producers in clear"
        yield f"horizon names {name!r}, which is personal", fix
    elif field.type not in {"string", "int", "bigint"}:
        yield f"horizon names {name!r} of type {field.type} as producer", "use a text or a whole number"


def _wrong_broadcast(condition: Any, names: list[str] | None) -> Faults:
    if not isinstance(condition, str):
        yield f"invalid broadcast: {condition!r}", "write a SQL condition over the fields"
    else:
        yield from _wrong_functions("broadcast", condition, names, "derive it from the record")


def _wrong_punctuation(condition: Any, names: list[str] | None) -> Faults:
    if not isinstance(condition, str):
        yield f"invalid punctuation of horizon: {condition!r}", "write a SQL condition over the fields"
    else:
        yield from _wrong_expression("punctuation", condition, names, "derive it from the record")


def _wrong_time(time: Any, fields: list[Field], names: list[str]) -> Faults:
    if not isinstance(time, str):
        yield f"invalid time: {time!r}", "write a field name or a SQL expression over the fields"
    elif re.fullmatch(r"\w+", time):
        field = _field(fields, time)
        if field is None:
            yield f"time names {time!r}, which is not a field", did_you_mean(time, names)
        elif field.type not in {"timestamp", "date"}:
            yield f"time field {time!r} is of type {field.type}", "use a timestamp or date, or an expression"
    else:
        yield from _wrong_expression("time expression", time, names, "derive it from the event")


def _wrong_expression(name: str, sql: str, names: list[str] | None, fix: str) -> Faults:
    if names is not None and not set(re.findall(r"\w+", sql)) & set(names):
        yield f"{name} {sql!r} uses no field", f"known: {', '.join(names)}"
    yield from _wrong_functions(name, sql, names, fix)


def _wrong_functions(name: str, sql: str, names: list[str] | None, fix: str) -> Faults:
    """Reject values that differ between runs, and maps of a record's values: after a repeated key, Spark fails for the
    next record too.
    """
    if function := nondeterministic_function(sql, names or ()):
        yield f"{name} {sql!r} is not deterministic: {function}", fix
    if call := MAPS.search(CONSTANT_MAP.sub("", sql)):
        what = f"{name} {sql!r} makes a map of a record's values: {call[1]}"
        yield what, "use CASE, or a map of constants"


def _wrong_subject(fields: list[Field]) -> Faults:
    personal = [field for field in fields if field.personal]
    if not personal:
        yield "there is a subject, but no field is personal", 'add "personal": true to the fields about a person'
    for field in personal:
        if field.nested or field.type == "binary":
            fix = "only fields with single values can be personal"
            yield f"personal field {field.name!r} is of type {field.type}", fix


def _personal_time(facts: Facts, fields: list[Field]) -> Faults:
    words = re.findall(r"\w+", str(facts.get("time") or ""))
    for field in fields:
        if field.personal and field.name in words:
            yield f"event time uses {field.name!r}, which is personal", "event times are not encrypted in the log"


def _wrong_name(fact: str, given: Any, fields: list[Field], names: list[str]) -> Faults:
    if isinstance(given, str):
        yield from _wrong_names(fact, [given], fields, names)
    else:
        yield f"invalid {fact}: {given!r}", "write the name of a field"


def _wrong_names(fact: str, given: Any, fields: list[Field], names: list[str] | None) -> Faults:
    if not listed(given) or not all(isinstance(name, str) for name in given):
        fix = "write a list of field names" + (' or "content"' if fact == "id" else "")
        yield f"invalid {fact}: {given!r}", fix
        return
    for name in {name: None for name in given if given.count(name) > 1}:
        yield f"{fact} names {name!r} twice", "name it once"
    for name in given if names is not None else []:
        field = _field(fields, name)
        if field is None:
            fix = did_you_mean(str(name), names) if names else 'declare it in "fields"'
            yield f"{fact} names {name!r}, which is not a field", fix
        elif field.nested:
            yield f"{fact} field {name!r} is nested", "use a field that is not nested"


def wrong_paths(field: Field, facts: Any) -> Faults:
    envelope = facts.get("envelope") if isinstance(facts, dict) else None
    if field.is_fact:
        yield from _wrong_fact(field)
    if envelope is None and field.encoding:
        yield f"field {field.name!r} has 'encoding', but records have no envelope", 'add "envelope" to "lake"'
    if envelope is not None and not field.form.plain:
        yield f"field {field.name!r} says how it is written{field.form.words}", 'with an envelope, use "encoding"'
    roots = ENVELOPES.get(envelope, frozenset()) if isinstance(envelope, str) else frozenset()
    if roots and field.path and field.path[0] not in roots:
        what = f"field {field.name!r} comes from {field.path[0]!r}, which the envelope does not have"
        yield what, did_you_mean(field.path[0], roots)
    if field.path[:1] == UNCHANGED and (field.path != UNCHANGED or field.type != "array<string>"):
        fix = 'write "from": "unchanged" for an array of strings: the names of columns'
        yield f"field {field.name!r} of type {field.type} comes from {'.'.join(field.path)!r}", fix


def _wrong_fact(field: Field) -> Faults:
    path, what = ".".join(field.path), "a file" if field.of_file else field.path[0]
    if field.of_file and path not in FILE_FACTS:
        fix = f"use {' or '.join(FILE_FACTS)}"
        yield f"field {field.name!r} comes from {path!r}, which files do not have", fix
    if field.nested:
        yield f"field {field.name!r} of type {field.type} comes from {what}", "use a type of single values"
    if field.path == (FILE, "time") and not field.form.plain:
        yield f"field {field.name!r} has a format, and is the time of a file", "leave it out: it is known"


def unknown_facts(fields: Iterable[Field], where: str) -> Iterator[tuple[Field, str, str]]:
    """Yield (field, fault, fix) of facts that no installed kind of source has.

    Raises DeclarationError if the kind of a fact, such as kafka for "kafka.key", cannot be imported.
    """
    for field in fields:
        if field.is_fact and not field.of_file:
            path, names = ".".join(field.path), list[str]()
            for name in _source_facts(field.path[0], where):
                names.append(name)
                if path == name or (name.endswith(PART) and path.startswith(name.removesuffix(PART) + ".")):
                    break
            else:
                own = [name for name in names if name.startswith(f"{field.path[0]}.")]
                every = f'add "envelope" to "lake", or use one of {", ".join(sorted({*names, *FILE_FACTS}))}'
                what = f"field {field.name!r} comes from {path!r}, which no installed source has"
                yield field, what, did_you_mean(path, own) if own else every


def _source_facts(first: str, where: str) -> Iterator[str]:
    for kind in sorted(connectors("lake.sources"), key=lambda kind: (kind != first, kind)):
        try:
            facts = connector("lake.sources", kind, where).facts
        except DeclarationError:
            if kind == first:
                raise
            continue
        yield from (fact.name for fact in facts)
