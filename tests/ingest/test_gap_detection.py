"""Gaps in a log: numbers that producers skipped, spans of time without an event. No JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake.cli import lake
from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.ingest.fsck import check_log
from lake.ingest.gap_detection import Gaps, NumberGap, TimeGap, find_gaps
from lake.ingest.ingest import ingest
from lake.ops.render import as_text, failed_conditions
from lake.ops.status import status
from lake.project.project import load
from lake.store import delta
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.proof import chain
from tests.shop import contract, declare, empty
from tests.warehouse import commit

FIELDS = {"device": "string", "seq": "long", "taken": "timestamp"}
EVERY = timedelta(hours=6)
START = datetime(1969, 12, 30, tzinfo=UTC)
Events = list[tuple[str | None, int | None, datetime]]


def make_log(folder: Path, events: Events, complete: Any) -> Settings:
    """Make a project whose log has these events."""
    settings = empty(folder)
    declare(settings, contract("reading", FIELDS, time="taken", complete=complete))
    contract_versions.register(settings, load_contract(settings, "reading"))
    rows = [
        f"({'NULL' if device is None else repr(device)}, {'NULL' if seq is None else seq}, TIMESTAMPTZ '{at}')"
        for device, seq, at in events
    ]
    log = Log(settings, "reading")
    counts = dict.fromkeys(("read", "accepted", "duplicates", "quarantined", "control"), 0)
    offsets = {"0": len(events)}
    said: dict[str, Any] = {"batch": 1, "offsets": offsets, "watermark": None, "counts": counts, "files": []}
    commit(
        log.path,
        f"""SELECT device, seq::BIGINT AS seq, taken, 1::BIGINT AS _batch, 0::INTEGER AS _bucket, taken AS _time,
                   row_number() OVER () - 1 AS _offset
            FROM (VALUES {", ".join(rows)}) t(device, seq, taken)""",
        delta.start(log.app).next(**said, contract=1, at=START.isoformat(), content=chain.entry({}, 1, {}, [])),
    )
    return settings


def by_hand(events: Events) -> Gaps:
    """Return the gaps, counted one by one."""
    numbers: list[NumberGap] = []
    for device in sorted({device for device, *_ in events}, key=lambda one: (one is None, one or "")):
        there = {seq for of, seq, _ in events if of == device and seq is not None}
        first = None
        for number in range(min(there, default=0), max(there, default=-1) + 2):
            if number not in there and first is None:
                first = number
            if number in there and first is not None:
                numbers.append(NumberGap(device, first, number - 1))
                first = None
    steps = {(at - datetime(1970, 1, 1, tzinfo=UTC)) // EVERY for _, _, at in events}
    spans: list[TimeGap] = []
    begin = None
    for step in range(min(steps), max(steps) + 1):
        if step not in steps and begin is None:
            begin = step
        if step in steps and begin is not None:
            spans.append(TimeGap(*(datetime(1970, 1, 1, tzinfo=UTC) + one * EVERY for one in (begin, step))))
            begin = None
    return Gaps("reading", tuple(numbers), tuple(spans))


@pytest.mark.parametrize("seed", range(12))
def test_gaps_equal_those_counted_one_by_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    events: Events = [
        (
            chance.choice(["a", "b", "c", None]),
            None if chance.random() < 0.1 else chance.randint(-9, 9),
            START + timedelta(minutes=chance.randint(0, 60 * 24 * 6)),
        )
        for _ in range(chance.randint(1, 25))
    ]
    settings = make_log(tmp_path / "p", events, {"producer": "device", "number": "seq", "every": "6 hours"})
    found, wanted = find_gaps(settings, load_contract(settings, "reading")), by_hand(events)
    assert sorted(found.numbers, key=str) == sorted(wanted.numbers, key=str)
    assert found.spans == wanted.spans


PUNCTUATED = {
    "time": "taken",
    "id": ["seq"],
    "complete": {"producer": "device", "number": "seq"},
    "horizon": {"producer": "device", "punctuation": "kind = 'alive'"},
}
Told = tuple[str, int, bool]
"""A record: its device, its number, and whether it is a punctuation."""
BATCHES: list[list[list[Told]]] = [
    [  # mixed kinds, out of order, with repeats
        [("a", 1, False), ("a", 2, True), ("a", 5, False), ("b", 8, True), ("b", 9, False)],
        [("a", 4, True), ("b", 11, True), ("b", 11, True)],
        [("a", 3, True), ("a", 2, True), ("b", 6, True)],
    ],
    [[("a", 3, True), ("a", 5, True)], [("a", 3, True), ("a", 1, True), ("b", 2**62, True)]],  # only punctuations
    [[("a", 1, False), ("a", 4, False)], [("a", 2, True)]],
]


def records(told: Iterable[Told]) -> list[dict[str, Any]]:
    return [
        {"device": device, "seq": seq, "taken": START.isoformat(), "kind": "alive" if alive else "reading"}
        for device, seq, alive in told
    ]


def random_batches(seed: int) -> list[list[Told]]:
    """Return batches of each device's numbers: some missing, some repeated, most in order."""
    chance = random.Random(seed)
    told = [
        (device, seq, chance.random() < 0.5)
        for device in "ab"
        for seq in range(chance.randint(-9, 0), chance.randint(5, 20))
        if chance.random() < 0.8
    ]
    told += chance.sample(told, len(told) // 4)
    told.sort(key=lambda one: one[1] + chance.randint(-3, 3))
    size = len(told) // 3
    return [told[:size], told[size : 2 * size], told[2 * size :]]


@pytest.mark.long
@pytest.mark.parametrize("batches", [*BATCHES, *map(random_batches, range(6))])
def test_numbers_of_punctuations_are_not_missing(
    tmp_path: Path, spark: SparkSession, batches: list[list[Told]]
) -> None:
    house = declare(empty(tmp_path / "p"), contract("reading", FIELDS | {"kind": "string"}, **PUNCTUATED))
    came: Events = []
    for batch in batches:
        house.land("reading", *records(batch))
        ingest(house.settings, lambda: spark, house.project.contracts)
        came += [(device, seq, START) for device, seq, _ in batch]
        found = find_gaps(house.settings, load_contract(house.settings, "reading")).numbers
        assert sorted(found, key=str) == sorted(by_hand(came).numbers, key=str)
    assert check_log(house.settings, "reading").faults == []


def test_numbers_beyond_doubles_are_found_without_producers(tmp_path: Path) -> None:
    events: Events = [(None, 2**62 + number, START) for number in (1, 3)]
    settings = make_log(tmp_path / "p", events, {"number": "seq"})
    found = find_gaps(settings, load_contract(settings, "reading"))
    assert found == Gaps("reading", (NumberGap(None, 2**62 + 2, 2**62 + 2),))
    assert found.summary == "1 number"


def test_commands_report_gaps_of_a_log(tmp_path: Path) -> None:
    events: Events = [("a", 1, START), ("a", 4, START + timedelta(days=2))]
    settings = make_log(tmp_path / "p", events, {"producer": "device", "number": "seq", "every": "1 day"})
    state = status(load(settings))
    told = "reading: 2 numbers of 1 producer, 1 span of time without an event: "
    told += "1969-12-31 00:00:00Z to 1970-01-01 00:00:00Z"
    assert f"missing  {told}: lake log reading --missing" in [*as_text(state)]
    assert failed_conditions(state, ["missing"]) == [f"missing: {told}"]
    command = ["log", "reading", "--missing", "--project", str(settings.project)]
    done = CliRunner().invoke(lake, [*command, "--json"], standalone_mode=False)
    data = json.loads(done.output)
    assert data["numbers"] == [{"producer": "a", "first": 2, "last": 3, "numbers": 2}]
    assert [span["begin"][:10] for span in data["spans"]] == ["1969-12-31"]
    assert "1969-12-31" in CliRunner().invoke(lake, command, standalone_mode=False).output


def test_missing_log_has_no_gaps_yet(tmp_path: Path) -> None:
    settings = empty(tmp_path / "p")
    declare(settings, contract("reading", FIELDS, time="taken", complete={"number": "seq", "every": "1 day"}))
    assert find_gaps(settings, load_contract(settings, "reading")).summary == ""


@pytest.mark.parametrize(
    ("complete", "told"),
    [
        ({}, "invalid complete"),
        ("seq", "invalid complete"),
        ({"producer": "device"}, "names a producer and no number"),
        ({"number": "sec"}, "did you mean 'seq'?"),
        ({"number": "device"}, "of type string as number"),
        ({"every": "1 day", "producers": "device"}, "did you mean 'producer'?"),
        ({"every": "daily"}, "invalid every"),
        ({"every": "0 days"}, "invalid every"),
    ],
)
def test_wrong_declaration_of_complete_is_reported_with_its_line(tmp_path: Path, complete: Any, told: str) -> None:
    settings = empty(tmp_path / "p")
    declare(settings, contract("reading", FIELDS, time="taken", complete=complete))
    with pytest.raises(DeclarationError, match=r"schemas/reading\.avsc:\d+") as fault:
        load_contract(settings, "reading")
    assert told in str(fault.value)


def test_log_missing_option_is_rejected_without_a_declaration(tmp_path: Path) -> None:
    settings = empty(tmp_path / "p")
    declare(settings, contract("reading", FIELDS))
    done = CliRunner().invoke(lake, ["log", "reading", "--missing", "--project", str(settings.project)])
    assert isinstance(done.exception, SystemExit | DeclarationError)
