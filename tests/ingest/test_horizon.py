"""Late and final rows of contracts with producers: by a model, by batches, and by the engine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract
from lake.engine.verify import verify_all
from lake.errors import DeclarationError
from lake.ingest import ingest as ingesting
from lake.ingest.append import append
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.delivery import Closing
from lake.ingest.events import void
from lake.ingest.fsck import check_log
from lake.ingest.horizon import Horizon
from lake.ingest.ingest import Ingestion, ingest
from lake.ingest.replay import quarantined_records, replay
from lake.ops.render import as_data, as_text
from lake.ops.status import status
from lake.sources.declared import DeclaredSource
from lake.sources.source import Lag, Source
from lake.store import delta, duckdb_tables
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.table_logs import forget_all
from lake.testing import Commands, Kill, Lakehouse
from tests.checks import no_spark
from tests.laws.models.horizon import Model, Told
from tests.shop import contract, declare, empty, job
from tests.warehouse import commit

NOON = datetime(2024, 4, 1, 12, tzinfo=UTC)
IDLE, LATENESS = timedelta(hours=2), timedelta(minutes=30)
FIELDS = {"room": "string?", "device": "string?", "number": "long", "taken": "timestamp", "kind": "string"}
HORIZON = {"producer": "device", "punctuation": "kind = 'alive'", "idle": "2 hours"}
HOURLY = job(
    "hourly",
    'Aggregate("room", {"readings": Count()}, window=Tumbling(length=timedelta(hours=1), on="taken"),'
    ' late="drop", lateness=timedelta(minutes=30), is_final=True)',
    'log("reading")',
)


def reading(**about: Any) -> dict[str, Any]:
    return contract("reading", FIELDS, **{"id": ["number"], "time": "taken", "horizon": HORIZON} | about)


@pytest.fixture
def rooms(tmp_path: Path) -> Lakehouse:
    """Project with readings of devices in rooms, counted by the hour until all devices are past it."""
    return declare(empty(tmp_path / "p"), reading(), jobs={"hourly": HOURLY})


def record(told: Told) -> dict[str, Any]:
    kind = "alive" if told.room is None else "reading"
    about = {"room": told.room, "device": told.producer, "number": told.number, "kind": kind}
    return about | {"taken": told.at.isoformat()}


@dataclass
class History:
    """Random batches of devices whose clocks diverge, with silent devices and repeated records."""

    chance: random.Random
    now: datetime = NOON
    sent: list[Told] = field(default_factory=list)
    at: dict[str, datetime] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def batch(self) -> list[Told]:
        self.now += timedelta(minutes=self.chance.randint(1, 90))
        speaking = [name for name in "abcd" if self.chance.random() < 0.5]
        told = [self._record(name) for name in speaking for _ in range(self.chance.randint(1, 3))]
        told += [self._record(None)] if self.chance.random() < 0.2 else []
        self.sent += told
        return told + ([self.chance.choice(self.sent)] if self.sent and self.chance.random() < 0.5 else [])

    def _record(self, name: str | None) -> Told:
        at = self.at.get(name or "", self.now - timedelta(minutes=self.chance.randint(0, 240)))
        at += timedelta(minutes=self.chance.randint(-60, 90))
        self.at[name or ""] = at
        alive = name is not None and self.chance.random() < 0.25
        return Told(name, at, next(self.numbers), None if alive else self.chance.choice("xy"))


@pytest.mark.parametrize("seed", range(300))
def test_horizon_equals_the_one_counted_from_the_first_batch_on(seed: int) -> None:
    history, model, horizon = History(random.Random(seed)), Model(IDLE, LATENESS), Horizon("device")
    for _ in range(20):
        told = history.batch()
        model.take(history.now, told)
        fresh = model.batches[-1].told
        times = {kind: _greatest(one for one in fresh if (one.room is None) == kind) for kind in (False, True)}
        latest = max((one.at for one in fresh), default=None)
        horizon = horizon.after(times[False], times[True], latest, history.now)
        assert _stands(horizon) == (model.horizons()[-1], model.open(len(model.batches)))
        assert horizon.is_ended == model.is_ended()
        history.now += timedelta(minutes=history.chance.randint(0, 200))
        if model.quiet(history.now):
            before, horizon = horizon.at, horizon.without(horizon.idle(history.now, IDLE))
            assert before is None or (horizon.at is not None and horizon.at >= before)
            assert _stands(horizon) == (model.horizons()[-1], model.open(len(model.batches)))
            assert horizon.is_ended == model.is_ended()
        assert not horizon.idle(history.now, IDLE)


def _stands(horizon: Horizon) -> tuple[datetime | None, dict[str, datetime]]:
    return horizon.at, {name: one.latest for name, one in horizon.producers.items()}


def _greatest(told: Iterable[Told]) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for one in told:
        if one.producer is not None:
            found[one.producer] = max(one.at, found.get(one.producer, one.at))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_horizon_is_the_same_for_every_slicing_when_all_producers_are_known(seed: int) -> None:
    chance = random.Random(seed)
    times = {name: NOON + timedelta(minutes=chance.randint(0, 60)) for name in "abc"}
    start = Horizon("device").after(times, {}, max(times.values()), NOON)
    told = [(chance.choice("abc"), NOON + timedelta(minutes=chance.randint(-60, 300))) for _ in range(30)]
    ends = []
    for parts in (1, 5, 30):
        horizon = start
        for first in range(0, 30, 30 // parts):
            part = told[first : first + 30 // parts]
            most = {name: max(at for other, at in part if other == name) for name, _ in part}
            horizon = horizon.after(most, {}, max(most.values()), NOON)
        ends.append(_stands(horizon))
    assert ends[0] == ends[1] == ends[2]


def take(house: Lakehouse, now: datetime) -> None:
    ingest(house.settings, lambda: house.spark, house.project.contracts, now=now)


def event(house: Lakehouse, chance: random.Random, voided: set[int]) -> tuple[int, str] | None:
    """Return the number and the place of an event that is not void yet."""
    query = "SELECT number, _batch, _bucket, _offset FROM t ORDER BY ALL"
    rows = [
        row for row in duckdb_tables.rows(Log(house.settings, "reading").path, query) if row["number"] not in voided
    ]
    row = chance.choice(rows) if rows else None
    return (row["number"], f"{row['_batch']}:{row['_bucket']}:{row['_offset']}") if row else None


def windows(house: Lakehouse) -> dict[tuple[str, datetime], tuple[int, bool]]:
    return {(r["room"], r["window_start"]): (r["readings"], r["is_final"]) for r in house.table("hourly")}


def watermarks(house: Lakehouse) -> dict[int, datetime | None]:
    query = "SELECT DISTINCT _batch, _watermark::TIMESTAMPTZ AS at FROM t ORDER BY _batch"
    return {row["_batch"]: row["at"] for row in duckdb_tables.rows(Log(house.settings, "reading").path, query)}


def horizon_of(house: Lakehouse) -> Horizon:
    log, wanted = Log(house.settings, "reading"), load_contract(house.settings, "reading")
    return Horizon.of(log.head(), wanted)


def at(*told: tuple[str, int, str | None]) -> list[dict[str, Any]]:
    """Return records of (device, minutes after noon, room)."""
    return [
        record(Told(device, NOON + timedelta(minutes=minutes), ord(device) * 10**6 + minutes, room))
        for device, minutes, room in told
    ]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["after", "before"])
def test_kill_at_the_commit_of_a_closing_closes_producers_once(
    rooms: Lakehouse, commands: Commands, moment: str
) -> None:
    rooms.land("reading", *at(("a", 0, "x"), ("b", 50, "x")))
    take(rooms, NOON)
    assert commands.lake("ingest", at=rooms, kill=Kill(f"log.{moment}")).landed
    assert [commands.lake(*words, at=rooms).code for words in (["run"], ["ingest"], ["verify"])] == [0, 0, 0]
    forget_all()
    said = [head.horizon.get("closed") for head in Log(rooms.settings, "reading").heads()]
    assert said == [["a", "b"], None]
    assert check_log(rooms.settings, "reading").faults == []


@pytest.mark.long
def test_producers_are_not_closed_while_earlier_files_are_pending(rooms: Lakehouse, spark: SparkSession) -> None:
    rooms.land("reading", *at(("a", 0, "x"), ("b", 10, "x")))
    take(rooms, NOON)
    later = NOON + timedelta(hours=5)
    small = Lakehouse(rooms.settings.project, rooms.home)
    object.__setattr__(small.settings, "batch_files", 1)
    small.land("reading", *at(("b", 300, "x")))
    small.land("reading", *at(("a", 290, "x")))
    Ingestion(small.settings, lambda: small.spark, small.project.contracts, batches=1, now=later).run()
    assert {*horizon_of(small).producers} == {"a", "b"}
    Ingestion(small.settings, lambda: small.spark, small.project.contracts, batches=1, now=later).run()
    assert horizon_of(small).at == NOON + timedelta(minutes=290)
    assert len(Log(small.settings, "reading").heads()) == 3


def make_log(house: Lakehouse, now: datetime) -> Log:
    """Make a log with one empty batch, in which "a" and "b" were active at this time."""
    log, horizon = Log(house.settings, "reading"), Horizon("device").after({"a": NOON, "b": NOON}, {}, NOON, now)
    counts = dict.fromkeys(("read", "accepted", "duplicates", "quarantined", "control"), 0)
    said = {"batch": 1, "offsets": {}, "watermark": NOON.isoformat(), "counts": counts, "files": []}
    position = delta.start(log.app).next(**said, contract=1, content={}, at=now.isoformat(), horizon=horizon.as_json)
    commit(log.path, "SELECT 1::BIGINT AS _batch, 0::INTEGER AS _bucket LIMIT 0", position)
    return log


@dataclass(frozen=True)
class Waiting:
    """Source with a given lag."""

    said: Lag

    def lag(self, after: object) -> Lag:
        return self.said

    def close(self) -> None: ...


@pytest.mark.parametrize("silent", [timedelta(minutes=119), timedelta(minutes=120)])
@pytest.mark.parametrize("file", ["none", "before", "since"])
@pytest.mark.parametrize("drained", [True, False])
@pytest.mark.parametrize(
    ("lag", "is_read"),
    [
        (None, True),
        (Lag(events=0), True),
        (Lag(events=0, at_least=True), False),
        (Lag(events=3, seconds=0.0), True),
        (Lag(events=3, seconds=1e6), False),
        (Lag(events=3), False),
        (Lag(), False),
    ],
)
def test_silent_producer_is_closed_when_all_earlier_records_are_in_the_log(  # noqa: PLR0917  in all combinations
    rooms: Lakehouse,
    monkeypatch: pytest.MonkeyPatch,
    silent: timedelta,
    file: str,
    drained: bool,
    lag: Lag | None,
    is_read: bool,
) -> None:
    now = datetime.now(UTC)
    log, closings = make_log(rooms, now - silent), []
    monkeypatch.setattr(ingesting, "append", lambda *about, **_: closings.append(about[3](log.head())))
    source = DeclaredSource("kafka", "kafka", ("reading",), "", lambda: cast("Source", Waiting(lag or Lag())))
    if file == "before":
        rooms.land("reading", record(Told("a", NOON, 1, "x")))
    [one] = ingesting.idle_closings(
        rooms.settings, rooms.project.contracts.values(), {"kafka": source} if lag else {}, now
    )
    if file == "since":
        rooms.land("reading", record(Told("a", NOON, 1, "x")))
    one.close(no_spark, {}, drained=drained, now=None)
    closes = silent >= IDLE and file != "before" and (drained or is_read)
    assert closings == ([Closing(now)] if closes else [])


@pytest.mark.parametrize("is_first", [True, False])
def test_closing_of_idle_producers_is_reported_by_the_process_that_closed_them(
    rooms: Lakehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    now = datetime.now(UTC)
    make_log(rooms, now - IDLE)
    contract_versions.register(rooms.settings, load_contract(rooms.settings, "reading"))
    [producers] = ingesting.idle_closings(rooms.settings, rooms.project.contracts.values(), {}, now)

    def after_another(settings: Settings, spark: Any, contract: Contract, deliver: Any, now: datetime) -> BatchCounts:
        if not is_first:
            append(settings, spark, contract, lambda _: Closing(now), now=now)
        return append(settings, spark, contract, deliver, now=now)

    monkeypatch.setattr(ingesting, "append", after_another)
    producers.close(no_spark, {}, drained=True, now=now)
    assert [record.getMessage() for record in caplog.records] == ["reading: closed idle producers: 'a', 'b'"] * is_first


@pytest.mark.long
def test_producers_beyond_the_limit_are_rejected_and_accepted_after_it_grows(
    tmp_path: Path, spark: SparkSession
) -> None:
    house = declare(empty(tmp_path / "p"), reading(horizon=HORIZON | {"limit": 3}))
    house.land("reading", *at(("b", 0, "x"), ("d", 0, "x")))
    take(house, NOON)
    house.land("reading", *at(("c", 5, "x"), ("e", 5, None), ("a", 5, None), ("f", 5, "x"), ("b", 9, "x")))
    take(house, NOON + timedelta(minutes=10))
    assert {*horizon_of(house).producers} == {"a", "b", "d"}
    refused = [*quarantined_records(house.settings)]
    assert sorted((row.reason, row.detail.partition(" ")[0]) for row in refused) == [
        ("too many producers", name) for name in "cef"
    ]
    assert all(json.loads(row.raw)["device"] in "cef" for row in refused)
    counts = {"read": 5, "accepted": 1, "duplicates": 0, "quarantined": 3, "control": 1}
    assert Log(house.settings, "reading").head().counts == counts
    assert check_log(house.settings, "reading").faults == []
    declare(house.settings, reading(horizon=HORIZON | {"limit": 6}))
    again = Lakehouse(house.settings.project, house.home)
    replay(again.settings, lambda: spark, now=NOON + timedelta(minutes=20))
    assert [*quarantined_records(again.settings)] == []
    assert {*horizon_of(again).producers} == {*"abcdef"}
    assert check_log(again.settings, "reading").faults == []


@pytest.mark.long
def test_status_names_the_producer_that_holds_the_horizon_back(tmp_path: Path, spark: SparkSession) -> None:
    house = declare(empty(tmp_path / "p"), reading(complete={"every": "1 day"}))
    two = 2 * 24 * 60
    house.land("reading", *at(("a", 0, "x"), ("b", 300, "x"), ("b", two, None), ("c", 1500, None)))
    take(house, NOON + timedelta(days=2))
    state = status(house.project)
    [stream] = state.streams
    assert stream.event_time == NOON + timedelta(days=2)
    assert stream.horizon is not None
    assert (stream.horizon.producer, stream.horizon.at, stream.horizon.producers) == ("a", NOON, 3)
    told = next(line for line in as_text(state) if line.startswith("horizon"))
    assert told.startswith("horizon  reading: 2024-04-01 12:00:00Z, held back by 'a' of 3 producers, 2 d behind")
    assert as_data(state)["streams"][0]["horizon"]["producer"] == "a"
    assert stream.missing == ""
    house.land("reading", *at(("a", two + 10, None), ("c", two, None)))
    take(house, NOON + timedelta(days=2, hours=1))
    [stream] = status(house.project).streams
    assert stream.missing == "1 span of time without an event: 2024-04-02 00:00:00Z to 2024-04-03 00:00:00Z"


@pytest.mark.long
def test_horizon_never_goes_back_when_a_contract_begins_or_ends_it(tmp_path: Path, spark: SparkSession) -> None:
    plain = reading()
    del plain["lake"]["horizon"]
    house = declare(empty(tmp_path / "p"), plain)
    house.land("reading", *at(("a", 60, "x"), ("b", 0, "x")))
    take(house, NOON + timedelta(hours=1))
    marks = [Log(house.settings, "reading").head().watermark]
    for number, (schema, minutes) in enumerate([(reading(), 50), (reading(), 70), (plain, 65)]):
        declare(house.settings, schema)
        house = Lakehouse(house.settings.project, house.home)
        house.land("reading", *at(("a", minutes + 20, "x"), ("b", minutes, "x")))
        take(house, NOON + timedelta(hours=1, minutes=number))
        marks.append(Log(house.settings, "reading").head().watermark)
    assert marks == [NOON + timedelta(minutes=minutes) for minutes in (60, 60, 70, 90)]
    assert check_log(house.settings, "reading").faults == []


@pytest.mark.long
@pytest.mark.parametrize(("seed", "steps"), [(1, 5), *((seed, 15) for seed in range(2, 8))])
def test_tables_decide_late_and_final_like_the_model(
    rooms: Lakehouse, spark: SparkSession, seed: int, steps: int
) -> None:
    history, model = History(random.Random(seed)), Model(IDLE, LATENESS)
    for step in range(1, steps + 1):
        told = history.batch()
        if told:
            model.take(history.now, told)
            model.quiet(history.now)
            rooms.land("reading", *map(record, told))
            take(rooms, history.now)
        if step % 2 == 0:
            history.now += timedelta(minutes=history.chance.randint(60, 240))
            model.quiet(history.now)
            take(rooms, history.now)
        if step % 4 == 0 and (chosen := event(rooms, history.chance, model.voided)):
            void(rooms.settings, "reading", [chosen[1]], reason="a test")
            model.voided.add(chosen[0])
        if step % 5 == 0:
            rooms.run(now=history.now)
            assert windows(rooms) == model.windows()
    assert watermarks(rooms) == {
        number: horizon
        for number, (horizon, batch) in enumerate(zip(model.horizons(), model.batches, strict=False), 1)
        if any(one.room for one in batch.told)
    }
    assert any(batch.closed for batch in model.batches)
    assert check_log(rooms.settings, "reading").faults == []
    assert {one.verdict for one in verify_all(lambda: spark, rooms.project, on_progress=lambda _: None)} == {
        "identical"
    }


KINDS = {
    "hourly": HOURLY,
    "session": job(
        "session",
        'Aggregate("room", {"n": Count()}, window=Session(gap=timedelta(hours=9), on="taken"), is_final=True)',
        'log("reading")',
    ),
    "sliding": job(
        "sliding",
        'Aggregate("room", {"n": Count()}, window=Sliding(length=timedelta(hours=9), on="taken", id="number"),'
        " is_final=True)",
        'log("reading")',
    ),
    "unpaired": job(
        "unpaired", 'Join("number", how="left", is_final=True)', 'log("reading")', 'log("sold")',
        returns="rows.select('number', 'room'), rows1.selectExpr('number', 'number as sold')",
    ),
    "match": job(
        "match",
        'Pattern("room", sequence="taken", steps=[Step("a", times="{2,}")], measures={"n": Count()}, is_final=True)',
        'log("reading")',
    ),
}  # fmt: skip
SOLD = contract(
    "sold", {"number": "long", "device": "string", "at": "timestamp"}, time="at", id=["number"],
    horizon={"producer": "device", "idle": "2 hours"},
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("names", [("hourly",), tuple(KINDS)], ids=["one", "all"])
def test_rows_are_all_final_while_all_producers_are_closed(
    tmp_path: Path, spark: SparkSession, names: tuple[str, ...]
) -> None:
    house = declare(empty(tmp_path / "p"), reading(), SOLD, jobs={name: KINDS[name] for name in names})

    def final() -> dict[str, set[bool]]:
        return {name: {row["is_final"] for row in house.table(name)} for name in names}

    house.land("reading", *at(("a", 0, "x"), ("b", 50, "x"), ("b", 51, "x")))
    house.land("sold", {"number": -1, "device": "s", "at": NOON.isoformat()}).run(now=NOON)
    assert final() == {name: {False} for name in names}
    house.run(now=NOON + timedelta(hours=3))  # closes all producers
    assert final() == {name: {True} for name in names}
    house.land("reading", *at(("a", 59, "x"))).run(now=NOON + timedelta(hours=4))  # "a" returns to an open window
    assert final()["hourly"] == {False}
    house.run(now=NOON + timedelta(hours=7))
    assert final() == {name: {True} for name in names}
    assert {one.verdict for one in verify_all(lambda: spark, house.project, on_progress=lambda _: None)} == {
        "identical"
    }
    assert check_log(house.settings, "reading").faults == []


@pytest.mark.long
def test_slices_omit_tables_that_depend_on_producers(tmp_path: Path, spark: SparkSession) -> None:
    final = HOURLY.replace('late="drop"', 'late="correct"')
    plain = final.replace(", is_final=True", "").replace("hourly", "plain")
    house = declare(empty(tmp_path / "p"), reading(), jobs={"hourly": final, "plain": plain})
    for hours in range(1, 4):
        house.land("reading", *at(("a", 60 * hours, "x"), ("b" if hours == 1 else "c", 50 * hours, "y")))
        house.run(now=NOON + timedelta(hours=3 * hours))
    assert any("closed" in head.horizon for head in Log(house.settings, "reading").heads())
    house.check_laws()


def contract_of(tmp_path: Path, **about: Any) -> Contract:
    settings = empty(tmp_path / "p")
    declare(settings, reading(**about))
    return load_contract(settings, "reading")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"horizon": "device"}, "invalid horizon"),
        ({"horizon": {"idle": "1 day"}}, "invalid horizon"),
        ({"horizon": {"producer": "devise"}}, "did you mean 'device'?"),
        ({"horizon": {"producer": ["device"]}}, "unknown producer"),
        ({"horizon": {"producer": "taken"}}, "of type timestamp as producer"),
        ({"horizon": HORIZON | {"punctation": "kind = 'a'"}}, "did you mean 'punctuation'?"),
        ({"horizon": HORIZON | {"punctuation": 7}}, "invalid punctuation"),
        ({"horizon": HORIZON | {"punctuation": "sort = 'alive'"}}, "uses no field"),
        ({"horizon": HORIZON | {"punctuation": "taken > now()"}}, "is not deterministic: now"),
        ({"horizon": HORIZON | {"idle": "0 hours"}}, "invalid idle"),
        ({"horizon": HORIZON | {"idle": 7}}, "invalid idle"),
        ({"horizon": HORIZON | {"limit": 0}}, "invalid limit"),
        ({"horizon": HORIZON | {"limit": True}}, "invalid limit"),
        ({"time": None}, "events have none"),
    ],
)
def test_wrong_horizon_declaration_is_reported_with_its_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=r"schemas/reading\.avsc:\d+") as fault:
        contract_of(tmp_path, **change)
    assert told in str(fault.value)


def test_personal_field_is_rejected_as_producer(tmp_path: Path) -> None:
    fields = FIELDS | {"device": ("string", {"personal": True})}
    settings = empty(tmp_path / "p")
    declare(settings, contract("reading", fields, time="taken", subject="room", horizon=HORIZON))
    with pytest.raises(DeclarationError, match="which is personal"):
        load_contract(settings, "reading")
