"""The source of what is posted to `lake serve http`: kind = "http". All its keys but `kind` may be left out.

    kind = "http"
    streams = ["orders"]              those that may be posted to; default: all of the project
    token = "env:ORDERS_TOKEN"        bearer token; or a table of one a stream: token.orders = "env:…". Default: one
                                      that the server makes, in .lake/http/<source>.token
    secret = "env:ORDERS_SECRET"      of Standard Webhooks (`whsec_…`), or a table; a signature is as good as a token
    max_body = 16777216               bytes of a request's body, unpacked
    max_records = 10000               records of a request
    signed_body = 1048576             bytes of a body without a token: it is read before its signature is checked. Such
                                      requests have a fourth of max_requests and of max_memory
    max_requests = 256                requests at once
    max_memory = 67108864             bytes of bodies that are not on the disk yet
    rate = 0                          events a second and stream; 0: no limit
    backlog_files = 100000            files, and bytes, that no log has yet; over either, requests are put off
    backlog_bytes = 1073741824
    free_bytes = 1073741824           bytes that the disk must have left
    body_seconds = 30                 within which a body must have come
    check = false                     a record that breaks its contract is taken too, and goes to quarantine; default:
                                      it is refused (see lake.records.reader)
    [decide]
    orders = "order_state"            events of the stream are decided by this Fold before they are taken; they come
                                      by this source alone, by POST …?decide and lake append --decide (lake.decide)

Facts of its records: "http.id" (see lake.http.bodies), "http.received" (the server's clock when the request came, in
UTC with microseconds), and "cloudevents.<attribute>" where a record is a CloudEvent.
Progress is {"spool": id of the folder, "upto": number of the last group taken}.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, did_you_mean
from lake.sources.http_files import Folder, Group, Writer
from lake.sources.source import Gap, Lag, Progress, Record, Spool

KIND: Final = "http"
BATCH_BYTES: Final = 64 << 20
"""Of files that one range has, beside the first."""
FROM_ENVIRONMENT: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
GIVE_UP: Final = "find out who removed it; lake ingest {name} --give-up goes on with what is there"


@dataclass(frozen=True)
class Limits:
    """What one server takes; see above for the units."""

    max_body: int = 16 << 20
    signed_body: int = 1 << 20
    max_records: int = 10_000
    max_requests: int = 256
    max_memory: int = 64 << 20
    rate: int = 0
    backlog_files: int = 100_000
    backlog_bytes: int = 1 << 30
    free_bytes: int = 1 << 30
    body_seconds: int = 30


@dataclass(frozen=True)
class Declared:
    """A source of kind http as it is declared: `tokens` and `secrets` are names of environment variables by stream."""

    name: str
    streams: tuple[str, ...]
    folder: Folder
    limits: Limits = Limits()
    tokens: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    decide: Mapping[str, str] = field(default_factory=dict)
    check: bool = True
    """`decide`: the table of the Fold that decides, by stream. `check`: whether what breaks a contract is refused."""


@dataclass
class HttpSource:
    """Events by HTTP as a Source. What comes after its first read is left for the next who opens it."""

    declared: Declared
    more: bool = False
    _end: int | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        return self.declared.streams

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """One range is what is there, up to BATCH_BYTES. Raises Gap where acknowledged groups are not."""
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
                spool.put(stream, Record(text, place(group.number, ordinal), facts))
        return {"spool": folder.spool, "upto": groups[-1].number} if groups else None

    def acknowledge(self, upto: Progress) -> None:
        """Removes the files that logs have."""
        if upto["spool"] == self.declared.folder.spool:
            self.declared.folder.remove(int(upto["upto"]))

    def lag(self, after: Progress | None) -> Lag:
        waiting = self.declared.folder.waiting(_number(after))
        seconds = None if waiting.oldest is None else max(time.time() - waiting.oldest, 0.0)
        return Lag(waiting.events, seconds, waiting.size)

    def skip_gap(self, after: Progress | None) -> Progress:
        """Before the first group that is there. Raises Unavailable under a server that decides by what is gone.

        A folder that is gone is recreated, so that a server finds the numbers that it goes on with.
        """
        folder, upto = self.declared.folder, _number(after)
        if self.declared.decide or not folder.spool:
            Writer(folder, lambda: _number(after)).close()
        if after is not None and after["spool"] != folder.spool:
            upto = 0
        upto = max(upto, folder.taken)
        later = [group.number for group in folder.groups() if group.number > upto]
        return {"spool": folder.spool, "upto": later[0] - 1 if later else upto}

    def close(self) -> None:
        self._end = None

    def _upto(self, after: Progress | None) -> int:
        """The number of the last group that logs have. Raises Gap where the folder is another one, or is gone."""
        folder, upto = self.declared.folder, _number(after)
        if after is not None and after["spool"] != folder.spool:
            raise Gap(
                f"the events that {self.declared.name} acknowledged after group {upto} are in a different folder:"
                f" {'this one was recreated' if folder.spool else 'there is none now'}",
                where=str(folder.path),
                fix=GIVE_UP.format(name=self.declared.name),
            )
        if folder.taken > upto:
            raise self._gap(upto + 1, folder.taken)
        return upto

    def _next(self, upto: int) -> list[Group]:
        groups, size = list[Group](), 0
        for group in self.declared.folder.groups():
            if group.number <= upto:  # a crash came between the commit and its removal
                continue
            if group.number != upto + 1:
                if not groups:
                    raise self._gap(upto + 1, group.number - 1)
                break
            size += group.size
            if groups and size > BATCH_BYTES:
                break
            groups.append(group)
            upto = group.number
        return groups

    def _gap(self, first: int, last: int) -> Gap:
        return Gap(
            f"events that {self.declared.name} acknowledged are gone: groups {first} to {last}",
            where=str(self.declared.folder.path),
            fix=GIVE_UP.format(name=self.declared.name),
        )


def place(number: int, ordinal: int) -> str:
    """Where a record is: the number of its group, and its ordinal there, from 0."""
    return f"{number}:{ordinal}"


def of(
    name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str, settings: Settings
) -> HttpSource:
    """The source that a file declares. Raises one DeclarationError for all its faults."""
    return HttpSource(declared(name, options, contracts, where, settings))


def declared(
    name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str, settings: Settings
) -> Declared:
    """As `of`: what the server needs to know."""
    faults: list[DeclarationError] = []
    numbers = {each.name: each for each in fields(Limits)}
    attributes = {"kind", "streams", "token", "secret", "decide", "check", *numbers}
    for key in options.keys() - attributes:
        faults.append(DeclarationError(f"unknown key {key!r}", where=where, fix=did_you_mean(key, attributes)))
    streams = _streams(options.get("streams", sorted(contracts)), contracts, where, faults)
    given: dict[str, int] = {}
    for key in sorted(numbers.keys() & options.keys()):
        least = 0 if key in {"rate", "free_bytes"} else 1
        if isinstance(options[key], bool) or not isinstance(options[key], int) or options[key] < least:
            what = f"invalid {key}: {options[key]!r}"
            faults.append(DeclarationError(what, where=where, fix=f"use a whole number of at least {least}"))
        else:
            given[key] = options[key]
    tokens, secrets = (_variables(key, options.get(key, {}), streams, where, faults) for key in ("token", "secret"))
    decide = _deciding(options.get("decide", {}), streams, where, faults)
    check = options.get("check", True)
    if not isinstance(check, bool):
        faults.append(DeclarationError(f"invalid check: {check!r}", where=where, fix="use true or false"))
    if faults:
        raise DeclarationError.all(faults)
    return Declared(name, streams, Folder.of(settings, name), Limits(**given), tokens, secrets, where, decide, check)


def from_environment(variable: str, where: str) -> str:
    """A secret. Raises DeclarationError where it is not set."""
    if not (secret := os.environ.get(variable, "")):
        raise DeclarationError(
            f"the environment variable {variable} is not set", where=where, fix=f"export {variable}=…"
        )
    return secret


def _number(after: Progress | None) -> int:
    return int(after["upto"]) if after is not None else 0


def _streams(
    names: Any, contracts: Mapping[str, Contract], where: str, faults: list[DeclarationError]
) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(stream, str) for stream in names) or not names:
        fix = 'write a list of names, such as ["orders"], or leave it out for all'
        faults.append(DeclarationError(f"invalid streams: {names!r}", where=where, fix=fix))
        return ()
    for stream in names:
        if stream not in contracts:
            fix = did_you_mean(stream, contracts)
            faults.append(DeclarationError(f"no stream {stream!r}", where=where, fix=fix))
    return tuple(names)


def _deciding(tables: Any, streams: tuple[str, ...], where: str, faults: list[DeclarationError]) -> dict[str, str]:
    """The tables of `decide`, by stream."""
    if not isinstance(tables, Mapping) or not all(isinstance(table, str) for table in tables.values()):
        fix = 'name the table of a Fold for each stream: decide.orders = "order_state"'
        faults.append(DeclarationError(f"invalid decide: {tables!r}", where=where, fix=fix))
        return {}
    for stream in tables:
        if stream not in streams:
            fix = did_you_mean(stream, streams)
            faults.append(DeclarationError(f"decide of {stream!r}, which is not a stream of it", where=where, fix=fix))
    return dict(tables)


def _variables(
    key: str, given: Any, streams: tuple[str, ...], where: str, faults: list[DeclarationError]
) -> dict[str, str]:
    """The environment variables of `token` or `secret`, by stream. What was said is not shown: it may be a secret."""
    by_stream = given if isinstance(given, Mapping) else dict.fromkeys(streams, given)
    variables = {}
    for stream, value in by_stream.items():
        name = FROM_ENVIRONMENT.fullmatch(value) if isinstance(value, str) else None
        if stream not in streams:
            fix = did_you_mean(stream, streams)
            faults.append(DeclarationError(f"{key} of {stream!r}, which is not a stream of it", where=where, fix=fix))
        elif name is None:
            fix = f'write {key} = "env:NAME", and set the environment variable'
            fault = DeclarationError(f"{key} must come from the environment", where=where, fix=fix)
            faults += [] if any(fault.what == other.what for other in faults) else [fault]
        else:
            variables[stream] = name[1]
    return variables
