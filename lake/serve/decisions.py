"""Requests with commands: events validated in order of arrival, and answered once the outcome is durable.

No other code runs between a decision and its place in the next group, so groups list events in the order of decisions.
A rejection that depends on an event not yet on the disk is answered once that event is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lake.errors import DeclarationError, LakeError, Refused
from lake.kinds.grouped_map import WorkerFault, fault_of
from lake.records.single_reader import RecordRejected
from lake.serve.bodies import PostedRecord
from lake.serve.commits import Commits, GroupPlace
from lake.serve.contract_check import bad_record, breach
from lake.serve.decide.command_validation import (
    NEW,
    Command,
    CommandValidator,
    Decision,
    ExpectedVersion,
    NotAllowed,
    Outdated,
)
from lake.serve.decide.rule import Key
from lake.serve.problems import Problem
from lake.serve.repeated_requests import KeptRecords
from lake.serve.source import place

RETRY_SECONDS: Final = 10.0
VERSION: Final = re.compile(r'"([^",]+)"|(\*)')


@dataclass
class Decisions:
    """Decisions of one server. `begun` is true once its validator has read the waiting events."""

    validator: CommandValidator
    commits: Commits
    begun: bool = False
    _failures: int = 0
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _wanted: dict[str, dict[Key, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commits.on_failure = self._forget

    async def begin(self) -> None:
        async with self._beginning:
            while not self.begun:
                failures = self._failures
                await asyncio.to_thread(self.validator.begin)
                self.begun = failures == self._failures

    async def decide(
        self, by_stream: Mapping[str, Sequence[PostedRecord]], expected_version: ExpectedVersion
    ) -> tuple[Decision, GroupPlace | None]:
        """Commit all records of a request if its commands are accepted. Return the outcome and the records' place.

        The place is None if the request was accepted before. Raises Problem if nothing was committed.
        """
        every = [(stream, record) for stream, records in by_stream.items() for record in records]
        decided = [number for number, (stream, _) in enumerate(every) if stream in self.validator.rules]
        if not decided:
            raise Problem("wrong-request", "no record is of a stream that is decided on: post it without ?decide")
        commands = self._commands(every, decided)
        await self._load_states(commands)
        at = self.commits.next

        def place_of(number: int) -> str:
            return f"{self.validator.declared.name}:{place(at.number, at.first + decided[number])}"

        try:
            outcome = self.validator.decide(commands, place_of, at.number, expected_version)
        except (Refused, DeclarationError, WorkerFault) as error:
            await self.commits.wait_for(self.validator.group_of(commands))
            raise _problem(error) from None
        if outcome.again:
            await self.commits.wait_for(outcome.rests_on)
            await self._must_be_repeated(every, dict(zip(decided, outcome.places, strict=True)))
            return outcome, None
        return outcome, await self.commits.put(every, decided=True)

    async def _must_be_repeated(self, every: Sequence[tuple[str, PostedRecord]], places: Mapping[int, str]) -> None:
        declared, project = self.validator.declared, next(iter(self.validator.rules.values())).project
        nth, at = next(iter(places.items()))
        number, ordinal = map(int, at.rsplit(":", 2)[1:])
        others = dict[str, dict[int, PostedRecord]]()
        for each, (stream, record) in enumerate(every):
            if each not in places:
                others.setdefault(stream, {})[ordinal - nth + each] = record
        same = not others or all(at.endswith(f":{place(number, ordinal - nth + n)}") for n, at in places.items())
        try:
            for stream, records in others.items():
                kept = KeptRecords(project, declared, stream, number)
                same = same and await asyncio.to_thread(kept.have, records)
        except (LakeError, OSError) as error:
            raise Problem("undecided", str(error), after=RETRY_SECONDS) from None
        if not same:
            raise Problem("sent-before", "the decided events were accepted before, with other records beside them")

    def _commands(self, every: Sequence[tuple[str, PostedRecord]], decided: Sequence[int]) -> list[Command]:
        commands, bad = list[Command](), list[dict[str, Any]]()
        for number in decided:
            stream, record = every[number]
            try:
                commands.append(self.validator.command(stream, record.utf8, record.facts))
            except RecordRejected as error:
                nth = sum(other == stream for other, _ in every[: number + 1])
                bad.append(bad_record(stream, nth, error))
        if bad:
            raise breach(bad)
        return commands

    async def _load_states(self, commands: Sequence[Command]) -> None:
        """Load the state of all keys of these commands. The caller must decide before it awaits anything else."""
        try:
            while True:
                if not self.begun:
                    await self.begin()
                if not (missing := self.validator.missing(commands)):
                    return
                for stream, keys in missing.items():
                    await self._read(stream, keys)
        except (LakeError, OSError) as error:
            raise Problem("undecided", str(error), after=RETRY_SECONDS) from None

    async def _read(self, stream: str, keys: Sequence[Key]) -> None:
        self._wanted.setdefault(stream, {}).update(dict.fromkeys(keys))
        async with self._reading:
            wanted, failures = self._wanted.pop(stream, {}), self._failures
            if wanted:
                read = await asyncio.to_thread(self.validator.read, stream, [*wanted])
                if failures == self._failures:
                    self.validator.put(stream, read)

    def _forget(self) -> None:
        self.begun = False
        self._failures += 1


def expected_version(headers: Mapping[str, str]) -> ExpectedVersion:
    """Return the version that the headers If-Match or If-None-Match require. Raises Problem if they are malformed."""
    match, new = headers.get("if-match"), headers.get("if-none-match")
    if new not in {None, "*"} or (match is not None and new is not None):
        raise Problem("wrong-request", "write If-None-Match: * for a new key, or If-Match with its version")
    if match is None:
        return ExpectedVersion(is_new=new is not None)
    if (version := VERSION.fullmatch(match.strip())) is None:
        raise Problem("wrong-request", f'If-Match: {match}: write the version in quotes, as "web:42:3", or *')
    return ExpectedVersion(NEW if version[2] else version[1])


def _problem(error: Exception) -> Problem:
    match error:
        case NotAllowed():
            return Problem("refused", error.reason, stream=error.stream, record=error.number)
        case Outdated():
            return Problem("outdated", error.what, version=error.version)
        case Refused():
            return Problem("sent-before", error.what)
        case DeclarationError():
            return Problem("wrong-request", error.what)
    fault = fault_of(error)
    return Problem("step-fails", str(error) if fault is None else fault[0].what)
