"""Rule that validates a stream's events: a Fold whose input order equals the order of validation.

An accepted event stays accepted if the Fold sees a key's events in the same order and with the same values. So a
declaration in `decide` is valid only if

- the stream has no other source, and no landing file outside its log;
- the table is a Fold of exactly this log, by the contract's key, in log order;
- its step is a Python function, which this process runs as Spark's workers do;
- its function only selects columns;
- every record is an event of one key, with the request's id in the contract's id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from lake.config import Settings
from lake.contracts import evolution, origins
from lake.contracts.contract import Contract
from lake.contracts.reasons import Reason
from lake.errors import DeclarationError, did_you_mean
from lake.ingest import landing
from lake.kinds.fold import Fold
from lake.kinds.reducer import REFUSED, FoldWork, Forms, PythonReducer, Refusal, arrow_type
from lake.lazy import pa
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.records.single_reader import EXTRA, RecordRejected, SingleReader
from lake.serve.source import RECEIVED, DeclaredIntake
from lake.sources.declared import sound_sources
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.warehouse import LAYERS

ID: Final = ("http", "id")
Key = tuple[Any, ...]
TIMES: Final = ("date", "timestamp")
FLOATS: Final = ("float", "double")
"""Types with equal values that compare as different."""


@dataclass(frozen=True)
class CommandRule:
    """Fold that validates a stream's events; `columns` are those that its function selects."""

    project: Project
    declaration: Declaration
    contract: Contract
    reader: SingleReader
    folding: FoldWork
    columns: tuple[str, ...]

    @property
    def stream(self) -> str:
        return self.contract.name

    def values(self, text: bytes, facts: Mapping[str, str], *, now: datetime) -> dict[str, Any]:
        values, contract = self.reader.values(text, facts), self.contract
        if contract.time is not None:
            at = values[contract.time]
            moment = at if isinstance(at, datetime) else datetime(at.year, at.month, at.day, tzinfo=UTC)
            if moment > now + contract.max_ahead:
                raise RecordRejected(Reason.AHEAD, f"{moment} is more than {contract.max_ahead} ahead of its arrival")
        return values

    def key(self, values: Mapping[str, Any]) -> Key:
        return tuple(values[name] for name in self.contract.key)

    def id(self, values: Mapping[str, Any]) -> Key:
        return tuple(_canonical(values[name]) for name in self.contract.id)

    @cached_property
    def compared(self) -> tuple[str, ...]:
        return compared_fields(self.contract)

    @cached_property
    def _forms(self) -> Forms:
        return self.folding.forms

    def next(self, before: Mapping[str, Any] | None, values: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        return self.folding.next(before, {name: values[name] for name in self.columns}, self._forms)


def compared_fields(contract: Contract) -> tuple[str, ...]:
    """Return the fields that are equal in a repeated event, and EXTRA."""
    repeated = [field.name for field in contract.fields if not (field.transport or field.path == RECEIVED)]
    return (*repeated, EXTRA)


def content(values: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return a digest of the values with these names, equal for equal values."""
    text = repr([_canonical(values.get(name)) for name in names])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _canonical(value: Any) -> Any:
    match value:
        case Decimal():
            return value.as_integer_ratio()
        case float():
            return value + 0.0  # turns -0.0 into 0.0
        case datetime() if value.tzinfo:
            return value.astimezone(UTC)
        case dict():
            return _canonical(tuple(value.items()))
        case list() | tuple():
            is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
            items = map(_canonical, value)
            return tuple(sorted(items) if is_map else items)
    return value


def rules(project: Project, source: DeclaredIntake, faulty: Collection[str] = ()) -> dict[str, CommandRule]:
    """Return the rules of streams that are not `faulty`. Raises DeclarationError with all faults of these rules."""
    decide = {stream: table for stream, table in source.decide.items() if stream not in faulty}
    DeclarationError.raise_any(
        fault for stream, table in decide.items() for fault in _faults(project, source, stream, table)
    )
    return {stream: _rule(project, stream, table) for stream, table in decide.items()}


def faulty_streams(
    settings: Settings, source: DeclaredIntake, faults: Mapping[str, DeclarationError], tables: Collection[str]
) -> dict[str, DeclarationError]:
    """Return the faults of streams whose contract, or whose rule's table, is faulty.

    `faults` are those of contracts, `tables` the sound ones.
    """
    faulty = {stream: faults[stream] for stream in source.streams if stream in faults}
    for stream, table in source.decide.items():
        files = [f"jobs/{layer}/{table}.py" for layer in LAYERS if settings.path(f"jobs/{layer}/{table}.py").exists()]
        if table not in tables and files:
            what = f"{table}, which decides on {stream}, is faulty"
            faulty.setdefault(stream, DeclarationError(what, where=files[0], fix="see its faults with lake plan"))
    return faulty


def _rule(project: Project, stream: str, table: str) -> CommandRule:
    declaration, contract = project.tables[table], project.contracts[stream]
    fold, columns = declaration.kind, _selected_columns(declaration, contract)
    assert isinstance(fold, Fold)
    assert isinstance(fold.reducer, PythonReducer)
    assert columns is not None
    fields = [*fold.reducer.fields.items(), (REFUSED, "bigint")]
    types = pa.schema([(name, arrow_type(kind)) for name, kind in fields])
    reducer = fold.reducer
    folding = FoldWork(fold.key, columns, reducer.start, reducer.step, types, types)
    single = SingleReader(contract, project.settings.record_bytes)
    return CommandRule(project, declaration, contract, single, folding, columns)


def undecidable(contract: Contract) -> Iterator[str]:
    for what, is_declared in (
        (f"its records are {contract.envelope} messages", contract.envelope),
        ("it has broadcasts", contract.broadcast),
        ("it corrects clocks", contract.clock),
        ("it declares `horizon`: events from producers beyond its limit are refused", contract.horizon),
        ("its records are rows of dumps", contract.dump),
        ("it declares `upcast`: events of older versions would be decided on as they were", contract.upcast),
        ("it has personal fields: forgetting a person would change what was decided", contract.personal),
    ):
        if is_declared:
            yield what
    types = {field.name: field.type for field in contract.fields}
    if contract.time is not None and types.get(contract.time) not in TIMES:
        yield f"its time, {contract.time}, is not a field of type timestamp or date"
    for field in contract.fields:
        if field.name in contract.key and (field.nested or field.type in FLOATS):
            yield f"field {field.name} of the key is of type {field.type}"
        elif field.is_fact and field.path[0] not in {"http", "cloudevents"}:
            yield f"field {field.name} is taken from {'.'.join(field.path)}, which nothing by HTTP has"


def _faults(project: Project, source: DeclaredIntake, stream: str, table: str) -> Iterator[DeclarationError]:
    contract, declaration = project.contracts[stream], project.tables.get(table)
    if declaration is None:
        yield DeclarationError(f"no table {table!r}", where=source.where, fix=did_you_mean(table, project.tables))
    else:
        yield from _faults_of_table(declaration, contract)
    for what in undecidable(contract):
        yield DeclarationError(
            f"{stream} cannot be decided: {what}", where=contract.where, fix="take it out of decide, or change that"
        )
    ids = [contract.field(name) for name in contract.id if contract.field(name).path == ID]
    if not ids or any(field.nullable or field.has_default for field in ids):
        yield DeclarationError(
            f"{stream} cannot be decided: its `id` includes no request id"
            f"{' that is always there' if ids else ''}, so retries cannot be recognised",
            where=contract.where,
            fix='add {"name": "request", "type": "string", "from": "http.id"} to its fields and "request" to its id',
        )
    yield from _other_inputs(project, source, stream)
    yield from _renamed_columns(project.settings, contract)


def _faults_of_table(declaration: Declaration, contract: Contract) -> Iterator[DeclarationError]:
    fold, decides = declaration.kind, f"it cannot decide on {contract.name}"
    if not isinstance(fold, Fold) or fold.rows != "state":
        yield declaration.fault(f"is not the state of a Fold: {decides}", fix="name the table of a Fold in decide")
        return
    if [source.name for source in declaration.inputs if source.is_log] != [contract.name]:
        yield declaration.fault(
            f"is not derived from log({contract.name!r}): {decides}", fix="name the Fold of this stream"
        )
        return
    if fold.sequence:
        yield declaration.fault(
            f"orders events by {', '.join(fold.sequence)}: an older one could come after one that was accepted",
            fix="leave out sequence=…: then it goes by the order of the log, which is that of the decisions",
        )
    if set(fold.key) != set(contract.key):
        yield declaration.fault(
            f"its key is {', '.join(fold.key)}, and that of {contract.name} {', '.join(contract.key)}",
            fix="use the log's key: only the events of one key of the log have a known order",
        )
    if not isinstance(fold.reducer, PythonReducer):
        yield declaration.fault(
            f"its step is SQL, which only Spark evaluates: {decides}",
            fix="write the step as a Python function (state, event) that returns the new state or Refusal(reason)",
        )
    else:
        for name, kind in fold.reducer.fields.items():
            try:
                arrow_type(kind)
            except ValueError as error:
                yield declaration.fault(f"{name}: {error}", fix="use int, decimal(9, 2), string, array<…> and the like")
    columns = _selected_columns(declaration, contract)
    if columns is None:
        yield declaration.fault(
            f"its function does more than select fields of {contract.name}: {decides}",
            fix="return events.select(…) of names, and have the step work out what it needs",
        )
    elif missing := [name for name in fold.key if name not in columns]:
        yield declaration.fault(f"the function returns no column {missing[0]!r} (key)", fix="add it to the select")


class _Selection:
    """Substitute for a DataFrame that only supports `select` of names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def select(self, *names: Any) -> _Selection:
        selected = names[0] if len(names) == 1 and isinstance(names[0], list | tuple) else names
        is_known = all(isinstance(name, str) and name in self._names for name in selected)
        if not is_known or len({*selected}) < len(selected):
            raise TypeError(selected)
        return _Selection(tuple(selected))


def _selected_columns(declaration: Declaration, contract: Contract) -> tuple[str, ...] | None:
    all_fields = _Selection(tuple(field.name for field in contract.fields))
    try:
        selection = declaration.function(all_fields)
    except Exception:  # it does more than select columns
        return None
    return selection._names if isinstance(selection, _Selection) and selection is not all_fields else None


def _other_inputs(project: Project, source: DeclaredIntake, stream: str) -> Iterator[DeclarationError]:
    settings = project.settings
    sources, _ = sound_sources(settings, project.contracts)
    for other in sources.values():
        if other.name != source.name and stream in other.streams:
            yield DeclarationError(
                f"{stream} is decided by {source.name}, and also a stream of {other.name}",
                where=other.where,
                fix="decided events come from one source alone: list the streams of the other one without it",
            )
    landed = landing.ingested_marks(Log(settings, stream))
    waiting = [file for file in landing.list_files(settings, stream) if file.mark not in landed]
    if waiting:
        yield DeclarationError(
            f"{len(waiting)} landing files of {stream}, which is decided, are not in its log",
            where=f"{settings.place(settings.landing)}/{stream}",
            fix=f"take decide out of {source.where}, run lake ingest {stream}, and put it back;"
            f" or move them away, and use lake append {stream} FILE --decide",
        )


def _renamed_columns(settings: Settings, contract: Contract) -> Iterator[DeclarationError]:
    versions = evolution.with_current(tuple(contract_versions.versions(settings, contract.name)), contract)
    places = origins.origins(versions)
    for field in contract.fields:
        if {origin.column for found in places[field.name] for origin in found} - {"", field.name}:
            yield DeclarationError(
                f"{contract.name} cannot be decided: its log has older events with {field.name} under another name"
                " or of another type",
                where=f"{contract.file}:{field.line}",
                fix="publish a new stream for what is decided",
            )
