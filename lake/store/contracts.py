"""Contracts: `schemas/<stream>.avsc` says what an event of a stream is.

A contract is an Avro record schema named after its file. Fields have docs, defaults, `aliases` (former names) and
the logical types decimal, date, timestamp-micros/-millis (UTC), local-timestamp-…, uuid. A field may add

    "unit": "minutes"            what its number counts
    "minimum": 0, "maximum": 9   inclusive bounds; a value outside goes to quarantine
    "personal": true             data about a person: sealed in the log under a key of that person's; see `sealing.py`
    "transport": true            says how an event came, not what it is: a re-delivery may differ in it

and the record a `lake` object with the project's facts:

    "key":      ["carrier"]      the events of one key are totally ordered; decides the bucket
    "id":       ["carrier", …]   with key and event time, what makes an event that event; "content" = all its fields;
                                 absent = its position in the source
    "time":     "departed_at"    event time: a timestamp or date field, or a SQL expression over fields; may be absent
    "buckets":  8                number of partitions of the log
    "max_ahead": "1 day"         an event time further ahead of its arrival goes to quarantine
    "subject":  "customer"       the field that says whose the personal fields are
    "broadcast": "op = 'TRUNCATE'"   SQL condition for events that have no key and touch all keys
    "envelope": "debezium"       records are change messages of a database's table; see `envelope.py` for this, and
    "table":    "shop.orders"    for the fields' attributes `from` and `encoding`

Key, id, event time, buckets, subject and broadcast never change once a log has been written; see `evolution.py` for
what may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from lake.config import Settings
from lake.errors import DeclarationError, did_you_mean
from lake.store.avrotext import Lines, parse_schema
from lake.store.fields import Field, read_field

FACTS: Final = {"key", "id", "time", "buckets", "max_ahead", "broadcast", "envelope", "table", "subject"}
ENVELOPES: Final[Mapping[str, frozenset[str]]] = {
    "debezium": frozenset({"op", "before", "after", "source", "transaction", "ts_ms", "ts_us", "ts_ns"}),
}
CLOCK: Final = re.compile(
    r"\b(now|curdate|current_\w+|localtimestamp|rand\w*|uuid|unix_timestamp)\b(?=\W|$)", re.IGNORECASE
)
UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


@dataclass(frozen=True)
class Contract:
    """What an event of one stream is. `identity` says whether `id`, the content or the position identifies it."""

    name: str
    doc: str
    file: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    id: tuple[str, ...] = ()
    identity: Literal["id", "content", "position"] = "position"
    time: str | None = None
    buckets: int = 8
    max_ahead: timedelta = timedelta(days=1)
    broadcast: str | None = None
    subject: str | None = None
    envelope: str | None = None
    table: str | None = None
    text: str = ""

    @property
    def personal(self) -> tuple[str, ...]:
        """The names of the fields that hold data about a person."""
        return tuple(field.name for field in self.fields if field.personal)

    @property
    def sealed(self) -> tuple[str, ...]:
        """The names of the fields that the log holds sealed: those that are personal, where somebody is the subject."""
        return self.personal if self.subject else ()

    @property
    def where(self) -> str:
        return f"{self.file}:1"

    def field(self, name: str) -> Field:
        """The field called `name`; DeclarationError where there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        known = [field.name for field in self.fields]
        raise DeclarationError(f"{self.name} has no field {name!r}", where=self.where, fix=did_you_mean(name, known))

    @property
    def unchangeable(self) -> dict[str, Any]:
        """The facts that must stay what they were when the log was first written."""
        return {
            "key": self.key,
            "id": self.id or self.identity,
            "time": self.time,
            "buckets": self.buckets,
            "broadcast": self.broadcast,
            "subject": self.subject,
        }


def load_contracts(settings: Settings) -> dict[str, Contract]:
    """Every contract of the project by stream name. Raises one DeclarationError that tells all faults."""
    contracts, faults = sound_contracts(settings)
    if faults:
        raise DeclarationError.all(faults.values())
    return contracts


def load_contract(settings: Settings, stream: str) -> Contract:
    """The contract of `stream`, whatever is wrong with others. Raises DeclarationError for a faulty or unknown one."""
    contracts, faults = sound_contracts(settings)
    if stream in faults:
        raise faults[stream]
    return known_stream(contracts, stream)


def sound_contracts(settings: Settings) -> tuple[dict[str, Contract], dict[str, DeclarationError]]:
    """The contracts of the project by stream name, and what is wrong with those that are left out."""
    contracts: dict[str, Contract] = {}
    faults: dict[str, DeclarationError] = {}
    for path in sorted(settings.path("schemas").glob("*.avsc")):
        file = str(path.relative_to(settings.path(".")))
        try:
            text = path.read_text("utf-8")
            contract = read_contract(text, file=file)
            if contract.name != path.stem:
                raise DeclarationError(
                    f"the record is called {contract.name!r}",
                    where=f"{file}:1",
                    fix=f'call it "{path.stem}" as its file',
                )
            _must_say_whose(contract)
            contracts[contract.name] = contract
        except DeclarationError as fault:
            faults[path.stem] = fault
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror if isinstance(error, OSError) else f"not UTF-8 at byte {error.start}"
            fix = "write it as UTF-8 text"
            faults[path.stem] = DeclarationError(f"a contract cannot be read: {what}", where=file, fix=fix)
    return contracts, faults


def streams_of(settings: Settings) -> list[str]:
    """The streams that the project has contracts of, sound or not."""
    return sorted(path.stem for path in settings.path("schemas").glob("*.avsc"))


def known_stream(contracts: Mapping[str, Contract], stream: str) -> Contract:
    """The contract of `stream`; DeclarationError with a hint where there is none."""
    if stream not in contracts:
        raise DeclarationError(
            f"no stream {stream!r}",
            where="schemas/",
            fix=did_you_mean(stream, contracts) or "add schemas/<stream>.avsc",
        )
    return contracts[stream]


def read_contract(text: str, *, file: str) -> Contract:
    """The contract that the Avro schema `text` declares. Raises DeclarationError with all its faults."""
    record = parse_schema(text, file=file)
    lines = Lines(text)
    faults: list[DeclarationError] = []
    fields: list[Field] = []
    for field in record.fields:
        line = lines.of_field(field.name)
        try:
            fields.append(_checked(read_field(field, line=line), fields))
        except DeclarationError as fault:
            faults.append(DeclarationError(fault.what, where=f"{file}:{line}", fix=fault.fix))
    facts: Any = record.other_props.get("lake", {})
    names = [field.name for field in fields]
    faults += [
        DeclarationError(what, where=f"{file}:{lines.of_fact(fact)}", fix=fix)
        for fact, what, fix in _wrong_facts(facts, fields, names if not faults else None)
    ]
    faults += [
        DeclarationError(what, where=f"{file}:{field.line}", fix=fix)
        for field in fields
        for what, fix in _wrong_paths(field, facts)
    ]
    if faults:
        raise DeclarationError.all(faults)
    identity = facts.get("id")
    return Contract(
        name=record.name,
        doc=record.doc or "",
        file=file,
        fields=tuple(fields),
        key=tuple(facts["key"]),
        id=tuple(identity) if isinstance(identity, list) else (),
        identity="position" if identity is None else "content" if identity == "content" else "id",
        time=facts.get("time"),
        buckets=facts.get("buckets", 8),
        max_ahead=duration(facts.get("max_ahead", "1 day")) or timedelta(days=1),
        broadcast=facts.get("broadcast"),
        subject=facts.get("subject"),
        envelope=facts.get("envelope"),
        table=facts.get("table"),
        text=text,
    )


def duration(text: Any) -> timedelta | None:
    """`1 day`, `90 minutes` … as a timedelta; None where it is not one."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", text) if isinstance(text, str) else None
    if found is None or found[2] not in UNITS:
        return None
    return timedelta(seconds=int(found[1]) * UNITS[found[2]])


def _checked(field: Field, before: list[Field]) -> Field:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field.name):
        raise DeclarationError(
            f"field {field.name!r} is called by no name", fix="letters, digits and _; records' own word may be an alias"
        )
    if field.name.startswith("_"):
        raise DeclarationError(f"field {field.name!r} begins with '_'", fix="such names belong to the log; rename it")
    taken = {name.lower() for other in before for name in other.names}
    twice = next((name for name in field.names if name.lower() in taken), None)
    if twice:
        raise DeclarationError(f"{twice!r} names two fields", fix="names differ by more than case, aliases included")
    return field


def _wrong_facts(facts: Any, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    """Each fault of the `lake` object as (fact, what, fix); names are checked only where all fields are known."""
    if not isinstance(facts, dict) or "key" not in facts:
        yield "lake", 'no key declared: "lake": {"key": [...]} is missing', "name the fields whose events are ordered"
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
        yield "buckets", f"buckets is {buckets!r}", "a whole number from 1 to 4096"
    if "max_ahead" in facts and duration(facts["max_ahead"]) is None:
        yield "max_ahead", f"max_ahead is {facts['max_ahead']!r}", 'a duration such as "1 day" or "90 minutes"'
    if not isinstance(facts.get("broadcast", ""), str):
        yield "broadcast", f"broadcast is {facts['broadcast']!r}", "a SQL condition over the fields"
    yield from _wrong_envelope(facts)
    if "subject" in facts and names is not None:
        yield from _wrong_subject(facts, fields, names)


def _wrong_subject(facts: dict[str, Any], fields: list[Field], names: list[str]) -> Iterator[tuple[str, str, str]]:
    personal = {field.name: field for field in fields if field.personal}
    yield from _wrong_names("subject", [facts["subject"]], fields, names)
    if not personal:
        yield "subject", "a subject, and no field is personal", 'say "personal": true of the fields about a person'
    for name, field in personal.items():
        if field.nested or field.type == "binary":
            yield "subject", f"personal field {name!r} is of type {field.type}", "use fields of single values"
        if name in re.findall(r"\w+", str(facts.get("time") or "")):
            yield "time", f"event time uses {name!r}, which is personal", "event times stay in the log in clear"


def _must_say_whose(contract: Contract) -> None:
    if contract.personal and not contract.subject:
        raise DeclarationError(
            f"{contract.name} has personal fields ({', '.join(contract.personal)}) and no subject",
            where=f"{contract.file}:{contract.field(contract.personal[0]).line}",
            fix='add "subject": "<the field that says whose they are>" to "lake"; without, they would not be sealed',
        )


def _wrong_envelope(facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    envelope, table = facts.get("envelope"), facts.get("table")
    if "envelope" in facts and envelope not in ENVELOPES:
        yield "envelope", f"envelope is {envelope!r}", did_you_mean(str(envelope), ENVELOPES)
    if "table" in facts and "envelope" not in facts:
        yield "table", "a table without an envelope", 'add "envelope": "debezium"'
    elif "table" in facts and (not isinstance(table, str) or not table.strip(". ")):
        yield "table", f"table is {table!r}", 'the table\'s name as its messages have it, such as "inventory.customers"'


def _wrong_paths(field: Field, facts: Any) -> Iterator[tuple[str, str]]:
    """Each fault of a field's place in the envelope as (what, fix)."""
    envelope = facts.get("envelope") if isinstance(facts, dict) else None
    if envelope is None and (field.path or field.encoding):
        attribute = "from" if field.path else "encoding"
        yield f"field {field.name!r} says {attribute!r}, and records have no envelope", 'add "envelope" to "lake"'
    roots = ENVELOPES.get(envelope, frozenset()) if isinstance(envelope, str) else frozenset()
    if roots and field.path and field.path[0] not in roots:
        yield f"field {field.name!r} comes from {field.path[0]!r}", did_you_mean(field.path[0], roots)


def _wrong_names(fact: str, found: Any, fields: list[Field], names: list[str] | None) -> Iterator[tuple[str, str, str]]:
    if fact == "id" and (found is None or found == "content"):
        return
    if not isinstance(found, list) or not found:
        yield fact, f"{fact} is {found!r}", "a list of field names" + (' or "content"' if fact == "id" else "")
        return
    for name in {name: None for name in found if found.count(name) > 1}:
        yield fact, f"{fact} names {name!r} twice", "name it once"
    if names is None:
        return
    for name in found:
        if name not in names:
            fix = did_you_mean(str(name), names) if names else 'declare it in "fields"'
            yield fact, f"{fact} names {name!r}, which is no field", fix
        elif next(field for field in fields if field.name == name).nested:
            yield fact, f"{fact} field {name!r} is nested", "use a field with a single value"


def _wrong_time(time: Any, fields: list[Field], names: list[str]) -> Iterator[tuple[str, str, str]]:
    if not isinstance(time, str):
        yield "time", f"time is {time!r}", "a field name or a SQL expression over the fields"
    elif re.fullmatch(r"\w+", time):
        field = next((field for field in fields if field.name == time), None)
        if field is None:
            yield "time", f"time names {time!r}, which is no field", did_you_mean(time, names)
        elif field.type not in {"timestamp", "date"}:
            yield "time", f"time field {time!r} is of type {field.type}", "use a timestamp or date, or an expression"
    elif clock := CLOCK.search(time):
        yield "time", f"time expression {time!r} is not the same each time: {clock[0]}", "derive it from the event"
    elif not set(re.findall(r"\w+", time)) & set(names):
        yield "time", f"time expression {time!r} uses no field", f"known: {', '.join(names)}"
