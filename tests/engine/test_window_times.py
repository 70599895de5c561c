"""Windows over dates, wall-clock times and instants: tables of the engine, slice by slice, against a model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

import lake
from lake import cost
from lake.engine.verify import verify_all
from lake.errors import DeclarationError
from lake.kinds.windows.window import AlignedWindow
from lake.testing import Lakehouse
from tests.checks import present
from tests.laws.models.windows import last_instant, windows
from tests.shop import HEAD, contract, declare, empty, job

LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
FIELDS = {"id": "int", "day": "date", "wall": LOCAL, "at": "timestamp"}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LATENESS = 3 * HOUR
WHOLE_DAYS = {
    "per_day": "Calendar(unit='day', on={on}, zone={zone})",
    "per_week": "Calendar(unit='week', on={on}, zone={zone})",
    "per_quarter": "Calendar(unit='quarter', on={on}, zone={zone}, name='since')",
    "tumbling_days": "Tumbling(length=timedelta(days=2), on={on}, zone={zone}, offset=timedelta(days=1))",
    "hopping_days": "Hopping(length=timedelta(days=3), every=timedelta(days=1), on={on}, zone={zone})",
    "cumulative_days": "Cumulative(length=timedelta(days=4), step=timedelta(days=2), on={on}, zone={zone})",
}
HOURS = {
    "tumbling": "Tumbling(length=timedelta(hours=6), on={on}, zone={zone}, offset=timedelta(minutes=90))",
    "hopping": "Hopping(length=timedelta(hours=6), every=timedelta(hours=2), on={on}, zone={zone})",
    "cumulative": "Cumulative(length=timedelta(hours=12), step=timedelta(hours=4), on={on}, zone={zone})",
}
ROWS = {
    "session": "Session(gap=timedelta(hours=30), on={on})",
    "sliding": "Sliding(length=timedelta(hours=30), on={on}, id='id')",
}
CHANGES = [
    ("America/New_York", "2024-03-10"), ("America/New_York", "2024-11-03"), ("Europe/Berlin", "2024-03-31"),
    ("Australia/Lord_Howe", "2024-04-07"), ("America/Sao_Paulo", "2018-11-04"), ("America/Sao_Paulo", "2018-02-18"),
]  # fmt: skip


def declared(window: str, on: str, zone: str | None) -> str:
    kind = f"Aggregate((), {{'n': Count()}}, window={window.format(on=repr(on), zone=repr(zone))}, is_final=True"
    return f"{kind}, lateness=timedelta(hours=3))"


def events(seed: int, zone: str, around: str) -> list[dict[str, Any]]:
    """Return sights around a clock change of a zone: the instant, and the local wall clock and calendar."""
    chance, place = random.Random(seed), ZoneInfo(zone)
    near = datetime.fromisoformat(around).replace(tzinfo=UTC)
    instants = [near + timedelta(minutes=chance.randint(-4 * 1440, 4 * 1440)) for _ in range(25)]
    instants += [near.replace(hour=0) + n * HOUR for n in range(12)]  # The hours of the clock change
    walls = [at.astimezone(place).replace(tzinfo=None) for at in instants]
    return [
        {"id": n, "day": wall.date(), "wall": wall, "at": at}
        for n, (at, wall) in enumerate(zip(instants, walls, strict=True))
    ]


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, int) else value.isoformat() for name, value in row.items()}


def plain(value: Any) -> Any:
    """Return a value as it is in a table: instants without their zone."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def expected(kind: lake.Aggregate, rows: list[dict[str, Any]], time: str) -> set[tuple[Any, ...]]:
    """Return the table of the model: bounds, count, and finality if `time` is the event time."""
    window, horizon = present(kind.window), max(utc(row[time]) for row in rows) - kind.lateness
    values = [row[window.on] for row in rows]
    if isinstance(window, lake.Session):
        return {(plain(start), plain(end), n, utc(end) <= horizon) for start, end, n in sessions(window.gap, values)}
    if isinstance(window, lake.Sliding):
        length = window.length
        seen = {
            row["id"]: sum(row[window.on] >= other > before(row[window.on], length) for other in values) for row in rows
        }
        return {(row["id"], plain(row[window.on]), seen[row["id"]], utc(row[window.on]) < horizon) for row in rows}
    assert isinstance(window, AlignedWindow)
    counts = Counter(bounds for value in values for bounds in windows(window, value))
    return {(*map(plain, bounds), n, last_instant(window, bounds) <= horizon) for bounds, n in counts.items()}


def utc(value: date | datetime) -> datetime:
    at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def before(value: Any, length: timedelta) -> Any:
    """Return the greatest value that a window of `length` up to `value` excludes; for dates, by their midnights."""
    at = utc(value) - length
    if isinstance(value, datetime):
        return at if value.tzinfo else at.replace(tzinfo=None)
    return at.date()


def sessions(gap: timedelta, values: Iterable[Any]) -> list[tuple[Any, datetime, int]]:
    """Return (start, end, rows); the end of a session of dates is a timestamp."""
    found: list[tuple[Any, Any, int]] = []
    for value in sorted(values):
        if found and utc(value) < utc(found[-1][1]) + gap:
            found[-1] = found[-1][0], value, found[-1][2] + 1
        else:
            found.append((value, value, 1))
    ends = [(utc(last) + gap) for _, last, _ in found]
    return [(start, end, n) for (start, _, n), end in zip(found, ends, strict=True)]


BY_SPARK = "in_process_rows = 0\n"


def build(
    folder: Path, on: str, zone: str | None, kinds: dict[str, str], *, time: str = "at", settings: str = ""
) -> Lakehouse:
    event_time = "cast(wall as timestamp)" if time == "wall" else time
    seen = contract("seen", FIELDS, id=["id"], time=event_time)
    jobs = {name: job(name, declared(window, on, zone), "log('seen')") for name, window in kinds.items()}
    return declare(empty(folder, settings), seen, jobs=jobs)


FEW = {"hopping_days": WHOLE_DAYS["hopping_days"]}
CASES = [
    ("day", None, FEW),
    ("day", None, WHOLE_DAYS | ROWS),
    ("wall", None, WHOLE_DAYS | HOURS | ROWS),
    ("at", None, HOURS | ROWS),
    ("at", "America/New_York", WHOLE_DAYS | HOURS | ROWS),
    ("day", "UTC", WHOLE_DAYS),
    ("wall", "UTC", WHOLE_DAYS | HOURS),
    *[("at", zone, WHOLE_DAYS | HOURS) for zone in ("Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe")],
]


@pytest.mark.turns
@pytest.mark.parametrize(
    ("on", "zone", "kinds"), CASES, ids=lambda case: str(case) if case is None or isinstance(case, str) else ""
)
def test_windows_equal_the_model_in_any_slicing(  # noqa: PLR0917  in all combinations
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    on: str,
    zone: str | None,
    kinds: dict[str, str],
) -> None:
    monkeypatch.setattr(cost, "PRUNED_LOG_ROWS", 0)  # Reads only the part of the log with the times of a window
    time = "at" if zone else on
    keeps_to_the_model(build(tmp_path / "p", on, zone, kinds, time=time), on, zone, time)


@pytest.mark.long
@pytest.mark.parametrize("on", ["day", "wall"])
def test_windows_committed_by_spark_equal_the_model(tmp_path: Path, spark: SparkSession, on: str) -> None:
    keeps_to_the_model(build(tmp_path / "p", on, None, FEW | ROWS, time=on, settings=BY_SPARK), on, None, on)


def keeps_to_the_model(house: Lakehouse, on: str, zone: str | None, time: str) -> None:
    """Land events around clock changes in slices, and compare every table with the model after each."""
    changes = [(place, day) for place, day in CHANGES if zone in {None, "UTC", place}]
    rows = [row | {"id": 100 * n + row["id"]} for n, change in enumerate(changes) for row in events(n, *change)]
    random.Random(on).shuffle(rows)
    cuts = [0, len(rows) // 2, *([] if len(house.project.tables) == 1 else [len(rows) // 2 + 3]), len(rows)]
    for first, last in pairwise(cuts):
        house.land("seen", *map(as_json, rows[first:last])).run()
        for name, declaration in house.project.tables.items():
            assert isinstance(declaration.kind, lake.Aggregate)
            found = {tuple(plain(value) for value in row.values()) for row in house.table(name)}
            assert found == expected(declaration.kind, rows[:last], time), name
    assert {one.verdict for one in verify_all(lambda: house.spark, house.project, on_progress=lambda _: None)} == {
        "identical"
    }


@pytest.mark.parametrize(
    ("on", "zone", "window", "told"),
    [
        ("day", "America/New_York", "per_day", "'day' is a date, which has no zone"),
        ("wall", "Europe/Berlin", "tumbling_days", "'wall' is a timestamp_ntz, which has no zone"),
        ("day", None, "hopping", "'day' is a date, which has whole days"),
        ("day", None, "tumbling", "'day' is a date, which has whole days"),
        ("day", None, "cumulative", "'day' is a date, which has whole days"),
        ("at", None, "per_week", "a calendar week over 'at', a timestamp, needs a time zone"),
        ("at", None, "hopping_days", "needs a time zone"),
    ],
)
def test_window_rejects_unsuited_times(spark: SparkSession, on: str, zone: str | None, window: str, told: str) -> None:
    names: dict[str, Any] = {}
    exec(HEAD, names)
    made = eval((WHOLE_DAYS | HOURS)[window].format(on=repr(on), zone=repr(zone)), names)
    rows = spark.sql("select date'2024-03-01' day, timestamp_ntz'2024-03-01 22:00:00' wall, current_timestamp() at")
    with pytest.raises(DeclarationError, match="fix: ") as fault:
        made.prepare(rows)
    assert told in str(fault.value)


def test_table_over_dates_in_a_zone_is_rejected_with_its_line(tmp_path: Path, spark: SparkSession) -> None:
    house = build(tmp_path / "p", "day", "America/New_York", {"per_day": WHOLE_DAYS["per_day"]})
    house.land("seen", *map(as_json, events(1, *CHANGES[0])))
    with pytest.raises(DeclarationError, match=r"a date, which has no zone \(jobs/silver/per_day\.py:\d+\)") as fault:
        house.run()
    assert "leave out zone" in str(fault.value)


@pytest.mark.long
def test_existing_table_over_dates_in_a_zone_is_not_advanced(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(tmp_path / "p", "day", "America/New_York", {"per_day": WHOLE_DAYS["per_day"]})
    rows = [*map(as_json, events(1, *CHANGES[0]))]
    with monkeypatch.context() as before:
        before.setattr(AlignedWindow, "check", lambda *_: None)
        house.land("seen", *rows[:9]).run()
    house.land("seen", *rows[9:])
    with pytest.raises(DeclarationError, match=r"^per_day: .*which has no zone \(jobs/silver/per_day\.py:\d+\)"):
        house.run()
