"""Windows against published rows and against the standard library's time zones.

Source of the tumbling rows: Flink, window table-valued functions (C7); RisingWave, time windows (C11).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lake import Aggregate, Calendar, Count, DeclarationError, Sum, Tumbling
from lake.kinds.kind import ORDER, SIGN

NEW_YORK = "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def aggregate(spark: SparkSession, kind: Aggregate, rows: list[tuple], schema: str) -> list[tuple]:
    frame = spark.createDataFrame(rows, schema).withColumns({SIGN: F.lit(1), ORDER: F.struct(F.lit(1))})
    table = kind.evaluate(kind.prepare(frame))
    return sorted(tuple(row) for row in table.select(*[c for c in table.columns if not c.startswith("_")]).collect())


def windows(spark: SparkSession, window: Tumbling | Calendar, times: list[datetime]) -> list[tuple]:
    rows = spark.createDataFrame([(t,) for t in times], "t timestamp")
    return [tuple(row) for row in rows.selectExpr(*window.columns().values()).collect()]


BIDS = [
    ("2020-04-15T08:05", 4), ("2020-04-15T08:07", 2), ("2020-04-15T08:09", 5),
    ("2020-04-15T08:11", 3), ("2020-04-15T08:13", 1), ("2020-04-15T08:17", 6),
]  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (timedelta(0), [("08:00", "08:10", 11), ("08:10", "08:20", 10)]),
        (timedelta(minutes=1), [("08:01", "08:11", 11), ("08:11", "08:21", 10)]),
    ],
)
def test_tumbling_sums_as_flink_prints_them(spark, offset, expected):
    kind = Aggregate(
        key=(), measures={"price": Sum("price")}, window=Tumbling(length=timedelta(minutes=10), on="t", offset=offset)
    )
    found = aggregate(spark, kind, [(at(t), p) for t, p in BIDS], "t timestamp, price int")
    assert [(s.strftime("%H:%M"), e.strftime("%H:%M"), p) for s, e, p in found] == expected


@pytest.mark.parametrize(
    ("minutes", "start"),
    [(-16, "06-29 23:54"), (-6, "06-29 23:54"), (4, "06-29 23:54"), (-4, "06-29 23:56"), (6, "06-29 23:56"),
     (16, "06-29 23:56"), (0, "06-30 00:00")],
)  # fmt: skip
def test_an_offset_moves_windows_either_way(spark, minutes, start):
    window = Tumbling(length=timedelta(minutes=10), on="t", offset=timedelta(minutes=minutes))
    [(found, end)] = windows(spark, window, [at("2021-06-30T00:00:04")])
    assert found.strftime("%m-%d %H:%M") == start
    assert end - found == timedelta(minutes=10)


def test_tumbling_counts_as_risingwave_prints_them(spark):
    trips = [("22:00:00", 4), ("22:01:00", 6), ("22:02:10", 3), ("22:03:00", 7), ("22:05:00", 2), ("22:06:00", 8)]
    kind = Aggregate(
        key=(), measures={"n": Count(), "km": Sum("km")}, window=Tumbling(length=timedelta(minutes=2), on="t")
    )
    found = aggregate(spark, kind, [(at(f"2022-07-01T{t}"), km) for t, km in trips], "t timestamp, km int")
    assert [(s.strftime("%H:%M"), n, km) for s, _, n, km in found] == [
        ("22:00", 2, 10), ("22:02", 2, 10), ("22:04", 1, 2), ("22:06", 1, 8)
    ]  # fmt: skip


@pytest.mark.parametrize(("day", "hours"), [("2013-03-10", 23), ("2013-11-03", 25), ("2013-07-04", 24)])
def test_a_day_of_a_clock_change_has_its_own_number_of_hours(spark, day, hours):
    zone = ZoneInfo(NEW_YORK)
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone).astimezone(UTC)
    times = [midnight + timedelta(minutes=30) + timedelta(hours=h) for h in range(hours)]
    hourly = windows(spark, Tumbling(length=timedelta(hours=1), on="t", zone=NEW_YORK), times)
    assert len({start for start, _ in hourly}) == hours
    assert all(end - start == timedelta(hours=1) for start, end in hourly)
    daily = set(windows(spark, Tumbling(length=timedelta(days=1), on="t", zone=NEW_YORK), times))
    assert [end - start for start, end in daily] == [timedelta(hours=hours)]
    assert set(windows(spark, Calendar(unit="day", on="t", zone=NEW_YORK), times)) == {(date.fromisoformat(day),)}


def test_the_last_window_of_a_short_day_ends_at_midnight(spark):
    times = [at("2013-03-11T02:00")]  # 22:00 in New York on the day of 23 hours, 21 elapsed
    [(start, end)] = windows(spark, Tumbling(length=timedelta(hours=6), on="t", zone=NEW_YORK), times)
    assert (start, end) == (datetime(2013, 3, 10, 23), datetime(2013, 3, 11, 4))


def test_calendar_windows_begin_where_the_zone_says(spark):
    times = [at("2014-01-01T04:59:59"), at("2014-01-01T05:00:00")]
    for unit, before, after in [
        ("day", date(2013, 12, 31), date(2014, 1, 1)),
        ("month", date(2013, 12, 1), date(2014, 1, 1)),
        ("year", date(2013, 1, 1), date(2014, 1, 1)),
    ]:
        window = Calendar(unit=unit, on="t", zone=NEW_YORK)
        assert windows(spark, window, times) == [(before,), (after,)]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Tumbling(length=timedelta(hours=1), on="t", zone="New_York"),
        lambda: Tumbling(length=timedelta(hours=7), on="t"),
        lambda: Tumbling(length=timedelta(hours=36), on="t"),
        lambda: Tumbling(length=timedelta(0), on="t"),
    ],
)
def test_a_window_without_a_fixed_place_is_refused(wrong):
    with pytest.raises(DeclarationError):
        wrong()
