"""Decisions compared with a plain model, between commits, their failures, ingests, runs and restarts.

No JVM, no server; the log and the table are written as Spark writes them.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from lake.errors import DeclarationError
from lake.kinds.reducer import arrow_type
from lake.serve.bodies import PostedRecord
from lake.serve.commits import Commits
from lake.serve.decide import command_validation
from lake.serve.decide.command_validation import (
    ANYTHING,
    Command,
    CommandValidator,
    ExpectedVersion,
)
from lake.serve.decide.committed_state import CommittedState
from lake.serve.decide.rule import Key, content, rules
from lake.serve.decisions import Decisions
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.serve.problems import Problem
from tests.decide.accounts import ACCOUNT, ENTRIES, accounts
from tests.decide.bank import Bank
from tests.processes import PATIENCE
from tests.shop import contract, declare

Entry = tuple[int, int]
FACTS = "http.id"


def of_kind(kind: str) -> Callable[[Problem], bool]:
    return lambda problem: problem.kind == kind


def text(entry: Entry) -> str:
    return json.dumps({"account": entry[0], "amount": str(Decimal(entry[1]).scaleb(-2))})


@dataclass
class Model:
    """Accounts as clients know them: balance, version, and the place and cents of each entry by account and id."""

    balances: dict[int, int] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)
    ids: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model({**self.balances}, {**self.versions}, {**self.ids})


@dataclass
class Teller:
    """Process that decides and gathers groups by hand."""

    bank: Bank
    most: int
    looks_up: bool = False
    writer: GroupWriter = field(init=False)
    decider: CommandValidator = field(init=False)
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.writer, self.decider, self.lines = (
            self.bank.writer(),
            self.bank.decider(most=self.most, looks_up=self.looks_up),
            [],
        )
        self.decider.begin()

    def ask(self, entries: Sequence[Entry], id: str, expected: ExpectedVersion) -> Any:
        ids = [id] if len(entries) == 1 else [f"{id}:{number}" for number in range(1, len(entries) + 1)]
        commands = list[Command]()
        for entry, each in zip(entries, ids, strict=True):
            commands.append(self.decider.command("entries", text(entry).encode(), {FACTS: each}))
        for stream, keys in self.decider.missing(commands).items():
            self.decider.put(stream, self.decider.read(stream, keys))
        assert not self.decider.missing(commands)
        group, first = self.writer.last + 1, len(self.lines)
        decided = self.decider.decide(commands, lambda number: f"web:{group}:{first + number}", group, expected)
        if not decided.again:
            for entry, each in zip(entries, ids, strict=True):
                self.lines.append(json.dumps(["entries", text(entry), {FACTS: each}]).encode() + b"\n")
        return decided

    def commit(self) -> None:
        if self.lines:
            self.writer.put(self.lines, len(self.lines))
            self.lines = []
        self.decider.taken = self.writer.folder.taken

    def die(self, *, appeared: bool) -> None:
        """Fail the disk or kill the process, before or after the group's name exists, and start another process."""
        if appeared:
            self.commit()
        self.writer.close()
        self.start()


ENTRY = st.tuples(st.integers(0, 3), st.integers(-500, 500))
STEPS = {"ask": 60, "commit": 16, "ingest": 6, "ingest and die": 3, "advance": 5, "killed": 4, "killed late": 4}
EXPECTS = ["anything"] * 6 + ["right", "right", "wrong", "new", "some"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [20, 0, 1_000_000])
def test_decisions_equal_a_plain_model_after_any_interruptions(tmp_path: Path, seed: int, most: int) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    chance, teller, model, safe = random.Random(seed), Teller(bank, most), Model(), Model()
    for sent in range(250):
        match chance.choices([*STEPS], [*STEPS.values()])[0]:
            case "ask":
                entries = [
                    (chance.randrange(8), chance.randrange(-700, 500)) for _ in range(chance.choice([1, 1, 2, 3]))
                ]
                id = str(chance.randrange(sent)) if sent and chance.random() < 0.2 else str(sent)
                if model.ids and chance.random() < 0.1:
                    account, id = chance.choice([*model.ids])
                    place_and_cents = model.ids[account, id]
                    entries = [(account, place_and_cents[1] + chance.choice([0, 0, 1]))]
                ask(teller, model, entries, id, chance.choice(EXPECTS))
            case "commit":
                teller.commit()
                safe = model.copy()
            case "ingest":
                bank.ingest()
            case "ingest and die":
                bank.ingest(acknowledge=False)
            case "advance" if bank.log.head().batch:
                bank.advance()
            case "killed":
                teller.die(appeared=False)
                model = safe.copy()
            case "killed late":
                teller.die(appeared=True)
                safe = model.copy()
    teller.commit()
    teller.writer.close()
    bank.ingest()
    states = bank.folded()
    assert {account: int(state["balance"] * 100) for account, state in states.items()} == model.balances
    assert {state["refused"] for state in states.values()} == {0}
    assert {event["_source"] for event in bank.events()} == {place for place, _ in model.ids.values()}


def ask(teller: Teller, model: Model, entries: list[Entry], id: str, expects: str) -> None:
    """Ask, and compare the answer with that of the model, which applies the entries."""
    ids = [id] if len(entries) == 1 else [f"{id}:{number}" for number in range(1, len(entries) + 1)]
    names = [(account, each) for (account, _), each in zip(entries, ids, strict=True)]
    first, before = entries[0][0], [model.ids.get(name) for name in names]
    version = model.versions.get(first, "")
    several = len({account for account, _ in entries}) > 1
    expected = {
        "right": ExpectedVersion(version, is_new=not version),
        "wrong": ExpectedVersion("web:0:0"),
        "new": ExpectedVersion(is_new=True),
        "some": ExpectedVersion("*"),
    }.get(expects, ANYTHING)
    if several:
        expected = ANYTHING
    after, refused = model.copy(), False
    for account, cents in entries:
        after.balances[account] = after.balances.get(account, 0) + cents
        refused |= after.balances[account] < 0
    outdated = {"wrong": True, "new": bool(version), "some": not version}.get(expects, False) and not several
    known = [sent for sent in before if sent is not None]
    if len(known) == len(entries) and [cents for _, cents in known] == [cents for _, cents in entries]:
        decided = teller.ask(entries, id, expected)
        assert (decided.again, list(decided.places)) == (True, [place for place, _ in known])
    elif known:
        with pytest.raises(Problem, check=of_kind("sent-before")):
            teller.ask(entries, id, expected)
    elif outdated:
        with pytest.raises(Problem, check=of_kind("outdated")) as told:
            teller.ask(entries, id, expected)
        assert told.value.more == {"version": version}
    elif refused:
        with pytest.raises(Problem, match="short", check=of_kind("refused")):
            teller.ask(entries, id, expected)
    else:
        decided = teller.ask(entries, id, expected)
        assert not decided.again
        for name, place, (_, cents) in zip(names, decided.places, entries, strict=True):
            after.ids[name], after.versions[name[0]] = (place, cents), place
        assert {key[0]: at for _, key, at in decided.versions} == {
            account: after.versions[account] for account, _ in entries
        }
        model.balances, model.versions, model.ids = after.balances, after.versions, after.ids


class Failing(GroupWriter):
    """Disk that fails sometimes, before or after the name of a group exists."""

    faults: list[str]

    def put(self, lines: Any, records: int) -> Any:
        fault = self.faults.pop() if self.faults else ""
        if fault == "before":
            raise OSError(5, "Input/output error")
        group = super().put(lines, records)
        if fault == "after":
            raise OSError(5, "Input/output error")
        return group


@pytest.mark.long
@trying(max_examples=25)
@given(
    bursts=st.lists(st.lists(st.lists(ENTRY, min_size=1, max_size=2), min_size=1, max_size=12), max_size=5),
    faults=st.lists(st.sampled_from(["", "", "before", "after"]), max_size=6),
)
def test_concurrent_decisions_log_no_refused_event_when_the_disk_fails(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[list[Entry]]], faults: list[str]
) -> None:
    bank = Bank(accounts(tmp_path_factory.mktemp("bank") / "bank", 'decide.entries = "account"\n'))
    writer = Failing(bank.source.declared.folder)
    writer.faults = faults
    accepted, refused = dict[str, int](), list[int]()

    async def run() -> None:
        commits = Commits(writer)
        deciding = Decisions(bank.decider(), commits)
        number = 0
        for burst in bursts:
            number += 100
            await asyncio.gather(*(post(deciding, number + nth, entries) for nth, entries in enumerate(burst)))
            bank.ingest()
        await commits.close()

    async def post(deciding: Decisions, number: int, entries: list[Entry]) -> None:
        ids = [f"{number}:{nth}" for nth in range(len(entries))]
        records = [PostedRecord(text(entry), {FACTS: id}) for entry, id in zip(entries, ids, strict=True)]
        for _ in range(8):
            try:
                decided, _ = await deciding.decide({"entries": records}, ANYTHING)
            except Problem as problem:
                if problem.kind == "refused":
                    refused.append(number)
                    return
                if problem.kind != "disk":
                    raise
            else:
                accepted.update(zip(decided.places, [cents for _, cents in entries], strict=True))
                return
        raise AssertionError(faults)

    asyncio.run(run())
    writer.close()
    bank.ingest()
    assert {state["refused"] for state in bank.folded().values()} <= {0}
    events = bank.events()
    assert {event["_source"]: int(event["amount"] * 100) for event in events} == accepted
    assert len(accepted) + len(refused) >= sum(map(len, bursts)) if accepted or refused else not any(bursts)
    assert len({event["request"] for event in events}) == len(events)


def test_undecided_records_that_differ_from_pending_ones_are_refused(tmp_path: Path) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    writer, first = bank.writer(), PostedRecord('{"number": 1, "text": "one"}', {})

    async def run() -> list[str]:
        commits = Commits(writer)
        deciding = Decisions(bank.decider(), commits)

        async def ask(*notes: PostedRecord, **others: PostedRecord) -> str:
            entry = PostedRecord(text((1, 100)), {FACTS: "once"})
            streams = {"notes": notes, "entries": [entry], **{name: [record] for name, record in others.items()}}
            try:
                return "again" if (await deciding.decide(streams, ANYTHING))[0].again else "kept"
            except Problem as problem:
                return problem.kind

        second, spelled = PostedRecord('{"number": 2}', {}), PostedRecord('{"text":"one","number":1}', {})
        answers = [await ask(first), await ask(spelled), await ask(second), await ask(first, second), await ask()]
        answers.append(await ask(first, orders=second))
        await commits.close()
        return answers

    assert asyncio.run(run()) == ["kept", "again", "sent-before", "sent-before", "again", "sent-before"]
    writer.close()


def test_decisions_based_on_unwritten_events_fail_with_them(tmp_path: Path) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    at_work, go_on = threading.Event(), threading.Event()

    class Slow(Failing):
        def put(self, lines: Any, records: int) -> Any:
            at_work.set()
            assert go_on.wait(PATIENCE)
            return super().put(lines, records)

    writer = Slow(bank.source.declared.folder)
    writer.faults = ["before"]

    async def run() -> list[str]:
        commits = Commits(writer)
        deciding = Decisions(bank.decider(), commits)

        async def told(cents: int, id: str) -> str:
            try:
                decided, _ = await deciding.decide({"entries": [PostedRecord(text((1, cents)), {FACTS: id})]}, ANYTHING)
            except Problem as problem:
                return problem.kind
            return decided.places[0]

        first = asyncio.create_task(told(1000, "a"))
        await asyncio.to_thread(at_work.wait)
        later = [asyncio.create_task(told(cents, id)) for cents, id in ((-500, "b"), (1000, "a"), (-9000, "c"))]
        while commits.next.first < 1:
            await asyncio.sleep(0)
        go_on.set()
        answers = [await task for task in (first, *later)]
        answers += [await told(-500, "b"), await told(700, "d"), await told(-500, "b")]
        await commits.close()
        return answers

    assert asyncio.run(run()) == ["disk", "disk", "disk", "disk", "refused", "web:1:0", "web:2:0"]
    writer.close()


def bank_with(folder: Path, *cents: int) -> Bank:
    """Return a bank whose log has entries of account 1."""
    bank = Bank(accounts(folder / "bank", 'decide.entries = "account"\n'))
    writer = bank.writer()
    for number, each in enumerate(cents):
        line = json.dumps(["entries", text((1, each)), {FACTS: f"i{number}"}]).encode() + b"\n"
        writer.put([line], 1)
        bank.ingest()
    writer.close()
    return bank


def balance(bank: Bank) -> Decimal:
    """Return the balance of account 1 as a decider reads it."""
    decider = bank.decider()
    decider.begin()
    [state] = decider.read("entries", [(1,)]).values()
    assert state.state is not None
    found: Decimal = state.state["balance"]
    return found


def test_decider_continues_from_a_table_of_the_same_definition_only(tmp_path: Path) -> None:
    bank = bank_with(tmp_path, 100, 200)
    bank.advance(balance=Decimal("50.00"))
    assert balance(bank) == 50
    bank.advance("of another definition", balance=Decimal("70.00"))
    assert balance(bank) == 3


def test_entry_refused_by_the_fold_does_not_change_the_balance(tmp_path: Path) -> None:
    bank = bank_with(tmp_path, 100, -200, 50)
    assert balance(bank) == Decimal("1.50")
    assert {state["refused"] for state in bank.folded().values()} == {1}


def test_fold_step_that_fails_on_logged_events_is_reported(tmp_path: Path) -> None:
    bank = bank_with(tmp_path, 100)
    declare(
        bank.settings, jobs={"account": ACCOUNT.replace('left = state["balance"] + event["amount"]', "left = 1 / 0")}
    )
    with pytest.raises(DeclarationError, match="reducer enter: ZeroDivisionError"):
        balance(Bank(bank.settings))


def test_event_older_than_a_field_has_its_default(tmp_path: Path) -> None:
    bank = bank_with(tmp_path, 100, 200)
    fields = {**ENTRIES, "more": ("decimal(9, 2)", {"default": "0.50"})}
    job = ACCOUNT.replace('+ event["amount"]', '+ event["amount"] + event["more"]').replace(
        '"amount")', '"amount", "more")'
    )
    declare(bank.settings, contract("entries", fields, id=["request"]), jobs={"account": job})
    assert balance(Bank(bank.settings)) == 4


def test_undecided_pending_event_is_reported(tmp_path: Path) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    writer = bank.writer()
    writer.put([json.dumps(["entries", '{"account": 1.5}', {FACTS: "a"}]).encode() + b"\n"], 1)
    writer.close()
    with pytest.raises(Exception, match="an undecided event is pending"):
        bank.decider().begin()


FIELDS = {
    "amount": ("decimal(9, 2)", ['"1.00"', '"1.0"', "1"], ['"1.01"', '"-1.00"', '"-2.00"']),
    "number": ("long", ["1"], ["-1", "-2", "2"]),
    "share": ("double", ["0.0", "-0.0", "0e5"], ["1e-300", "-1.0", "-2.0"]),
    "flag": ("boolean", ["true"], ["false"]),
    "day": ("date", ['"2024-03-31"'], ['"2024-04-01"']),
    "moment": (
        "timestamp",
        ['"2024-03-31T12:00:00Z"', '"2024-03-31T14:00:00.000000+02:00"'],
        ['"2024-03-31T12:00:01Z"'],
    ),
    "text": ("string", ['"a"', '"\\u0061"'], ['"A"', '"á"', '""', '"a "']),
    "maybe": ("string?", ["null"], ['"null"', '""']),
    "blob": ("bytes", ['"AA=="'], ['"AQ=="']),
}
"""By field: its type, spellings of one value, and other values."""


@pytest.mark.parametrize("name", FIELDS)
def test_reused_id_with_another_field_value_is_refused(tmp_path: Path, name: str) -> None:
    kind, same, others = FIELDS[name]
    settings = accounts(tmp_path / "bank", 'decide.entries = "account"\n')
    declare(settings, contract("entries", ENTRIES | {f"extra_{name}": kind}, id=["request"]))
    bank = Bank(settings)
    declared = bank.source.declared
    found = rules(bank.project, declared)

    def ask(decider: CommandValidator, value: str) -> bool:
        body = f'{{"account": 1, "amount": "1.00", "extra_{name}": {value}}}'
        command = decider.command("entries", body.encode(), {FACTS: "a"})
        return decider.decide([command], lambda _: "web:1:0", 1).again

    decider = CommandValidator(declared, {"entries": found["entries"]})
    decider.begin()
    body = f'{{"account": 1, "amount": "1.00", "extra_{name}": {same[0]}}}'
    first = decider.command("entries", body.encode(), {FACTS: "a"})
    assert not decider.missing([first])
    assert [ask(decider, value) for value in same] == [False, *[True] * (len(same) - 1)]
    for value in others:
        with pytest.raises(Problem, match="not the same", check=of_kind("sent-before")):
            ask(decider, value)
    stored = pa.schema([(field.name, arrow_type(field.type)) for field in found["entries"].contract.fields])
    [row] = pa.Table.from_pylist([dict(first.values)], stored).to_pylist()
    assert content(row, first.compared) == first.content


class Interrupted:
    """Let `bank` ingest all that waits after the call of number `moment` of these methods."""

    def __init__(self, bank: Bank, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
        self.bank, self.left = bank, moment
        for owner, name in ((IntakeFolder, "groups"), (CommittedState, "keys"), (CommittedState, "read")):
            monkeypatch.setattr(owner, name, self.after(getattr(owner, name)))

    def after(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = method(*arguments)
            self.left -= 1
            if self.left == 0:
                self.bank.ingest()
            return result

        return call


@pytest.mark.parametrize("looks_up", [False, True])
@pytest.mark.parametrize("moment", range(1, 12))
def test_begin_has_events_that_are_ingested_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, *, looks_up: bool
) -> None:
    monkeypatch.setattr(command_validation, "CHUNK", 2)
    bank = bank_with(tmp_path, 100)
    writer, entries = bank.writer(), [(1, 200), (2, 300), (1, 400), (3, 500), (2, 600)]
    for number, entry in enumerate(entries):
        writer.put([json.dumps(["entries", text(entry), {FACTS: f"w{number}"}]).encode() + b"\n"], 1)
    writer.close()
    interrupted = Interrupted(bank, monkeypatch, moment)
    teller = Teller(bank, 1_000_000, looks_up=looks_up)
    for number, entry in enumerate(entries):
        assert teller.ask([entry], f"w{number}", ANYTHING).again
    for account, cents in ((1, 700), (2, 900), (3, 500)):
        with pytest.raises(Problem, check=of_kind("refused")):
            teller.ask([(account, -cents - 1)], f"too much of {account}", ANYTHING)
        assert not teller.ask([(account, -cents)], f"all of {account}", ANYTHING).again
    assert interrupted.left < moment
    teller.writer.close()


def test_key_that_was_loaded_meanwhile_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = bank_with(tmp_path, 1000)
    decider, writer, reads = bank.decider(), bank.writer(), list[int]()
    read, both_wait = decider.read, threading.Event()

    def slowly(stream: str, keys: Sequence[Key]) -> Any:
        reads.append(len(keys))
        assert both_wait.wait(PATIENCE)
        return read(stream, keys)

    monkeypatch.setattr(decider, "read", slowly)

    async def run() -> list[bool]:
        commits = Commits(writer)
        deciding = Decisions(decider, commits)

        async def ask(id: str) -> bool:
            entry = PostedRecord(text((1, -400)), {FACTS: id})
            return (await deciding.decide({"entries": [entry]}, ANYTHING))[0].again

        asking = [asyncio.create_task(ask(id)) for id in ("a", "b")]
        while not (reads and deciding._wanted):
            await asyncio.sleep(0)
        both_wait.set()
        answers = [await task for task in asking]
        await commits.close()
        return answers

    assert asyncio.run(run()) == [False, False]
    assert reads == [1]
    writer.close()


@pytest.mark.parametrize("change", ["a field declared later", "a field dropped since"])
def test_repetition_after_a_change_of_the_contract_is_recognized(tmp_path: Path, change: str) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    sent = {"account": 1, "amount": "10.00", **({"more": "x"} if "later" in change else {"note": "x"})}
    writer = bank.writer()
    writer.put([json.dumps(["entries", json.dumps(sent), {FACTS: "a"}]).encode() + b"\n"], 1)
    assert bank.project
    bank.ingest()
    writer.close()
    fields = ENTRIES | {"more": "string?"} if "later" in change else {**ENTRIES}
    if "since" in change:
        del fields["note"]
    declare(bank.settings, contract("entries", fields, id=["request"]))
    decider = Bank(bank.settings).decider()
    decider.begin()

    def again(**values: Any) -> bool:
        command = decider.command("entries", json.dumps(sent | values).encode(), {FACTS: "a"})
        decider.put("entries", decider.read("entries", [command.key]))
        return decider.decide([command], lambda _: "web:9:0", 9).again

    assert again()
    with pytest.raises(Problem, check=of_kind("sent-before")):
        again(amount="11.00")
