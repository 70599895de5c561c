"""Requests with commands: events validated in order of arrival, and answered once the outcome is durable.

No other code runs between a decision and its place in the next group, so groups list events in the order of decisions.
A rejection that depends on an event not yet on the disk is answered once that event is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from lake.contracts import evolution
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.kinds.grouped_map import WorkerFault, fault_of
from lake.project.project import Project
from lake.read.wait import BatchToken
from lake.records.single_reader import RecordRejected, SingleReader
from lake.serve.bodies import PostedRecord, bad_record, contract_problem
from lake.serve.commits import RETRY_SECONDS, Commits, GroupPlace
from lake.serve.decide.command_validation import (
    ANY_VERSION,
    Command,
    CommandValidator,
    Decision,
    ExpectedVersion,
)
from lake.serve.decide.rule import Key, compared_fields, content, undecidable
from lake.serve.problems import Problem
from lake.serve.source import DeclaredIntake, place
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.log_rows import REFUSAL
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse
from lake.text import literal

VERSION: Final = re.compile(r'"([^",]+)"|(\*)')


@dataclass
class Decisions:
    validator: CommandValidator
    commits: Commits
    begun: bool = False  # the validator has read the waiting events
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
        """Commit all records of a request if its commands are accepted. Return the decision and the records' place.

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
        except (Problem, WorkerFault) as error:
            await self.commits.wait_for(self.validator.group_of(commands))
            raise _problem(error) from None
        if outcome.again:
            await self.commits.wait_for(outcome.rests_on)
            await self._check_repetition(every, dict(zip(decided, outcome.places, strict=True)))
            return outcome, None
        return outcome, await self.commits.put(every, decided=True)

    async def _check_repetition(self, every: Sequence[tuple[str, PostedRecord]], places: Mapping[int, str]) -> None:
        declared, project = self.validator.declared, next(iter(self.validator.rules.values())).project
        nth, at = next(iter(places.items()))
        number, ordinal = map(int, at.rsplit(":", 2)[1:])
        others = dict[str, dict[int, PostedRecord]]()
        for n, (stream, record) in enumerate(every):
            if n not in places:
                others.setdefault(stream, {})[ordinal - nth + n] = record
        same = not others or all(at.endswith(f":{place(number, ordinal - nth + n)}") for n, at in places.items())
        try:
            for stream, records in others.items():
                kept = KeptRecords(project, declared, stream, number)
                same = same and await asyncio.to_thread(kept.have, records)
        except (LakeError, OSError) as error:
            raise Problem("undecided", str(error), after=RETRY_SECONDS) from None
        if not same:
            raise Problem(
                "sent-before", "the decided events were accepted before, with other records of the same request"
            )

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
            raise contract_problem(bad)
        return commands

    async def _load_states(self, commands: Sequence[Command]) -> None:
        """Read missing states. The caller must decide before it awaits anything else."""
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
            failures = self._failures
            # A key that was loaded meanwhile may have changed, been ingested and left memory before this read ends.
            wanted = [key for key in self._wanted.pop(stream, {}) if not self.validator.has(stream, key)]
            if wanted:
                read = await asyncio.to_thread(self.validator.read, stream, wanted)
                if failures == self._failures:
                    self.validator.put(stream, read)

    def _forget(self) -> None:
        self.begun = False
        self._failures += 1


def expected_version(headers: Mapping[str, str]) -> ExpectedVersion:
    match, new = headers.get("if-match"), headers.get("if-none-match")
    if new not in {None, "*"} or (match is not None and new is not None):
        raise Problem("wrong-request", "write If-None-Match: * for a new key, or If-Match with its version")
    if match is None:
        return ExpectedVersion(is_new=new is not None)
    if (version := VERSION.fullmatch(match.strip())) is None:
        raise Problem("wrong-request", f'If-Match: {match}: write the version in quotes, as "web:42:3", or *')
    return ExpectedVersion(ANY_VERSION if version[2] else version[1])


def _problem(error: Problem | WorkerFault) -> Problem:
    if isinstance(error, Problem):
        return error
    fault = fault_of(error)
    return Problem("step-fails", str(error) if fault is None else fault[0].what)


@dataclass(frozen=True)
class KeptRecords:
    """Committed records of one `stream` in group number `group` of a source, to recognize a repeated request.

    Decided events are recognized by id, the others of the request by their places in the folder or in a log. Values in
    a log are compared only if the contract allows decisions on them: else they may be encrypted, or computed by SQL.
    """

    project: Project
    declared: DeclaredIntake
    stream: str
    group: int

    def have(self, records: Mapping[int, PostedRecord]) -> bool:
        """Return whether these records, by their ordinals in the group, were committed. Raises LakeError, OSError."""
        for group in self.declared.folder.groups():
            if group.number == self.group:
                kept = [*self.declared.folder.records(group)]
                return all(
                    0 <= number < len(kept)
                    and kept[number][0] == self.stream
                    and self._content(PostedRecord(*kept[number][1:])) == self._content(record)
                    for number, record in records.items()
                )
        return self._are_logged(records)

    @property
    def _contract(self) -> Contract:
        return self.project.contracts[self.stream]

    @cached_property
    def _reader(self) -> SingleReader:
        return SingleReader(self._contract, self.project.settings.record_bytes)

    def _content(self, record: PostedRecord) -> bytes:
        try:
            values = self._reader.values(record.utf8, record.facts)
        except RecordRejected:
            return record.utf8
        return content(values, compared_fields(self._contract))

    def _are_logged(self, records: Mapping[int, PostedRecord]) -> bool:
        settings, source = self.project.settings, self.declared.name
        token = BatchToken(self.stream, source=source, group=self.group).resolve(settings)
        if token.batch is None:
            return False
        kept = {f"{source}:{place(self.group, number)}": record for number, record in records.items()}
        rows, is_comparable = self._rows(token.batch, [*kept]), not any(undecidable(self._contract))
        if is_comparable and any(self._differs(row, kept[row["_source"]]) for row in rows):
            return False
        query = "SELECT * FROM t WHERE _batch = $1 AND list_contains($2, source)"
        quarantine, redeliveries = (
            duckdb_tables.rows(path.path, query, token.batch, [*kept])
            for path in (Warehouse(settings).quarantine(self.stream), Warehouse(settings).redeliveries(self.stream))
        )
        if is_comparable and any(row["raw"] not in {"", kept[row["source"]].text} for row in quarantine):
            return False  # an erasure empties the text
        found = {row["_source"] for row in rows} | {row["source"] for row in (*quarantine, *redeliveries)}
        return found == kept.keys()

    def _rows(self, batch: int, places: Sequence[str]) -> list[dict[str, Any]]:
        scan = Scan(Log(self.project.settings, self.stream).path, bounds={"_batch": (batch, batch)})
        stored = set(scan.schema().names)
        wanted = (*compared_fields(self._contract), "_source", "_version", REFUSAL)
        where = f"_source IN ({', '.join(map(literal, places))})"
        rows: list[dict[str, Any]] = scan.arrow([name for name in wanted if name in stored], where=where).to_pylist()
        return rows

    def _differs(self, row: Mapping[str, Any], record: PostedRecord) -> bool:
        if row.get(REFUSAL) is not None or row["_version"] != self._version:
            return False
        return content(row, compared_fields(self._contract)) != self._content(record)

    @cached_property
    def _version(self) -> int:
        log = Log(self.project.settings, self.stream)
        return len(evolution.append_version(log.contracts(log.head()), self._contract))
