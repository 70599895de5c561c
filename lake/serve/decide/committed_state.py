"""Committed state of keys, read without Spark: states at the head of the log, and the ids of their events.

A key's state is its row in the Fold's table plus the later events of the log; or all events, if the table has another
definition or lacks a void. The table is read first, so the log is always at least as new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lake.contracts import evolution
from lake.contracts.origins import origins
from lake.errors import DeclarationError, StorageError
from lake.kinds.grouped_map import WorkerFault, fault_of
from lake.kinds.reducer import REFUSED, Refusal
from lake.lazy import pa
from lake.records.single_reader import EXTRA
from lake.serve.decide.rule import CommandRule, Key, content
from lake.serve.intake_folder import IntakeFolder
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.log_rows import REFUSAL
from lake.store.scan import Scan
from lake.store.voids import all_voids

State = Mapping[str, Any]
PLACE: Final = ("_batch", "_arrival", "_bucket", "_offset", "_source")
MOST_ROWS: Final = 5_000_000
TRIES: Final = 3


class Accepted(NamedTuple):
    """Place of an accepted event, and `content` of the `compared` fields, those that its contract version has."""

    place: str
    content: bytes
    compared: tuple[str, ...]


@dataclass
class KeyState:
    """State of a key after group `group`; groups up to `upto` are in the log.

    Before the first event, `state` is None and `version`, the place of the last event, is "".
    """

    state: State | None = None
    version: str = ""
    ids: dict[Key, Accepted] = field(default_factory=dict)
    upto: int = 0
    group: int = 0


@dataclass(frozen=True)
class CommittedState:
    """Reader of key states from a stream's log and its Fold's table. `source` validates them."""

    rule: CommandRule
    source: str
    folder: IntakeFolder

    def keys(self) -> set[int] | None:
        log, names = Log(self.rule.project.settings, self.rule.stream), self.rule.contract.key
        if not log.head().batch:
            return set()
        scan = Scan(log.path)
        if scan.rows() > MOST_ROWS:
            return None
        table = scan.arrow(names)
        return {hash(key) for key in zip(*(table[name].to_pylist() for name in names), strict=True)}

    def read(self, keys: Collection[Key]) -> dict[Key, KeyState]:
        for left in reversed(range(TRIES)):
            try:
                return self._read(keys)
            except (StorageError, OSError):  # files of a version were deleted just after it was looked up
                if not left:
                    raise
        raise AssertionError

    def upto(self, head: LogHead) -> int:
        newest = head.sources.get(self.source)
        if newest is None:
            return 0
        if newest.progress["spool"] != self.folder.spool:
            raise DeclarationError(
                f"the events that {self.source} acknowledged before are in a different folder: this one was recreated",
                where=str(self.folder.path),
                fix=f"lake ingest {self.source} --give-up goes on with what is there",
            )
        return int(newest.progress["upto"])

    def _read(self, keys: Collection[Key]) -> dict[Key, KeyState]:
        rule, settings = self.rule, self.rule.project.settings
        states = {key: KeyState() for key in keys}
        version, after = self._table()
        log = Log(settings, rule.stream)
        head = log.head()
        upto = self.upto(head)
        for state_of_key in states.values():
            state_of_key.upto = upto
        if not keys or not head.batch:
            return states
        wanted = self._wanted(log, keys)
        if version is not None:
            for key, state in self._states(wanted, version):
                states[key].state = state
        voids = all_voids(settings, rule.stream)
        for row, compared in self._events(log, head, wanted):
            state_of_key = states[rule.key(row)]
            state_of_key.ids.setdefault(rule.id(row), Accepted(row["_source"], content(row, compared), compared))
            place = (row["_batch"], row["_bucket"], row["_offset"])
            if any(void.covers(place, row["_source"]) for void in voids):
                continue
            state_of_key.version = row["_source"]
            if row["_batch"] > after:
                state_of_key.state = fold_event(rule, state_of_key.state, row)
        return states

    def _table(self) -> tuple[int | None, int]:
        project, declaration = self.rule.project, self.rule.declaration
        table = project.table(declaration)
        head = table.head() if table.exists() else None
        if head is None or not project.is_built(declaration, head):
            return None, 0
        if any(void.number > head.voids for void in all_voids(project.settings, self.rule.stream)):
            return None, 0
        return head.version, int(head.inputs.get(self.rule.stream, 0))

    def _wanted(self, log: Log, keys: Collection[Key]) -> pa.Table:
        schema, names = Scan(log.path).schema(), self.rule.contract.key
        columns = zip(*keys, strict=True)
        return pa.table(
            [pa.array(values, schema.field(name).type) for name, values in zip(names, columns, strict=True)],
            names=list(names),
        )

    def _states(self, wanted: pa.Table, version: int) -> Iterator[tuple[Key, State]]:
        rule, table = self.rule, self.rule.project.table(self.rule.declaration)
        fields = [*rule.folding.types.names]
        assert REFUSED in fields
        rows = Scan(table.path, version).arrow([*rule.contract.key, *fields], keys=wanted)
        for row in rows.to_pylist():
            yield rule.key(row), {name: row[name] for name in fields}

    def _events(self, log: Log, head: LogHead, wanted: pa.Table) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """Yield the events of the wanted keys in the log's order, each with the fields to compare."""
        rule, scan = self.rule, Scan(log.path, bounds={"_batch": (1, head.batch)})
        stored = set(scan.schema().names)
        names = dict.fromkeys([*rule.contract.key, *rule.contract.id, *rule.columns])
        compared = rule.compared
        every = dict.fromkeys([*names, *(name for name in compared if name != EXTRA)])
        columns = [name for name in (*every, *PLACE, "_version", EXTRA) if name in stored]
        where = f"{REFUSAL} IS NULL" if REFUSAL in stored else "true"
        rows = scan.arrow(columns, keys=wanted, where=where).to_pylist()
        rows.sort(key=lambda row: (row["_batch"], row["_arrival"], row["_offset"]))
        places = origins(evolution.append_version(tuple(log.contracts(head)), rule.contract))
        versions = [*zip(*(places[name] for name in every), strict=True)]
        missing = [
            [name for name, found in zip(every, v, strict=True) if not any(o.column for o in found)] for v in versions
        ]
        in_extra = [
            [name for name, found in zip(every, v, strict=True) if not all(o.column for o in found)] for v in versions
        ]
        common = [tuple(name for name in compared if name not in (*absent, EXTRA)) for absent in in_extra]
        common[-1] = compared
        for row in rows:
            version = row["_version"] - 1
            self._check_extra(row, [name for name in in_extra[version] if name in names])
            yield row | {name: rule.reader.default(name) for name in missing[version]}, common[version]

    def _check_extra(self, row: Mapping[str, Any], in_extra: Sequence[str]) -> None:
        if in_extra and row.get(EXTRA) is not None:
            raise DeclarationError(
                f"an event of {self.rule.stream} may have {in_extra[0]} as a field that its contract did not know then",
                where=str(row["_source"]),
                fix="publish a new stream for what is decided",
            )


def fold_event(rule: CommandRule, state: State | None, values: Mapping[str, Any]) -> State:
    """Return a key's state after a logged event. A rejected event only increments the counter.

    Raises DeclarationError if the step fails.
    """
    try:
        outcome = rule.next(state, values)
    except WorkerFault as error:
        fault = fault_of(error)
        raise (fault[0] if fault else error) from None
    if not isinstance(outcome, Refusal):
        return outcome
    before = {**dict.fromkeys(rule.folding.types.names), REFUSED: 0, **(rule.folding.start if state is None else state)}
    return before | {REFUSED: before[REFUSED] + 1}
