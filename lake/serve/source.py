"""Source of events posted to `lake serve http`. Options: docs/how-to/http.md.

Facts of a record: "http.id" (see lake.serve.bodies), "http.received" (the server's clock, UTC with microseconds), and
"cloudevents.<attribute>" of a CloudEvent. Progress is {"spool": id of the folder, "upto": number of the last group
read}.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from lake.config import Settings
from lake.contracts import declared_files
from lake.contracts.contract import Contract, streams_of
from lake.contracts.declared_files import ENVIRONMENT
from lake.errors import DeclarationError, did_you_mean
from lake.serve.backpressure import IntakeLimits
from lake.serve.intake_folder import Group, GroupWriter, IntakeFolder
from lake.sources.declared import sound_sources
from lake.sources.source import Gap, Lag, Progress, SourceDeclaration, SourceRecord, Spool, check_members
from lake.store.log import source_position

BATCH_BYTES: Final = 64 << 20
KIND: Final = "http"
RECEIVED: Final = ("http", "received")
LIMITS: Final = frozenset(limit.name for limit in fields(IntakeLimits))


@dataclass(frozen=True)
class DeclaredIntake:
    """Declared HTTP source. `tokens` and `secrets` are `env:NAME` by stream.

    `streams` have a contract, valid or not: the source's position is in the logs of all of them.
    `decide`: the table whose Fold validates events, by stream. `check`: reject records that violate a contract.
    """

    name: str
    streams: tuple[str, ...]
    folder: IntakeFolder
    limits: IntakeLimits
    tokens: Mapping[str, str]
    secrets: Mapping[str, str]
    where: str
    decide: Mapping[str, str]
    check: bool


@dataclass
class HttpSource:
    """Posted events as a Source. It reads what exists at its first read; later events wait for the next opening."""

    declared: DeclaredIntake
    more: bool = False
    _end: int | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        return self.declared.streams

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        folder, upto = self.declared.folder, self._upto(after)
        if self._end is None:
            self._end = max((group.number for group in folder.groups()), default=0)
        groups = [group for group in self._next(upto) if group.number <= self._end]
        self.more = bool(groups) and groups[-1].number < self._end
        for group in groups:
            for ordinal, (stream, text, facts) in enumerate(folder.records(group)):
                if stream not in self.streams:
                    raise DeclarationError(
                        f"{self.declared.name} has events of {stream}, which it is not declared for",
                        where=self.declared.where,
                        fix=f"add {stream!r} to its streams, with its contract, until they are ingested",
                    )
                spool.put(stream, SourceRecord(text, place(group.number, ordinal), facts))
        return {"spool": folder.spool, "upto": groups[-1].number} if groups else None

    def acknowledge(self, upto: Progress) -> None:
        if upto["spool"] == self.declared.folder.spool:
            self.declared.folder.remove(int(upto["upto"]))

    def lag(self, after: Progress | None) -> Lag:
        waiting = self.declared.folder.waiting(_number(after))
        seconds = None if waiting.oldest is None else max(time.time() - waiting.oldest, 0.0)
        return Lag(waiting.events, seconds, waiting.size)

    def skip_gap(self, after: Progress | None) -> Progress:
        """Return the progress before the first existing group. A missing folder is recreated with later numbers.

        Raises Unavailable while a server that validates events runs.
        """
        folder, upto = self.declared.folder, _number(after)
        if self.declared.decide or not folder.spool:
            GroupWriter(folder, lambda: _number(after)).close()
        if after is not None and after["spool"] != folder.spool:
            upto = 0
        upto = max(upto, folder.taken)
        later = [group.number for group in folder.groups() if group.number > upto]
        return {"spool": folder.spool, "upto": later[0] - 1 if later else upto}

    def close(self) -> None:
        self._end = None

    def _upto(self, after: Progress | None) -> int:
        folder, upto = self.declared.folder, _number(after)
        if after is not None and after["spool"] != folder.spool:
            raise self._gap(
                f"the events that {self.declared.name} acknowledged after group {upto} are in a different folder:"
                f" {'this one was recreated' if folder.spool else 'there is none now'}"
            )
        if folder.taken > upto:
            raise self._missing(upto + 1, folder.taken)
        return upto

    def _next(self, upto: int) -> list[Group]:
        groups, size = list[Group](), 0
        for group in self.declared.folder.groups():
            if group.number <= upto:  # a crash between commit and removal
                continue
            if group.number != upto + 1:
                if not groups:
                    raise self._missing(upto + 1, group.number - 1)
                break
            size += group.size
            if groups and size > BATCH_BYTES:
                break
            groups.append(group)
            upto = group.number
        return groups

    def _missing(self, first: int, last: int) -> Gap:
        return self._gap(f"events that {self.declared.name} acknowledged are gone: groups {first} to {last}")

    def _gap(self, what: str) -> Gap:
        fix = f"find out what removed it; lake ingest {self.declared.name} --give-up goes on with what is there"
        return Gap(what, where=str(self.declared.folder.path), fix=fix)


def place(number: int, ordinal: int) -> str:
    """Return the place of a record: its group, and its ordinal there from 0."""
    return f"{number}:{ordinal}"


def read_declaration(declaration: SourceDeclaration) -> DeclaredIntake:
    options, known, where = declaration.options, streams_of(declaration.settings), declaration.where
    DeclarationError.raise_any(_faults(options, known), where)
    streams = tuple(options.get("streams", known))
    tokens, secrets = (_by_stream(options.get(key, {}), streams) for key in ("token", "secret"))
    return DeclaredIntake(
        declaration.name,
        streams,
        IntakeFolder.of(declaration.settings, declaration.name),
        IntakeLimits(**{name: options[name] for name in LIMITS if name in options}),
        tokens,
        secrets,
        where,
        dict(options.get("decide", {})),
        options.get("check", True),
    )


def _number(after: Progress | None) -> int:
    return int(after["upto"]) if after is not None else 0


def _faults(options: Mapping[str, Any], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    attributes = {"kind", "streams", "token", "secret", "decide", "check", *LIMITS}
    for key in options.keys() - attributes:
        yield f"unknown key {key!r}", did_you_mean(key, attributes)
    streams = options.get("streams", known)
    if not isinstance(streams, list) or not all(isinstance(stream, str) for stream in streams) or not streams:
        yield f"invalid streams: {streams!r}", 'write a list of names, such as ["orders"], or leave it out for all'
        streams = []
    for stream in streams:
        if stream not in known:
            yield f"no stream {stream!r}", did_you_mean(stream, known)
    for key in sorted(LIMITS.intersection(options)):
        least = 0 if key in {"rate", "free_bytes"} else 1
        if isinstance(options[key], bool) or not isinstance(options[key], int) or options[key] < least:
            yield f"invalid {key}: {options[key]!r}", f"use a whole number of at least {least}"
    for key in ("token", "secret"):
        by_stream = _by_stream(options.get(key, {}), streams)
        yield from _unknown_streams(key, by_stream, streams)
        if not all(str(value).startswith(ENVIRONMENT) for value in by_stream.values()):
            yield f"{key} must come from the environment", f'write {key} = "env:NAME", and set the environment variable'
    tables = options.get("decide", {})
    if isinstance(tables, Mapping) and all(isinstance(table, str) for table in tables.values()):
        yield from _unknown_streams("decide", tables, streams)
    else:
        yield f"invalid decide: {tables!r}", 'name the table of a Fold for each stream: decide.orders = "order_state"'
    if not isinstance(check := options.get("check", True), bool):
        yield f"invalid check: {check!r}", "use true or false"


def _unknown_streams(key: str, named: Iterable[str], streams: Collection[str]) -> Iterator[tuple[str, str]]:
    for stream in named:
        if stream not in streams:
            yield f"{key} of {stream!r}, which is not a stream of it", did_you_mean(stream, streams)


def _by_stream(value: Any, streams: Iterable[str]) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else dict.fromkeys(streams, value)


def find_declaration_if_any(
    settings: Settings, contracts: Mapping[str, Contract], name: str | None
) -> DeclaredIntake | None:
    """As `find_declaration`; None if `name` is None and the project has no HTTP source.

    Faults of sources of other kinds are logged.
    """
    sources, faults = sound_sources(settings, contracts)
    intake_faults = _intake_faults(settings, faults)
    for source in faults.keys() - intake_faults.keys():
        logging.getLogger("lake").warning("%s: %s", source, faults[source])
    if name is None and not intake_faults and not any(source.kind == KIND for source in sources.values()):
        return None
    return find_declaration(settings, contracts, name)


def _intake_faults(settings: Settings, faults: Mapping[str, DeclarationError]) -> dict[str, DeclarationError]:
    """Return the faults of declarations that are of kind http, or whose kind cannot be read."""
    texts = declared_files.sources(settings).texts
    others = {file.name for file in texts if file.options.get("kind", KIND) != KIND}
    return {name: fault for name, fault in faults.items() if name not in others}


def find_declaration(settings: Settings, contracts: Mapping[str, Contract], name: str | None) -> DeclaredIntake:
    """Return the HTTP source of that name, or the only one. Raises DeclarationError if there is none."""
    sources, faults = sound_sources(settings, contracts)
    folder = f"{settings.sources}/"
    if name in faults:
        raise faults[name]
    if name is None and (intake_faults := _intake_faults(settings, faults)):
        raise DeclarationError.all(intake_faults.values())
    if name is not None and name not in sources:
        raise DeclarationError(f"no source {name!r}", where=folder, fix=did_you_mean(name, sources))
    of_kind = [source for source in sources.values() if source.kind == KIND and name in {None, source.name}]
    if len(of_kind) != 1:
        what = f"{len(of_kind) or 'no'} sources are of kind {KIND}" if name is None else f"{name} is not of kind {KIND}"
        names = ", ".join(source.name for source in of_kind)
        fix = f"name one: {names}" if of_kind else f'write {folder}web.toml with the line: kind = "{KIND}"'
        raise DeclarationError(what, where=folder, fix=fix)
    source = of_kind[0].open()
    assert isinstance(source, HttpSource)
    return source.declared


def intake_writer(settings: Settings, source: str, *, patience: float = 0) -> GroupWriter:
    """Open the source's folder for writing. Raises Unavailable if it stays in use for `patience` seconds."""
    from lake.sources import spool

    def logged() -> int:
        progress = [source_position(settings, source, tuple(streams_of(settings))).progress]
        progress += [delivery.progress for delivery in spool.spooled_deliveries(settings, source)]
        positions = [position for position in progress if position is not None]
        for position in positions:
            check_members(position, ("upto",), source, f"{settings.sources}/")
        return max((int(position["upto"]) for position in positions), default=0)

    return GroupWriter(IntakeFolder.of(settings, source), logged, patience=patience)
