"""Windows against published rows and against the standard library's time zones.

Sources of the rows: Flink, window table-valued functions (C7); RisingWave, time windows (C11); Spark, structured
streaming (C12); Materialize, temporal filters (C15).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import (
    Aggregate,
    Calendar,
    Count,
    CountDistinct,
    Cumulative,
    DeclarationError,
    Hopping,
    LastValue,
    Max,
    Session,
    Sliding,
    Sum,
    Tumbling,
    late,
)
from lake.kinds.columns import ORDER, SIGN
from lake.kinds.windows.window import Window
from lake.testing.laws import at_once, by_slices
from tests.checks import present
from tests.kinds.events import batches, table

NEW_YORK = "America/New_York"
Unit = Literal["day", "week", "month", "quarter", "year"]
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def aggregate(spark: SparkSession, kind: Aggregate, rows: list[tuple[Any, ...]], schema: str) -> list[tuple[Any, ...]]:
    frame = spark.createDataFrame(rows, schema).withColumns({SIGN: F.lit(1), ORDER: F.struct(F.lit(1))})
    table = kind.evaluate(kind.prepare(frame))
    return sorted(tuple(row) for row in table.select(*[c for c in table.columns if not c.startswith("_")]).collect())


def windows(spark: SparkSession, window: Window, times: list[datetime]) -> list[tuple[Any, ...]]:
    """Return the windows of each time, in the order of `times`."""
    rows = spark.createDataFrame(list(enumerate(times)), "n int, t timestamp")
    return [tuple(row) for row in window.prepare(rows).orderBy("n", *window.names).select(*window.names).collect()]


BIDS = [
    ("2020-04-15T08:05", 4), ("2020-04-15T08:07", 2), ("2020-04-15T08:09", 5),
    ("2020-04-15T08:11", 3), ("2020-04-15T08:13", 1), ("2020-04-15T08:17", 6),
]  # fmt: skip
BID = "t timestamp, price int"
TRIPS = [("22:00:00", 4), ("22:01:00", 6), ("22:02:10", 3), ("22:03:00", 7), ("22:05:00", 2), ("22:06:00", 8)]


@pytest.mark.turns
@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (timedelta(0), [("08:00", "08:10", 11), ("08:10", "08:20", 10)]),
        (timedelta(minutes=1), [("08:01", "08:11", 11), ("08:11", "08:21", 10)]),
    ],
)
def test_tumbling_window_sums_as_in_flink(
    spark: SparkSession, offset: timedelta, expected: list[tuple[str, str, int]]
) -> None:
    kind = Aggregate(
        key=(), measures={"price": Sum("price")}, window=Tumbling(length=timedelta(minutes=10), on="t", offset=offset)
    )
    found = aggregate(spark, kind, [(at(t), p) for t, p in BIDS], "t timestamp, price int")
    assert [(s.strftime("%H:%M"), e.strftime("%H:%M"), p) for s, e, p in found] == expected


@pytest.mark.turns
@pytest.mark.parametrize(
    ("minutes", "start"),
    [(-16, "06-29 23:54"), (-6, "06-29 23:54"), (4, "06-29 23:54"), (-4, "06-29 23:56"), (6, "06-29 23:56"),
     (16, "06-29 23:56"), (0, "06-30 00:00")],
)  # fmt: skip
def test_tumbling_window_offset_moves_either_way(spark: SparkSession, minutes: int, start: str) -> None:
    window = Tumbling(length=timedelta(minutes=10), on="t", offset=timedelta(minutes=minutes))
    [(found, end)] = windows(spark, window, [at("2021-06-30T00:00:04")])
    assert found.strftime("%m-%d %H:%M") == start
    assert end - found == timedelta(minutes=10)


@pytest.mark.long
def test_tumbling_window_counts_as_in_risingwave(spark: SparkSession) -> None:
    kind = Aggregate(
        key=(), measures={"n": Count(), "km": Sum("km")}, window=Tumbling(length=timedelta(minutes=2), on="t")
    )
    found = aggregate(spark, kind, [(at(f"2022-07-01T{t}"), km) for t, km in TRIPS], "t timestamp, km int")
    assert [(s.strftime("%H:%M"), n, km) for s, _, n, km in found] == [
        ("22:00", 2, 10), ("22:02", 2, 10), ("22:04", 1, 2), ("22:06", 1, 8)
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("day", "hours"), [("2013-03-10", 23), ("2013-11-03", 25), ("2013-07-04", 24)])
def test_day_window_has_the_hours_of_its_clock_change(spark: SparkSession, day: str, hours: int) -> None:
    zone = ZoneInfo(NEW_YORK)
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone).astimezone(UTC)
    times = [midnight + timedelta(minutes=30) + timedelta(hours=h) for h in range(hours)]
    hourly = windows(spark, Tumbling(length=timedelta(hours=1), on="t", zone=NEW_YORK), times)
    assert len({start for start, _ in hourly}) == hours
    assert all(end - start == timedelta(hours=1) for start, end in hourly)
    daily = set(windows(spark, Tumbling(length=timedelta(days=1), on="t", zone=NEW_YORK), times))
    assert [end - start for start, end in daily] == [timedelta(hours=hours)]
    assert set(windows(spark, Calendar(unit="day", on="t", zone=NEW_YORK), times)) == {(date.fromisoformat(day),)}


def test_tumbling_window_ends_at_midnight_on_a_short_day(spark: SparkSession) -> None:
    times = [at("2013-03-11T02:00")]  # 22:00 in New York on the day of 23 hours, 21 elapsed
    [(start, end)] = windows(spark, Tumbling(length=timedelta(hours=6), on="t", zone=NEW_YORK), times)
    assert (start, end) == (datetime(2013, 3, 10, 23), datetime(2013, 3, 11, 4))


@pytest.mark.long
def test_calendar_window_begins_at_midnight_of_its_zone(spark: SparkSession) -> None:
    times = [at("2014-01-01T04:59:59"), at("2014-01-01T05:00:00")]
    units: list[tuple[Unit, date, date]] = [
        ("day", date(2013, 12, 31), date(2014, 1, 1)),
        ("month", date(2013, 12, 1), date(2014, 1, 1)),
        ("year", date(2013, 1, 1), date(2014, 1, 1)),
    ]
    for unit, before, after in units:
        window = Calendar(unit=unit, on="t", zone=NEW_YORK)
        assert windows(spark, window, times) == [(before,), (after,)]


def day_starts(window: Hopping | Cumulative, length: timedelta, near: date) -> list[datetime]:
    """Return the starts of windows of `length` (at most a day) around a date, by the standard library's time zones."""
    zone, starts = ZoneInfo(present(window.zone)), []
    for day in (near + timedelta(days=n) for n in range(-4, 5)):
        midnight, following = (
            datetime.combine(d, datetime.min.time(), zone).astimezone(UTC) for d in (day, day + timedelta(days=1))
        )
        count = 1 if length == DAY else -((midnight - following) // length)
        starts += [midnight + n * length for n in range(count)]
    return starts


CLOCK_CHANGES = [
    (NEW_YORK, "2013-03-10"), (NEW_YORK, "2013-11-03"), ("Europe/London", "2024-03-31"),
    ("Australia/Lord_Howe", "2024-04-07"), ("America/Sao_Paulo", "2018-11-04"), ("America/Sao_Paulo", "2018-02-18"),
    ("UTC", "2024-03-31"),
]  # fmt: skip
HOPS = [(3 * HOUR, HOUR), (4 * HOUR, 2 * HOUR), (24 * HOUR, 8 * HOUR), (HOUR, 20 * MINUTE), (2 * DAY, DAY)]


@pytest.mark.long
@pytest.mark.parametrize(("zone", "day"), CLOCK_CHANGES)
def test_hopping_windows_contain_the_time_across_a_clock_change(spark: SparkSession, zone: Any, day: Any) -> None:
    near, place = date.fromisoformat(day), ZoneInfo(zone)
    times = [datetime.fromisoformat(day).replace(tzinfo=UTC) + n * timedelta(minutes=50) for n in range(-30, 60)]
    for length, every in HOPS:
        window = Hopping(length=length, every=every, on="t", zone=zone)
        expected = []
        for time in times:
            for start in day_starts(window, every, near):
                end = start + length
                if every == DAY:  # by the calendar
                    end = datetime.combine(start.astimezone(place).date() + length, datetime.min.time(), place)
                if start <= time < end:
                    expected.append((start.replace(tzinfo=None), end.astimezone(UTC).replace(tzinfo=None)))
        assert windows(spark, window, times) == expected, (length, every)


@pytest.mark.turns
@pytest.mark.parametrize(("zone", "day"), CLOCK_CHANGES)
def test_cumulative_windows_grow_to_midnight_across_a_clock_change(spark: SparkSession, zone: Any, day: Any) -> None:
    near = date.fromisoformat(day)
    times = [datetime.fromisoformat(day).replace(tzinfo=UTC) + n * timedelta(minutes=50) for n in range(-30, 60)]
    window = Cumulative(length=DAY, step=6 * HOUR, on="t", zone=zone)
    midnights = day_starts(window, DAY, near)
    expected = []
    for time in times:
        start = max(m for m in midnights if m <= time)
        following = min(m for m in midnights if m > time)
        ends = sorted({min(start + n * 6 * HOUR, following) for n in range(1, 6)})
        expected += [(start.replace(tzinfo=None), end.replace(tzinfo=None)) for end in ends if end > time]
    assert windows(spark, window, times) == expected


# Zones whose local date jumps ahead by a day, or back to the day before, just after midnight
DATE_CHANGES = {
    "Pacific/Apia": "2011-12-30", "Pacific/Kwajalein": "1993-08-21", "Pacific/Kiritimati": "1995-01-01",
    "America/St_Johns": "2010-11-07", "America/Moncton": "2006-10-29", "Antarctica/Casey": "2010-03-05",
}  # fmt: skip


def of_all_kinds(zone: str, offset: timedelta) -> list[Window]:
    tumbling = [Tumbling(length=n, on="t", zone=zone, offset=offset) for n in (HOUR, 12 * HOUR, DAY, 2 * DAY)]
    hops = [(2 * DAY, DAY), (7 * DAY, DAY), (4 * DAY, 2 * DAY), (DAY, 6 * HOUR)]
    steps = [(3 * DAY, DAY), (4 * DAY, 2 * DAY), (DAY, 6 * HOUR)]
    hopping = [Hopping(length=n, every=each, on="t", zone=zone, offset=offset) for n, each in hops]
    return tumbling + hopping + [Cumulative(length=n, step=s, on="t", zone=zone, offset=offset) for n, s in steps]


@pytest.mark.long
@pytest.mark.parametrize("zone", DATE_CHANGES)
def test_window_is_unique_and_contains_its_rows_when_a_zone_changes_the_date(spark: SparkSession, zone: str) -> None:
    day = datetime.fromisoformat(DATE_CHANGES[zone]).replace(tzinfo=UTC)
    rows = spark.createDataFrame([(day + n * 29 * MINUTE,) for n in range(-250, 250)], "t timestamp").coalesce(1)
    made = []
    for window in [*of_all_kinds(zone, timedelta(0)), *of_all_kinds(zone, 90 * MINUTE)]:
        found = window.prepare(rows).select("t", "window_start", "window_end")
        grown = "window_end" if isinstance(window, Cumulative) else "null"
        named = {"name": F.lit(str(window)), "grown": F.expr(f"cast({grown} as timestamp)")}
        made.append(found.withColumns(named).withColumn("holds", F.expr("window_start <= t and t < window_end")))
    identity = ("name", "window_start", "grown")
    ends, rest = "count(distinct window_end) as ends", "count(*) - count(distinct t) + count_if(not holds) as rest"
    grouped = reduce(DataFrame.unionByName, made).groupBy(*identity).agg(F.expr(ends), F.expr(rest))
    wrong = grouped.where("ends > 1 or rest > 0").orderBy(*identity).limit(5)
    assert [tuple(row) for row in wrong.collect()] == []


@pytest.mark.parametrize(
    ("window", "other"),
    [
        (Hopping(length=2 * DAY, every=DAY, on="t", zone="Pacific/Apia"), 1),
        (Hopping(length=DAY, every=HOUR, on="t", zone="Pacific/Apia"), 0),
        (Cumulative(length=2 * DAY, step=DAY, on="t", zone="Pacific/Kwajalein"), 1),
        (Tumbling(length=DAY, on="t", zone="Pacific/Apia"), 0),
        (Tumbling(length=HOUR, on="t", zone="America/St_Johns"), 1),
        (Hopping(length=2 * DAY, every=DAY, on="t", zone=NEW_YORK), 0),
        (Tumbling(length=HOUR, on="t"), 0),
        (Calendar(unit="day", on="t", zone="Pacific/Apia"), 0),
        (None, 0),
    ],
)
def test_window_revision_changes_if_its_rows_change(window: Window | None, other: int) -> None:
    assert Aggregate("k", {"n": Count()}, window=window).revision == Aggregate.version + other


@pytest.mark.long
def test_hopping_window_uses_the_historical_offset_of_its_zone(spark: SparkSession) -> None:
    window = Hopping(length=3 * HOUR, every=HOUR, on="t", zone="Asia/Kolkata")
    found = windows(spark, window, [at("1900-06-01T12:00")])  # 5:21:10 ahead of UTC then
    assert [start.strftime("%H:%M:%S") for start, _ in found] == ["09:38:50", "10:38:50", "11:38:50"]


def window_rows(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(v.strftime("%H:%M") if isinstance(v, datetime) else v for v in row) for row in found]


def test_hopping_window_sums_as_in_flink_and_counts_each_price_twice(spark: SparkSession) -> None:
    window = Hopping(length=10 * MINUTE, every=5 * MINUTE, on="t")
    found = aggregate(spark, Aggregate((), {"price": Sum("price")}, window=window), [(at(t), p) for t, p in BIDS], BID)
    assert window_rows(found) == [
        ("08:00", "08:10", 11), ("08:05", "08:15", 15), ("08:10", "08:20", 10), ("08:15", "08:25", 6)
    ]  # fmt: skip
    assert sum(price for _, _, price in found) == 2 * sum(price for _, price in BIDS)


def test_cumulative_window_sums_as_in_flink(spark: SparkSession) -> None:
    window = Cumulative(length=10 * MINUTE, step=2 * MINUTE, on="t")
    found = aggregate(spark, Aggregate((), {"price": Sum("price")}, window=window), [(at(t), p) for t, p in BIDS], BID)
    assert window_rows(found) == [
        ("08:00", "08:06", 4), ("08:00", "08:08", 6), ("08:00", "08:10", 11), ("08:10", "08:12", 3),
        ("08:10", "08:14", 4), ("08:10", "08:16", 4), ("08:10", "08:18", 10), ("08:10", "08:20", 10),
    ]  # fmt: skip


@pytest.mark.long
def test_hopping_window_sums_as_in_risingwave(spark: SparkSession) -> None:
    window = Hopping(length=2 * MINUTE, every=MINUTE, on="t")
    kind = Aggregate((), {"n": Count(), "km": Sum("km")}, window=window)
    found = aggregate(spark, kind, [(at(f"2022-07-01T{t}"), km) for t, km in TRIPS], "t timestamp, km int")
    assert [(start, n, km) for start, _, n, km in window_rows(found)] == [
        ("21:59", 1, 4), ("22:00", 2, 10), ("22:01", 2, 9), ("22:02", 2, 10), ("22:03", 1, 7), ("22:04", 1, 2),
        ("22:05", 2, 10), ("22:06", 1, 8),
    ]  # fmt: skip


def test_session_windows_equal_those_of_risingwave_with_an_exclusive_end(spark: SparkSession) -> None:
    """RisingWave's session end is the time of its last event; this one adds the gap."""
    views = [
        (1, 1001, "22:00"), (1, 1002, "22:01"), (1, 1001, "22:03"), (1, 1003, "22:10"),
        (2, 1003, "22:05"), (2, 1006, "22:05:30"),
    ]  # fmt: skip
    window = Session(gap=5 * MINUTE, on="t")
    kind = Aggregate("user", {"products": CountDistinct("product")}, window=window)
    rows = [(user, product, at(f"2022-07-01T{t}")) for user, product, t in views]
    found = aggregate(spark, kind, rows, "user int, product int, t timestamp")
    assert [(user, s, e - 5 * MINUTE, n) for user, s, e, n in found] == [
        (1, datetime(2022, 7, 1, 22), datetime(2022, 7, 1, 22, 3), 2),
        (1, datetime(2022, 7, 1, 22, 10), datetime(2022, 7, 1, 22, 10), 1),
        (2, datetime(2022, 7, 1, 22, 5), datetime(2022, 7, 1, 22, 5, 30), 2),
    ]


@pytest.mark.long
def test_session_begins_with_an_event_a_whole_gap_after_the_last(spark: SparkSession) -> None:
    kind = Aggregate((), {"n": Count()}, window=Session(gap=5 * MINUTE, on="t"))
    rows = [(at(t),) for t in ("2024-01-01T10:00", "2024-01-01T10:04:59.999999", "2024-01-01T10:09:59.999999")]
    assert [n for *_, n in aggregate(spark, kind, rows, "t timestamp")] == [2, 1]


def test_sliding_window_contains_an_event_for_its_length_as_in_materialize(spark: SparkSession) -> None:
    """An event enters at once and leaves 30 seconds later."""
    entered = datetime.fromtimestamp(1686868190.714, UTC)
    rows = [(n, entered + timedelta(milliseconds=ms)) for n, ms in enumerate((0, 29_998, 30_000))]
    kind = Aggregate((), {"n": Count()}, window=Sliding(length=timedelta(seconds=30), on="t", id="id"))
    assert [(id, n) for id, _, n in aggregate(spark, kind, rows, "id int, t timestamp")] == [(0, 1), (1, 2), (2, 2)]


def test_sliding_window_counts_all_events_of_one_time(spark: SparkSession) -> None:
    rows = [(1, at("2024-01-01")), (2, at("2024-01-01")), (2, at("2024-01-01"))]
    kind = Aggregate((), {"n": Count()}, window=Sliding(length=HOUR, on="t", id="id"))
    assert [(id, n) for id, _, n in aggregate(spark, kind, rows, "id int, t timestamp")] == [(1, 3), (2, 3)]


def of_log(spark: SparkSession, rows: list[tuple[str, str | None, str]]) -> list[tuple[Any, ...]]:
    """Return rows (event time, watermark, word) of a log on one day."""
    day = "2024-01-01T"
    return [(at(day + t), at(day + t), at(day + w) if w else None, word) for t, w, word in rows]


LOG = "t timestamp, _time timestamp, _watermark timestamp, word string"


def test_late_words_are_counted_or_dropped_as_in_spark(spark: SparkSession) -> None:
    """Window 10 minutes by 5, watermark 10 minutes behind.

    Spark promises only that rows within the delay are counted; here every run drops the rows beyond it.
    """
    rows = of_log(
        spark,
        [("12:07", None, "dog"), ("12:14", None, "dog"), ("12:09", "12:14", "cat"), ("12:21", "12:14", "owl"),
         ("12:04", "12:21", "donkey"), ("12:11", "12:21", "fox")],
    )  # fmt: skip
    window = Hopping(length=10 * MINUTE, every=5 * MINUTE, on="t")
    kind = Aggregate("word", {"n": Count()}, window=window, late="drop", lateness=10 * MINUTE)
    found = [(word, start) for word, start, _, _ in window_rows(aggregate(spark, kind, rows, LOG))]
    assert found == [
        ("cat", "12:00"), ("cat", "12:05"), ("dog", "12:00"), ("dog", "12:05"), ("dog", "12:10"),
        ("fox", "12:05"), ("fox", "12:10"), ("owl", "12:15"), ("owl", "12:20"),
    ]  # fmt: skip
    correcting = Aggregate("word", {"n": Count()}, window=window)
    assert {word for word, *_ in aggregate(spark, correcting, rows, LOG)} == {"dog", "cat", "owl", "donkey", "fox"}


@pytest.mark.long
def test_late_returns_the_row_behind_the_watermark_of_risingwave(spark: SparkSession) -> None:
    rows = of_log(
        spark,
        [("11:59:30", None, "F"), ("12:00:00", "11:59:30", "G"), ("12:00:11", "12:00:00", "H"),
         ("11:59:50", "12:00:11", "I")],
    )  # fmt: skip
    frame = spark.createDataFrame(rows, LOG)
    assert [row.word for row in late(frame, by=timedelta(seconds=10)).collect()] == ["I"]
    assert late(frame, by=timedelta(seconds=21)).isEmpty()


@pytest.mark.long
def test_window_is_final_when_the_log_has_passed_its_end(spark: SparkSession) -> None:
    kind = Aggregate((), {"n": Count()}, window=Tumbling(length=HOUR, on="t"), lateness=5 * MINUTE, is_final=True)
    frame = spark.createDataFrame(of_log(spark, [("10:30", None, "a"), ("11:30", None, "b")]), LOG)
    table = kind.evaluate(kind.prepare(frame.withColumns({SIGN: F.lit(1), ORDER: F.struct("t")})))
    for horizon, expected in [
        (None, [False, False]),
        (datetime(2024, 1, 1, 11, 4, 59), [False, False]),
        (datetime(2024, 1, 1, 11, 5), [True, False]),
        (at("2024-01-01T12:05"), [True, True]),
    ]:
        later = kind.at_horizon(table, horizon)
        assert [row.is_final for row in later.orderBy("window_start").collect()] == expected
        assert later.where(present(kind.changed_by_horizon(horizon))).isEmpty()
        assert table.where(present(kind.changed_by_horizon(horizon))).count() == sum(expected)


@pytest.mark.long
def test_sliding_window_is_not_final_before_a_later_event_time(spark: SparkSession) -> None:
    """A row at the greatest event time is not late, and all others of that time count it."""
    window = Sliding(length=HOUR, on="t", id="word")
    kind = Aggregate((), {"n": Count()}, window=window, late="drop", is_final=True)
    log = of_log(spark, [("10:00", None, "a"), ("10:00", "10:00", "b"), ("10:00:00.000001", "10:00", "c")])
    parts = [spark.createDataFrame([row], LOG).withColumns({SIGN: F.lit(1), ORDER: F.struct("t")}) for row in log]
    expected = [
        {("a", 1, False)},
        {("a", 2, False), ("b", 2, False)},
        {("a", 2, True), ("b", 2, True), ("c", 3, False)},
    ]
    for number, rows in enumerate(expected, start=1):
        for made in (at_once(kind, parts[:number]), by_slices(kind, parts[:number])):
            assert {(row.word, row.n, row.is_final) for row in made.collect()} == rows


@pytest.mark.turns
@pytest.mark.parametrize(
    ("unit", "end"),
    [("day", "2013-11-04T05:00"), ("week", "2013-11-04T05:00"), ("month", "2013-12-01T05:00"),
     ("quarter", "2014-01-01T05:00"), ("year", "2014-01-01T05:00")],
)  # fmt: skip
def test_calendar_window_ends_at_the_midnight_of_the_next(spark: SparkSession, unit: Unit, end: str) -> None:
    window = Calendar(unit=unit, on="t", zone=NEW_YORK)
    frame = window.prepare(spark.createDataFrame([(at("2013-11-03T12:00"),)], "t timestamp"))
    assert present(frame.selectExpr(window.end).head())[0] == at(end).replace(tzinfo=None)


OF_WINDOWS: dict[str, Callable[[str], Window]] = {
    "tumbling": lambda on: Tumbling(length=20 * MINUTE, on=on),
    "calendar": lambda on: Calendar(unit="day", on=on, zone=NEW_YORK, name="window_end"),
    "hopping": lambda on: Hopping(length=20 * MINUTE, every=10 * MINUTE, on=on),
    "hopping-days": lambda on: Hopping(length=2 * DAY, every=DAY, on=on, zone=NEW_YORK),
    "cumulative": lambda on: Cumulative(length=30 * MINUTE, step=10 * MINUTE, on=on),
    "cumulative-days": lambda on: Cumulative(length=2 * DAY, step=DAY, on=on, zone=NEW_YORK),
    "session": lambda on: Session(gap=25 * MINUTE, on=on),
    "sliding": lambda on: Sliding(length=20 * MINUTE, on=on, id="id"),
}


@pytest.mark.long
@pytest.mark.parametrize("on", ["window_start", "window_end"])
@pytest.mark.parametrize("name", OF_WINDOWS)
def test_window_over_a_window_column_equals_window_over_a_time(spark: SparkSession, name: Any, on: str) -> None:
    rows = [(n, at(f"2024-01-01T{t}"), n) for n, t in enumerate(("10:00", "10:20", "10:50", "12:00"))]
    of_windows, of_times = (
        aggregate(
            spark,
            Aggregate((), {"total": Sum("n")}, window=OF_WINDOWS[name](on)),
            rows,
            f"id int, {on} timestamp, n int",
        )
        for on in (on, "t")
    )
    assert of_windows == of_times


@pytest.mark.long
@pytest.mark.parametrize("on", ["window_start", "window_end"])
def test_session_over_a_window_column_is_equal_by_slices(spark: SparkSession, on: str) -> None:
    """Measures may read a column named like one of the session."""
    window = Session(gap=15 * MINUTE, on=on)
    kind = Aggregate("k", {"total": Sum("n"), "last": LastValue("n", by=on), "latest": Max(on)}, window=window)
    tens = [(1, at(f"2024-01-01T10:{minute}"), n) for minute, n in (("00", 1), ("20", 5), ("40", 2), ("10", 3))]
    parts = batches(spark, f"k int, {on} timestamp, n int", *([row] for row in tens))
    assert [window_rows([row]) for row in table(kind, parts)] == [
        [(1, "10:00", "10:35", 9, 5, "10:20")],
        [(1, "10:40", "10:55", 2, 2, "10:40")],
    ]


COUNT = {"n": Count()}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Tumbling(length=HOUR, on="t", zone="New_York"), "unknown time zone"),
        (lambda: Tumbling(length=7 * HOUR, on="t"), "does not fill a day"),
        (lambda: Tumbling(length=36 * HOUR, on="t", zone="UTC"), "no fixed place"),
        (lambda: Tumbling(length=timedelta(0), on="t"), "no fixed place"),
        (lambda: Calendar(unit="decade", on="t", zone="UTC"), "unknown calendar unit"),  # type: ignore[arg-type]
        (lambda: Hopping(length=3 * HOUR, every=2 * HOUR, on="t"), "not a multiple"),
        (lambda: Hopping(length=HOUR, every=2 * HOUR, on="t"), "not a multiple"),
        (lambda: Hopping(length=HOUR, every=timedelta(0), on="t"), "no fixed place"),
        (lambda: Cumulative(length=HOUR, step=7 * MINUTE, on="t"), "not a multiple"),
        (lambda: Cumulative(length=6 * DAY, step=36 * HOUR, on="t", zone="UTC"), "no fixed place"),
        (lambda: Session(gap=timedelta(0), on="t"), "invalid gap"),
        (lambda: Sliding(length=timedelta(0), on="t", id="id"), "invalid length"),
        (lambda: Sliding(length=HOUR, on="t", id=()), "identify an event"),
        (lambda: Aggregate("k", {"k": Count()}), "which is already a column of the table"),
        (lambda: Aggregate("k", {"window_end": Count()}, window=Session(gap=HOUR, on="t")), "already a column"),
        (lambda: Aggregate("k", {"_n": Count()}), "are hidden"),
        (lambda: Aggregate(("k", "k"), COUNT), "column names occur twice"),
        (lambda: Aggregate("k", COUNT, late="ignore"), "unknown late policy"),  # type: ignore[arg-type]
        (lambda: Aggregate("k", COUNT, lateness=-HOUR), "invalid lateness"),
        (lambda: Aggregate("k", COUNT, is_final=True), "declare a window"),
        (lambda: Aggregate("k", {"is_final": Count()}, is_final=True, window=Session(gap=HOUR, on="t")), "already"),
    ],
)
def test_window_rejects_invalid_options(wrong: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        wrong()
