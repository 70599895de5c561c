"""Spans of time with events, stored from batch to batch, compared with the whole log."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract
from lake.errors import StorageError
from lake.ingest.events import void
from lake.ingest.gap_detection import TimeGap, find_gaps
from lake.ingest.ingest import ingest
from lake.store import delta, delta_writer
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.proof.fingerprints import Fingerprint
from lake.store.table_log import delta_table
from lake.store.upkeep import compaction
from tests.shop import contract, declare, empty
from tests.warehouse import commit

pytestmark = pytest.mark.slow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
FIELDS = {"device": "string", "taken": "timestamp"}


def declare_reading(folder: Path, every: str = "1 hour") -> tuple[Settings, Contract]:
    settings = empty(folder)
    declare(settings, contract("reading", FIELDS, time="taken", complete={"every": every}))
    found = load_contract(settings, "reading")
    contract_versions.register(settings, found)
    return settings, found


def append(settings: Settings, hours: Sequence[float]) -> None:
    """Append a batch of events, given in hours after 1970 began."""
    log = Log(settings, "reading")
    head = log.head()
    values = ", ".join(f"(TIMESTAMPTZ '{EPOCH + hour * HOUR}')" for hour in hours)
    counts = dict.fromkeys(("read", "accepted", "duplicates", "quarantined", "control"), 0)
    prints: chain.Fingerprints = {0: (Fingerprint(len(hours), int(1000 * sum(hours)) % 997),)}
    content = chain.entry(head.content, head.batch + 1, prints, [])
    said: dict[str, Any] = {
        "offsets": {},
        "watermark": None,
        "counts": counts,
        "files": [],
        "contract": 1,
        "content": content,
    }
    commit(
        log.path,
        f"""SELECT 'a' AS device, taken, {head.batch + 1}::BIGINT AS _batch, taken AS _time,
                   row_number() OVER () - 1 AS _offset, (row_number() OVER () % 2)::INTEGER AS _bucket
            FROM (VALUES {values}) t(taken)""",
        head.next(**said, at=EPOCH.isoformat()),
        partition_by=["_bucket"],
        configuration=delta_writer.KEEP_LOGS,
    )


def by_hand(hours: Sequence[float], hours_each: int = 1) -> list[TimeGap]:
    steps = {int(hour // hours_each) for hour in hours}
    lacking = [step for step in range(min(steps), max(steps)) if step not in steps]
    begins = [step for step in lacking if step - 1 not in lacking]
    ends = [step + 1 for step in lacking if step + 1 not in lacking]
    return [
        TimeGap(EPOCH + begin * hours_each * HOUR, EPOCH + end * hours_each * HOUR)
        for begin, end in zip(begins, ends, strict=True)
    ]


def time_files(settings: Settings) -> list[Path]:
    return sorted(settings.path(".lake/times").iterdir())


@pytest.mark.turns(2)
@pytest.mark.parametrize("seed", range(6))
def test_stored_times_equal_those_of_the_whole_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings, reading = declare_reading(tmp_path / "p")
    log, hours = Log(settings, "reading"), list[float]()
    for _ in range(12):
        batch = [round(chance.uniform(-40, 60), 2) for _ in range(chance.randint(1, 4))]
        append(settings, batch)
        hours += batch
        if chance.random() < 0.3:
            compaction.compact_table(log.path, log.head().position)
        if chance.random() < 0.2:
            shutil.rmtree(settings.path(".lake/times"), ignore_errors=True)
        if chance.random() < 0.7:
            assert [*find_gaps(settings, reading).spans] == by_hand(hours)
    assert [*find_gaps(settings, reading).spans] == by_hand(hours)


def test_files_of_known_batches_are_not_read_again(tmp_path: Path) -> None:
    settings, reading = declare_reading(tmp_path / "p")
    append(settings, [0.5, 5.5])
    before = {*delta.files(delta_table(Log(settings, "reading").path))}
    assert [*find_gaps(settings, reading).spans] == by_hand([0.5, 5.5])
    append(settings, [2.5])
    for file in before:
        Path(file).unlink()
    assert [*find_gaps(settings, reading).spans] == by_hand([0.5, 5.5, 2.5])
    shutil.rmtree(settings.path(".lake/times"))
    with pytest.raises(StorageError, match="a file of"):
        find_gaps(settings, reading)


def test_missing_day_is_named_until_it_lands(tmp_path: Path) -> None:
    settings, reading = declare_reading(tmp_path / "p", "1 day")
    append(settings, [3, 50])
    assert "1970-01-02 00:00:00Z to 1970-01-03" in find_gaps(settings, reading).summary
    append(settings, [30])
    assert find_gaps(settings, reading).summary == ""


def test_times_are_read_from_the_whole_log_when_log_or_length_differs(tmp_path: Path) -> None:
    settings, reading = declare_reading(tmp_path / "p")
    append(settings, [0, 5])
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 5])
    shutil.rmtree(Log(settings, "reading").path.local)
    append(settings, [0, 3])
    append(settings, [7])
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 3, 7])
    _, longer = declare_reading(tmp_path / "q", "2 hours")
    assert [*find_gaps(settings, longer).spans] == by_hand([0, 3, 7], 2)
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 3, 7])


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"batch": 1}', '{"batch": 1, "digest": "x", "runs": [[1]]}'])
def test_damaged_file_of_times_is_ignored(tmp_path: Path, text: str) -> None:
    settings, reading = declare_reading(tmp_path / "p")
    append(settings, [0, 5])
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 5])
    [file] = time_files(settings)
    file.write_text(text)
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 5])
    assert json.loads(file.read_text())["batch"] == 1


def test_times_are_read_from_the_log_if_the_folder_cannot_be_written(tmp_path: Path) -> None:
    settings, reading = declare_reading(tmp_path / "p")
    append(settings, [0, 5])
    settings.path(".lake").mkdir(exist_ok=True)
    settings.path(".lake/times").write_text("in the way")
    assert [*find_gaps(settings, reading).spans] == by_hand([0, 5])


@pytest.mark.long
@pytest.mark.parametrize("slices", [1, 3, 8])
def test_times_of_ingested_batches_are_the_same_in_all_slicings(
    project: Settings, spark: SparkSession, slices: int
) -> None:
    """Batches include a rejected record, a repeated one, and a voided one."""
    chance = random.Random(7)
    house = declare(project, contract("reading", FIELDS, time="taken", complete={"every": "1 hour"}))
    hours = [round(chance.uniform(-30, 60), 2) for _ in range(24)]
    records: list[dict[str, str] | str] = [
        {"device": str(number), "taken": (EPOCH + hour * HOUR).isoformat()} for number, hour in enumerate(hours)
    ]
    broken: list[dict[str, str] | str] = ["{", {"device": "x", "taken": "1970-01-09T00:00:00+00:00 or so"}]
    sliced = [[*records[part::slices], *broken, records[0]] for part in range(slices)]
    reading = house.project.contracts["reading"]
    for part, batch in enumerate(sliced):
        ingest(house.land("reading", *batch).settings, lambda: spark, house.project.contracts)
        landed = [hour for earlier in range(part + 1) for hour in hours[earlier::slices]]
        assert [*find_gaps(house.settings, reading).spans] == by_hand([*landed, hours[0]])
        if part == 1:
            void(house.settings, "reading", batches=[1], reason="a test")
    assert len(time_files(house.settings)) == 1
    assert Log(house.settings, "reading").head().batch == slices
