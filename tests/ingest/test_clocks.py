"""Event times corrected by the difference between a producer's clock and its receiver's."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contract
from lake.engine import analysis
from lake.engine.analysis import analyse
from lake.engine.inputs import Inputs
from lake.engine.verify import verify_all
from lake.errors import DeclarationError
from lake.ingest.fsck import check_log
from lake.ingest.replay import quarantined_records
from lake.store import duckdb_tables
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.testing import Lakehouse
from tests.shop import contract, declare, empty, job

TRANSPORT = {"transport": True, "default": None}
TIME = {"type": "long", "logicalType": "timestamp-micros"}
FIELDS = {
    "device": "string",
    "taken": "timestamp",
    "sent": (["null", TIME], TRANSPORT),
    "received": (["null", TIME], TRANSPORT),
}
CLOCK = {"sent": "sent", "received": "received"}
NOON = datetime(2024, 4, 1, 12, tzinfo=UTC)


@pytest.fixture
def devices(tmp_path: Path) -> Lakehouse:
    """Project with readings of devices, counted by device."""
    settings = empty(tmp_path / "p")
    hours = 'Aggregate(key="device", measures={"readings": Count()})'
    reading = contract("reading", FIELDS, time="taken", id=["device"], clock=CLOCK)
    return declare(settings, reading, jobs={"hourly": job("hourly", hours, 'log("reading")')})


def record(device: str, taken: datetime, sent: datetime | None, received: datetime | None) -> dict[str, Any]:
    times = {"taken": taken, "sent": sent, "received": received}
    return {"device": device} | {name: time and time.isoformat() for name, time in times.items()}


def times(house: Lakehouse) -> dict[str, Any]:
    query = "SELECT device, _time::TIMESTAMPTZ AS _time FROM t WHERE _bucket >= 0 ORDER BY device"
    return {row["device"]: row["_time"] for row in duckdb_tables.rows(Log(house.settings, "reading").path, query)}


def test_event_time_is_corrected_by_the_difference_of_both_clocks(devices: Lakehouse, spark: SparkSession) -> None:
    shifts = [None, timedelta(0), timedelta(days=-400), timedelta(hours=3), timedelta(microseconds=1)]
    moments = [None if shift is None else NOON + shift for shift in shifts]
    cases = {f"{sent} {received}": (sent, received) for sent, received in itertools.product(moments, moments)}
    devices.land("reading", *(record(name, NOON, *case) for name, case in cases.items())).run()
    wanted = {
        name: NOON + (received - sent) if sent is not None and received is not None else NOON
        for name, (sent, received) in cases.items()
    }
    assert times(devices) == wanted
    assert {one.verdict for one in verify_all(lambda: spark, devices.project, on_progress=lambda _: None)} == {
        "identical"
    }


@pytest.mark.long
def test_reading_delivered_again_by_another_way_is_a_duplicate(devices: Lakehouse, spark: SparkSession) -> None:
    devices.land("reading", record("a", NOON, NOON, NOON + timedelta(days=40))).run()
    again = record("a", NOON, NOON + timedelta(hours=1), NOON + timedelta(days=900))
    devices.land("reading", again, record("b", NOON, NOON, NOON)).run()
    assert times(devices) == {"a": NOON + timedelta(days=40), "b": NOON}
    assert Log(devices.settings, "reading").head().counts["duplicates"] == 1
    assert check_log(devices.settings, "reading").faults == []  # and moves no watermark


@pytest.mark.long
def test_time_outside_all_years_is_rejected_and_stops_no_other_event(devices: Lakehouse, spark: SparkSession) -> None:
    first, last = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
    devices.land("reading", record("far", last, first, last), record("near", NOON, NOON, NOON)).run()
    assert times(devices) == {"near": NOON}
    assert len([*quarantined_records(devices.settings)]) == 1


HOURLY = "Aggregate('device', {'n': Count()}, window=Tumbling(length=timedelta(hours=1), on='at'), is_final=True)"
MATCHES = "Pattern('device', sequence='at', steps=[Step('a')], measures={'n': Count()}, within=timedelta(hours=1))"
AS_OF = "Enrich('device', AsOf('room', time='since'), time='at')"
PAIRS = "Join('device', within=timedelta(hours=1), times=('at', 'since'))"
ONE, TWO = ("log('reading')",), ("log('reading')", "log('room')")
ROOM = "rows1.selectExpr('device as room', 'since')"


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kind", "inputs", "returns", "is_wrong"),
    [
        (HOURLY, ONE, "rows.where('taken is not null').selectExpr('device', 'taken + interval 1 hour as at')", True),
        (HOURLY, ONE, "rows.selectExpr('device', 'taken as at')", True),
        (
            HOURLY,
            ONE,
            "rows.selectExpr('device', 'cast(taken as date) as day', 'date_trunc(\"day\", taken) as at')",
            True,
        ),
        (HOURLY, ONE, "rows.selectExpr('device', 'coalesce(taken, _time) as at')", True),
        (HOURLY, ONE, "rows.where('taken is not null').selectExpr('device', '_time as at', 'taken')", False),
        (HOURLY, ONE, "rows.selectExpr('device', 'received as at')", False),
        (MATCHES, ONE, "rows.selectExpr('device', 'taken as at')", True),
        (MATCHES.replace(", within=timedelta(hours=1)", ""), ONE, "rows.selectExpr('device', 'taken as at')", False),
        (AS_OF, TWO, f"rows.selectExpr('device', 'device as room', 'taken as at'), {ROOM}", True),
        (AS_OF, TWO, f"rows.selectExpr('device', 'device as room', '_time as at'), {ROOM}", False),
        (PAIRS, TWO, "rows.selectExpr('device', 'taken as at'), rows1", True),
        (PAIRS, TWO, "rows.selectExpr('device', '_time as at'), rows1", False),
        ("Latest('device', sequence='taken')", ONE, "rows", False),
    ],
)
def test_kind_by_an_uncorrected_time_is_rejected(  # noqa: PLR0917  in all combinations
    tmp_path: Path, spark: SparkSession, kind: str, inputs: tuple[str, ...], returns: str, is_wrong: bool
) -> None:
    reading = contract("reading", FIELDS, time="taken", id=["device"], clock=CLOCK)
    room = contract("room", {"device": "string", "since": "timestamp"}, time="since")
    house = declare(empty(tmp_path / "p"), reading, room, jobs={"t": job("t", kind, *inputs, returns=returns)})
    cut = Cut(0, {}, 0, NOON)
    with ExitStack() as refused:
        if is_wrong:
            told = r"goes by 'at', which is made of 'taken' .*clock.*\(jobs/silver/t.py:\d+\)\n.*return .*: _time as at"
            refused.enter_context(pytest.raises(DeclarationError, match=told))
        analyse(Inputs(lambda: spark, house.project, cut), house.project.tables["t"])


@pytest.mark.long
def test_table_by_uncorrected_times_is_not_advanced(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = contract("reading", FIELDS, time="taken", id=["device"], clock=CLOCK)
    jobs = {"hourly": job("hourly", HOURLY, ONE[0], returns="rows.selectExpr('device', 'taken as at')")}
    house = declare(empty(tmp_path / "p"), reading, jobs=jobs)
    with monkeypatch.context() as before:
        before.setattr(analysis, "check_clocks", lambda *_: None)
        house.land("reading", record("a", datetime(1970, 1, 1, tzinfo=UTC), NOON, NOON)).run()
    house.land("reading", record("b", NOON, NOON, NOON))
    with pytest.raises(DeclarationError, match="made of 'taken'"):
        house.run()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clock": {}}, "invalid clock"),
        ({"clock": {"sent": "sent", "received": "recieved"}}, "did you mean 'received'?"),
        ({"clock": {"sent": "taken", "received": "received"}}, 'add "transport": true'),
        ({"clock": {"sent": "device", "received": "received"}}, "of type string"),
        ({"time": None}, "events have none"),
        ({"id": ["sent"]}, "is of the identity"),
    ],
)
def test_wrong_clock_declaration_is_reported(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    settings = empty(tmp_path / "p")
    declare(settings, contract("reading", FIELDS, **{"time": "taken", "clock": CLOCK} | change))
    with pytest.raises(DeclarationError) as fault:
        load_contract(settings, "reading")
    assert told in str(fault.value)
