"""Validation of commands in order of arrival, over the state in the log and in acknowledged groups.

Later commands are validated against new states that are not on the disk yet. So an answer waits until the group on
which it depends is (`Decision.rests_on`). If writing fails, all states are read again. Keys with waiting events stay in
memory, others as long as there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from typing import Any, Final

from lake.errors import DeclarationError, StorageError
from lake.kinds.reducer import Refusal
from lake.records.single_reader import RecordRejected
from lake.serve.decide.committed_state import Accepted, CommittedState, KeyState, fold_event
from lake.serve.decide.rule import CommandRule, Key, content
from lake.serve.intake_folder import Group
from lake.serve.problems import Problem
from lake.serve.source import DeclaredIntake, place

MOST_EVENTS: Final = 1_000_000
"""Most keys and ids in memory, about 200 MB; those of keys with waiting events may exceed it."""
CHUNK: Final = 10_000
ANY_VERSION: Final = "*"


@dataclass(frozen=True)
class Command:
    """Event to decide on. A repetition has the same `id` and values of the `compared` fields."""

    stream: str
    values: Mapping[str, Any]
    key: Key
    id: Key
    compared: tuple[str, ...]

    @cached_property
    def content(self) -> bytes:
        return content(self.values, self.compared)

    def repeats(self, accepted: Accepted) -> bool:
        same = self.compared == accepted.compared
        return accepted.content == (self.content if same else content(self.values, accepted.compared))

    @property
    def stream_key(self) -> tuple[str, Key]:
        return self.stream, self.key


@dataclass(frozen=True)
class ExpectedVersion:
    """Version that the key must have ("*" for any); the key must have no event if `is_new`."""

    version: str = ""
    is_new: bool = False


ANYTHING: Final = ExpectedVersion()


@dataclass(frozen=True)
class Decision:
    """Accepted events: the place of each, and (stream, key, version) of each key. Durable as group `rests_on` is.

    `again`: they were accepted before.
    """

    places: Sequence[str]
    versions: Sequence[tuple[str, Key, str]]
    again: bool
    rests_on: int


@dataclass
class CommandValidator:
    """Validator of one source. `taken` is the last group that is in all logs.

    `begin` loads the hashes of all keys, unless each is to be looked up (`looks_up`).
    """

    declared: DeclaredIntake
    rules: Mapping[str, CommandRule]
    most: int = MOST_EVENTS
    looks_up: bool = False
    taken: int = 0
    _keys: dict[str, OrderedDict[Key, KeyState]] = field(default_factory=dict)
    _known: dict[str, set[int] | None] = field(default_factory=dict)
    _events: int = 0

    def command(self, stream: str, text: bytes, facts: Mapping[str, str]) -> Command:
        rule = self.rules[stream]
        values = rule.values(text, facts, now=datetime.now(UTC))
        return Command(stream, values, rule.key(values), rule.id(values), rule.compared)

    def begin(self) -> None:
        """Read acknowledged events that are in no log. Raises DeclarationError if one was not validated."""
        groups = self.declared.folder.groups()
        while True:
            self._read_all(groups)
            read, groups = groups, self.declared.folder.groups()
            if {*read} <= {*groups}:
                return  # otherwise ingestion removed some meanwhile: the log has their events, but was read before

    def _read_all(self, groups: Sequence[Group]) -> None:
        self._keys = {stream: OrderedDict() for stream in self.rules}
        self._known, self._events = {}, 0
        self.taken = self.declared.folder.taken
        if not self.looks_up:
            self._known = {stream: self._committed(stream).keys() for stream in self.rules}
        for stream in self.rules:
            self._committed(stream).read(())  # checks that the log continues in this folder
        waiting = self._waiting(groups)
        while chunk := [*islice(waiting, CHUNK)]:
            for stream in self.rules:
                keys = {command.key for *_, command in chunk if command.stream == stream}
                self.put(stream, self.read(stream, [key for key in keys if key not in self._keys[stream]]))
            for number, at, command in chunk:
                self._apply_waiting(number, at, command)

    def missing(self, commands: Sequence[Command]) -> dict[str, list[Key]]:
        unread: dict[str, dict[Key, None]] = {}
        for command in commands:
            key, keys = command.key, self._keys[command.stream]
            if key in keys:
                continue
            known = self._known.get(command.stream)
            if known is not None and hash(key) not in known:
                self.put(command.stream, {key: KeyState()})
            else:
                unread.setdefault(command.stream, {})[key] = None
        return {stream: [*keys] for stream, keys in unread.items()}

    def read(self, stream: str, keys: Sequence[Key]) -> dict[Key, KeyState]:
        return self._committed(stream).read(keys) if keys else {}

    def has(self, stream: str, key: Key) -> bool:
        return key in self._keys[stream]

    def put(self, stream: str, read: Mapping[Key, KeyState]) -> None:
        keys = self._keys[stream]
        for key, state in read.items():
            if key not in keys:
                keys[key] = state
                self._events += 1 + len(state.ids)

    def decide(
        self, commands: Sequence[Command], at: Callable[[int], str], group: int, expected: ExpectedVersion = ANYTHING
    ) -> Decision:
        """Accept all events or none; their places are `at(0)`, `at(1)`, … in `group`. No key may be `missing`.

        Raises Problem, and WorkerFault if the step fails; both depend on the group that `group_of` returns.
        """
        self._evict([command.stream_key for command in commands])
        states = {command.stream_key: self._state(command) for command in commands}
        before = [self._state(command).ids.get(command.id) for command in commands]
        rests_on = max(state.group for state in states.values())
        if None not in before:
            known = [accepted for accepted in before if accepted is not None]
            if not all(command.repeats(accepted) for command, accepted in zip(commands, known, strict=True)):
                raise Problem("sent-before", "events with these ids were accepted before, and these are not the same")
            places = [accepted.place for accepted in known]
            return Decision(places, self._versions(commands, places), True, rests_on)
        if any(before) or len({(*c.stream_key, c.id) for c in commands}) < len(commands):
            what = "some of these events have an id that was sent before, or duplicated in this request"
            raise Problem("sent-before", what)
        if expected != ANYTHING:
            self._check_version(expected, states)
        new = {key: replace(state, ids={}) for key, state in states.items()}
        for number, command in enumerate(commands):
            rule, state = self.rules[command.stream], new[command.stream_key]
            outcome = rule.next(state.state, command.values)
            if isinstance(outcome, Refusal):
                nth = sum(other.stream == command.stream for other in commands[: number + 1])
                raise Problem("refused", outcome.reason, stream=command.stream, record=nth)
            state.state, state.version, state.group = outcome, at(number), group
            state.ids[command.id] = Accepted(at(number), command.content, command.compared)
        for (stream, key), state in new.items():
            kept = self._keys[stream][key]
            kept.state, kept.version, kept.group = state.state, state.version, state.group
            kept.ids |= state.ids
            self._events += len(state.ids)
        places = [at(number) for number in range(len(commands))]
        return Decision(places, self._versions(commands, places), False, group)

    def group_of(self, commands: Sequence[Command]) -> int:
        return max((self._state(command).group for command in commands), default=0)

    def _versions(self, commands: Sequence[Command], places: Sequence[str]) -> list[tuple[str, Key, str]]:
        by_key = {c.stream_key: at for c, at in zip(commands, places, strict=True)}
        return [(stream, key, at) for (stream, key), at in by_key.items()]

    def _check_version(self, expected: ExpectedVersion, states: Mapping[tuple[str, Key], KeyState]) -> None:
        if len(states) > 1:
            raise Problem("wrong-request", "an expected version is of one key, and these events are of several")
        [state] = states.values()
        if expected.is_new and state.version:
            what = f"the key is not new: its version is {state.version}"
            raise Problem("outdated", what, version=state.version)
        if expected.version == ANY_VERSION and not state.version:
            raise Problem("outdated", "the key has no event yet", version="")
        if expected.version not in {"", ANY_VERSION, state.version}:
            what = f"the key's version is {state.version or 'that of a new key'}, not {expected.version}"
            raise Problem("outdated", what, version=state.version)

    def _evict(self, wanted: Sequence[tuple[str, Key]]) -> None:
        if self._events <= self.most:
            return
        needed = {*wanted}
        for stream, keys in self._keys.items():
            for key in [*islice(keys, CHUNK)]:
                if self._events > self.most and keys[key].group <= self.taken and (stream, key) not in needed:
                    state, known = keys.pop(key), self._known.get(stream)
                    self._events -= 1 + len(state.ids)
                    if known is not None and state.version:
                        known.add(hash(key))

    def _waiting(self, groups: Sequence[Group]) -> Iterator[tuple[int, str, Command]]:
        folder = self.declared.folder
        for group in groups:
            try:
                records = [*folder.records(group)]
            except StorageError:
                if (folder.path / group.name).exists():
                    raise
                continue  # removed meanwhile
            for ordinal, (stream, text, facts) in enumerate(records):
                if stream in self.rules:
                    try:
                        command = self.command(stream, text.encode("utf-8", "surrogatepass"), facts)
                    except RecordRejected as error:
                        raise DeclarationError(
                            f"{stream} accepts decided events only, and an undecided event is pending: {error}",
                            where=str(folder.path / group.name),
                            fix=f"take decide out of {self.declared.where}, run lake ingest {self.declared.name},"
                            " and put it back",
                        ) from None
                    yield group.number, f"{self.declared.name}:{place(group.number, ordinal)}", command

    def _apply_waiting(self, number: int, at: str, command: Command) -> None:
        rule, state = self.rules[command.stream], self._state(command)
        if number > state.upto and command.id not in state.ids:
            self._events += 1
            state.state = fold_event(rule, state.state, command.values)
            state.version, state.group = at, number
            state.ids[command.id] = Accepted(at, command.content, command.compared)

    def _state(self, command: Command) -> KeyState:
        keys, key = self._keys[command.stream], command.key
        keys.move_to_end(key)
        return keys[key]

    def _committed(self, stream: str) -> CommittedState:
        return CommittedState(self.rules[stream], self.declared.name, self.declared.folder)
