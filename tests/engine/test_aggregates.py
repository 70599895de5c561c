"""Aggregates end to end: state of either writer, rows that move between groups, windows that close."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.testing import Lakehouse
from tests.shop import declare
from tests.store.events import READING, reading

HEAD = """
from datetime import timedelta
from lake import Aggregate, ApproxDistinct, Count, CountDistinct, FirstValue, Hopping, Latest, Max, Quantile, Session
from lake import Sliding, Sum, Variance, late, log, table
HOUR = timedelta(hours=1)
"""
JOBS = {
    "silver/meter": '''
@table(Latest("meter"), log("readings"))
def meter(readings):
    """A meter as last read."""
    return readings.select("meter", "kind", "value", "at")
''',
    "silver/late_reading": '''
@table(Latest("event_id"), log("readings"))
def late_reading(readings):
    """A reading that came more than an hour late."""
    return late(readings, by=HOUR).selectExpr("_id as event_id", "meter", "at")
''',
    "gold/kind_of_meter": '''
from jobs.silver.meter import meter

@table(
    Aggregate(
        "kind",
        {
            "meters": Count(),
            "values": CountDistinct("value"),
            "about": ApproxDistinct("value"),
            "total": Sum("value"),
            "spread": Variance("value"),
            "quartiles": Quantile("value", (0.25, 0.5, 0.75)),
            "first": FirstValue("meter", by="at"),
        },
    ),
    meter,
)
def kind_of_meter(meters):
    """All meters of one kind."""
    return meters
''',
    "gold/sitting": '''
@table(
    Aggregate(
        "meter",
        {"readings": Count(), "kinds": CountDistinct("kind"), "middle": Quantile("value")},
        window=Session(gap=2 * HOUR, on="at"),
        is_final=True,
    ),
    log("readings"),
)
def sitting(readings):
    """A run of readings of one meter."""
    return readings
''',
    "gold/last_hours": '''
@table(
    Aggregate((), {"n": Count()}, window=Hopping(length=3 * HOUR, every=HOUR, on="at"), late="drop", is_final=True),
    log("readings"),
)
def last_hours(readings):
    """Readings of three hours, without late ones."""
    return readings
''',
    "gold/look_back": '''
@table(
    Aggregate("meter", {"most": Max("value")}, window=Sliding(length=3 * HOUR, on="at", id="event_id")),
    log("readings"),
)
def look_back(readings):
    """A reading and the greatest of three hours before."""
    return readings.withColumnRenamed("_id", "event_id")
''',
}


BUSY_TIME = '''
from jobs.silver.meter import meter

@table(Aggregate((), {"meters": Count(), "most": Max("value")}, window=Session(gap=2 * HOUR, on="at")), meter)
def busy_time(meters):
    """A time in which meters were last read, none of them two hours after the one before."""
    return meters
'''


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.long) for each in (500_000, 0)])
def meters(request: pytest.FixtureRequest, spark: SparkSession, project: Settings) -> Lakehouse:
    settings = project.path("pyproject.toml")
    settings.write_text(f"[tool.lake]\nin_process_rows = {request.param}\n")
    return declare(project, READING, jobs={name: HEAD + text for name, text in JOBS.items()})


def test_aggregates_keep_the_laws_cycle_by_cycle(meters: Lakehouse) -> None:
    meters.land("readings", reading("a", 1, "1.00"), reading("b", 2, "2.00", kind="GAS"), reading("a", 5, "5.00")).run()
    assert [(r["meter"], r["readings"], r["is_final"]) for r in meters.table("sitting")] == [
        ("a", 1, True), ("a", 1, False), ("b", 1, True)
    ]  # fmt: skip
    meters.land("readings", reading("a", 3, "1.00", kind="GAS"), reading("c", 6, "5.00")).run()
    assert [r["event_id"] is not None and r["meter"] for r in meters.table("late_reading")] == ["a"]
    meters.land("readings", reading("a", 2, "0.50"), reading("a", 4, "0.50"), reading("b", 9, "7.00")).run()
    sittings = [(r["meter"], r["window_start"].hour, r["readings"], r["kinds"]) for r in meters.table("sitting")]
    assert sittings == [("a", 1, 5, 2), ("b", 2, 1, 1), ("b", 9, 1, 1), ("c", 6, 1, 1)]
    by_kind = {r["kind"]: r for r in meters.table("kind_of_meter")}
    assert {kind: (row["meters"], row["values"], row["about"], row["first"]) for kind, row in by_kind.items()} == {
        "POWER": (3, 3, 3, "a")
    }
    assert [r["most"] for r in meters.table("look_back") if r["meter"] == "a" and r["at"].hour == 4] == [1]
    meters.check_laws(slices=2 if meters.settings.in_process_rows else 0)


@pytest.mark.long
def test_session_without_a_key_splits_when_a_row_moves(spark: SparkSession, project: Settings) -> None:
    jobs = {"silver/meter": HEAD + JOBS["silver/meter"], "gold/busy_time": HEAD + BUSY_TIME}
    meters = declare(project, READING, jobs=jobs)
    meters.land("readings", reading("a", 1), reading("b", 2, "9.00"), reading("c", 3)).run()
    assert [(r["window_start"].hour, r["meters"], r["most"]) for r in meters.table("busy_time")] == [(1, 3, 9)]
    meters.land("readings", reading("b", 9, "2.00")).run()
    found = [(r["window_start"].hour, r["window_end"].hour, r["meters"], r["most"]) for r in meters.table("busy_time")]
    assert found == [(1, 3, 1, 1.5), (3, 5, 1, 1.5), (9, 11, 1, 2)]
