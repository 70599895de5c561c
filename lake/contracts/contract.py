"""Contract of a stream, `schemas/<stream>.avsc`: an Avro record schema with the stream's facts in its attribute `lake`.

Avro allows any attribute, so one without effect is a fault only if its name resembles a known one. Every attribute is
specified in `infra/reference/words.toml`, allowed changes in `evolution.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal

import avro.schema

from lake.config import Settings
from lake.contracts.avro_text import ContractLines, parse_schema
from lake.contracts.csv_options import DEFAULT_CSV, CsvOptions
from lake.contracts.declared_text import declared_text, files_in, parse_json
from lake.contracts.fields import ATTRIBUTES, AVRO, NAME, NAMED, Field, read_field, wrong_default
from lake.contracts.options import FACTS, unknown_facts, wrong_facts, wrong_paths
from lake.contracts.upcast import UpcastStep, listed, steps_of, words, wrong_expressions
from lake.errors import DeclarationError, did_you_mean
from lake.text import duration

RECORD: Final = {"type", "name", "namespace", "doc", "aliases", "fields", "lake"}
TYPE: Final = {*RECORD - {"lake"}, "logicalType", "precision", "scale", "items", "values", "symbols", "size", "default"}
EVENT_FIELD: Final = ATTRIBUTES - {"aliases"}
"""Known attributes of a record, of a type, and those that only a field of the event has."""
LEAST_SIMILARITY: Final = 0.75


def ineffective_attributes(text: str, *, file: str) -> list[DeclarationError]:
    document, lines = parse_json(text, where=file), ContractLines(text)
    faults = _errors(file, ((lines.of_attribute(name), what, fix) for name, what, fix in _record_faults(document)))
    fields = document.get("fields")
    for field in fields if isinstance(fields, list) else []:
        if isinstance(field, dict):
            name = str(field.get("name"))
            line = lines.of_field(name)
            faults += _errors(file, ((line, what, fix) for what, fix in _type_faults(field.get("type"), name)))
    return faults


def _errors(file: str, faults: Iterable[tuple[int, str, str]]) -> list[DeclarationError]:
    return [DeclarationError(what, where=f"{file}:{line}", fix=fix) for line, what, fix in faults]


def _record_faults(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(set(document) - RECORD):
        if name in FACTS:
            yield name, f'{name!r} has no effect next to "lake"', 'move it into "lake": {…}'
        elif near := most_similar(name, RECORD):
            yield name, f"unknown attribute {name!r} of the record", f"did you mean {near!r}?"


def _type_faults(schema: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _type_faults(branch, field)
    if not isinstance(schema, dict):
        return
    for name in sorted(set(schema) - TYPE):
        if name in EVENT_FIELD:
            yield (
                f"{name!r} has no effect in the type of field {field!r}",
                f'move it out, beside the "type" of {field!r}',
            )
        elif near := most_similar(name, TYPE):
            yield f"unknown attribute {name!r} in the type of field {field!r}", f"did you mean {near!r}?"
    if schema.get("type") == "enum" and (schema.get("symbols") == [] or isinstance(schema.get("symbols"), str)):
        yield f"field {field!r} has an enum without a list of symbols", "list its symbols"
    if schema.get("type") == "record" and schema.get("fields") == []:
        yield f"field {field!r} has a record without fields", 'list its fields, or use {"type": "map", "values": …}'
    for part in ("type", "items", "values"):
        yield from _type_faults(schema.get(part), field)
    parts = schema.get("fields")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict):
            yield from _part_faults(part, field)


def _part_faults(part: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    about = f"{part.get('name')!r}, a part of field {field!r}"
    for name in sorted(set(part) - AVRO - {"unit"}):
        if name in EVENT_FIELD:
            yield f"{name!r} has no effect on {about}", "only fields of the event have it: make the part one of them"
        elif near := most_similar(name, AVRO | {"unit"}):
            yield f"unknown attribute {name!r} of {about}", f"did you mean {near!r}?"
    yield from _type_faults(part.get("type"), field)


def most_similar(name: str, names: Collection[str]) -> str:
    by_case = {each.lower(): each for each in sorted(names)}
    close = get_close_matches(name.lower(), by_case, n=1, cutoff=LEAST_SIMILARITY)
    return by_case[close[0]] if close else ""


Unknown = Literal["keep", "report", "warn", "refuse"]
Missing = Literal["report", "refuse"]
AS_DECLARED: Final = ("time", "buckets", "broadcast", "dump", "subject", "envelope", "table", "unknown", "missing")


@dataclass(frozen=True)
class MaxRefused:
    share: float = 0.1
    records: int = 20

    def exceeded(self, refused: int, read: int) -> bool:
        return refused > self.records and refused > self.share * read


@dataclass(frozen=True)
class Completeness:
    """A `number` increases by one with each event of a `producer` (None: of the stream); or each interval `every`,
    counted from 1970 in UTC, has an event.
    """

    producer: str | None = None
    number: str | None = None
    every: timedelta | None = None


@dataclass(frozen=True)
class Producers:
    """Producers that a log waits for: values of the field `producer`, at most `limit`.

    `punctuation` is an SQL condition for records up to which a producer has sent everything. A producer silent for
    `idle` is not waited for.
    """

    producer: str
    punctuation: str | None = None
    idle: timedelta | None = None
    limit: int = 10_000


@dataclass(frozen=True)
class Clock:
    sent: str
    received: str


@dataclass(frozen=True)
class Contract:
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
    max_refused: MaxRefused = MaxRefused()
    broadcast: str | None = None
    dump: str | None = None
    subject: str | None = None
    envelope: str | None = None
    table: str | None = None
    placeholder: str = "__debezium_unavailable_value"
    csv: CsvOptions = DEFAULT_CSV
    complete: Completeness = Completeness()
    clock: Clock | None = None
    horizon: Producers | None = None
    unknown: Unknown = "report"
    missing: Missing = "report"
    upcast: tuple[UpcastStep, ...] = ()
    text: str = ""

    @property
    def personal(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields if field.personal)

    @property
    def sealed(self) -> tuple[str, ...]:
        """Fields that the log encrypts: the personal ones, if a subject is declared."""
        return self.personal if self.subject else ()

    @property
    def where(self) -> str:
        return f"{self.file}:1"

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = parse_json(self.text, where=self.file)
        return document

    def field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        names = [field.name for field in self.fields]
        raise DeclarationError(f"{self.name} has no field {name!r}", where=self.where, fix=did_you_mean(name, names))

    @property
    def unchangeable(self) -> dict[str, Any]:
        """Facts that place events in the log, so that they never change once it exists."""
        return {
            "key": self.key,
            "id": self.id or self.identity,
            "time": self.time,
            "clock": (self.clock.sent, self.clock.received) if self.clock else None,
            "buckets": self.buckets,
            "broadcast": self.broadcast,
            "dump": self.dump,
            "subject": self.subject,
        }


def load_contracts(settings: Settings) -> dict[str, Contract]:
    """Raises one DeclarationError with all faults."""
    contracts, faults = sound_contracts(settings)
    DeclarationError.raise_any(faults.values())
    return contracts


def load_contract(settings: Settings, stream: str) -> Contract:
    contracts, faults = sound_contracts(settings)
    if stream in faults:
        raise faults[stream]
    return known_stream(contracts, stream)


def sound_contracts(settings: Settings) -> tuple[dict[str, Contract], dict[str, DeclarationError]]:
    contracts: dict[str, Contract] = {}
    faults: dict[str, DeclarationError] = {}
    for path in files_in(settings.path("schemas"), ".avsc"):
        file = str(path.relative_to(settings.path(".")))
        try:
            text = declared_text(path, "the contract", where=file, fix="write it as UTF-8 text")
            contract = _read_and_check(text, file=file)
            if contract.name != path.stem:
                raise DeclarationError(
                    f"the record is named {contract.name!r}",
                    where=f"{file}:1",
                    fix=f'name it "{path.stem}", like its file',
                )
            _check_subject(contract)
            contracts[contract.name] = contract
        except DeclarationError as fault:
            faults[path.stem] = fault
    return contracts, faults


def streams_of(settings: Settings) -> list[str]:
    """Return streams with a contract, valid or not."""
    return sorted(path.stem for path in files_in(settings.path("schemas"), ".avsc"))


def known_stream(contracts: Mapping[str, Contract], stream: str) -> Contract:
    if stream not in contracts:
        raise DeclarationError(
            f"no stream {stream!r}",
            where="schemas/",
            fix=did_you_mean(stream, contracts, otherwise=f"add schemas/{stream}.avsc"),
        )
    return contracts[stream]


def read_contract(text: str, *, file: str) -> Contract:
    """Parse a contract, also one that a log stores. Raises DeclarationError with all faults."""
    record = parse_schema(text, file=file)
    lines = ContractLines(text)
    fields, faults = _read_fields(record, lines, file)
    facts: Any = record.other_props.get("lake", {})
    names = [field.name for field in fields]
    wrong = wrong_facts(facts, fields, names if not faults else None)
    faults += _errors(file, ((lines.of_fact(fact), what, fix) for fact, what, fix in wrong))
    faults += _errors(file, ((field.line, *fault) for field in fields for fault in wrong_paths(field, facts)))
    DeclarationError.raise_any(faults)
    identity, complete, horizon = facts.get("id"), facts.get("complete", {}), facts.get("horizon")
    ahead = duration(facts["max_ahead"]) if "max_ahead" in facts else None
    return Contract(
        name=record.name,
        doc=str(record.doc or ""),
        file=file,
        fields=tuple(_with_transport(field, facts, record) for field in fields),
        key=tuple(facts["key"]),
        id=tuple(listed(identity)),
        identity="position" if identity is None else "content" if identity == "content" else "id",
        max_ahead=Contract.max_ahead if ahead is None else ahead,
        max_refused=MaxRefused(**facts.get("max_refused", {})),
        placeholder=facts.get("placeholder", Contract.placeholder),
        csv=CsvOptions.of(facts.get("csv", {})),
        complete=Completeness(**complete | {"every": duration(complete.get("every"))}),
        clock=Clock(**facts["clock"]) if "clock" in facts else None,
        horizon=Producers(**horizon | {"idle": duration(horizon.get("idle"))}) if horizon else None,
        upcast=steps_of(facts.get("upcast", {})),
        text=text,
        **{fact: facts[fact] for fact in AS_DECLARED if fact in facts},
    )


def _read_fields(
    record: avro.schema.RecordSchema, lines: ContractLines, file: str
) -> tuple[list[Field], list[DeclarationError]]:
    fields, faults = list[Field](), list[DeclarationError]()
    facts: Any = record.other_props.get("lake")
    has_envelope = isinstance(facts, dict) and facts.get("envelope") is not None
    for field in record.fields:
        line = lines.of_field(field.name)
        try:
            fields.append(_check_names(read_field(field, line=line, has_envelope=has_envelope), fields))
        except DeclarationError as fault:
            faults.append(DeclarationError(fault.what, where=f"{file}:{line}", fix=fault.fix))
    return fields, faults


def _with_transport(field: Field, facts: Mapping[str, Any], record: avro.schema.RecordSchema) -> Field:
    """Set `transport` of a fact without the attribute, unless it identifies or places events."""
    if not field.is_fact or any("transport" in of.other_props for of in record.fields if of.name == field.name):
        return field
    placing = {*facts["key"], *listed(facts.get("id")), *words(facts.get("time")), facts.get("dump")}
    return replace(field, transport=field.name not in placing)


def _read_and_check(text: str, *, file: str) -> Contract:
    try:
        contract = read_contract(text, file=file)
    except DeclarationError as fault:
        more: list[DeclarationError] = []
        with suppress(DeclarationError, RecursionError, AttributeError):  # not JSON, or no record: `fault` reports it
            more = ineffective_attributes(text, file=file)
        raise DeclarationError.all([fault, *more]) from None
    fields, line = contract.fields, ContractLines(text).of_fact("upcast")
    faults = ineffective_attributes(text, file=file)
    faults += _errors(file, ((field.line, what, fix) for field, what, fix in unknown_facts(fields, file)))
    faults += _errors(file, ((field.line, *fault) for field in fields for fault in wrong_default(field)))
    faults += _errors(file, ((line, *fault) for fault in wrong_expressions(contract.upcast, fields)))
    DeclarationError.raise_any(faults)
    return contract


def _check_names(field: Field, before: list[Field]) -> Field:
    if not NAME.fullmatch(field.name):
        fix = f"{NAMED}; the name that records use may be an alias"
        raise DeclarationError(f"field {field.name!r} has an invalid name", fix=fix)
    if field.name.startswith("_"):
        raise DeclarationError(
            f"field {field.name!r} begins with '_'", fix="such names are reserved for the log; rename it"
        )
    named = {name.lower(): "two fields" for other in before for name in other.names}
    for name in field.names:
        if what := named.get(name.lower()):
            raise DeclarationError(f"{name!r} names {what}", fix="names differ by more than case, aliases included")
        named[name.lower()] = f"the field {field.name!r} twice"
    return field


def _check_subject(contract: Contract) -> None:
    if contract.personal and not contract.subject:
        raise DeclarationError(
            f"{contract.name} has personal fields ({', '.join(contract.personal)}) but no subject",
            where=f"{contract.file}:{contract.field(contract.personal[0]).line}",
            fix='add "subject": "<the field that names the person>" to "lake"; without it they would not be encrypted',
        )
