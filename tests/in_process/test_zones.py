"""Clocks of time zones show the same by Java's rules read here and by Spark, around every change of a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lake import cost
from lake.kinds.grouped_map import by_key
from lake.session.in_process import zones
from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import comparable_column, in_process

SOME = (
    *("America/New_York", "Europe/London", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca"),
    *("Africa/Monrovia", "America/Sao_Paulo", "Asia/Kathmandu", "Asia/Tehran", "Antarctica/Troll", "EST5EDT"),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = (
    "from_utc_timestamp(at, '{}')",
    "to_utc_timestamp(at, '{}')",
    "to_utc_timestamp(cast(at as timestamp_ntz), '{}')",
    "to_utc_timestamp(cast(at as date), '{}')",
    "from_utc_timestamp(cast(at as timestamp_ntz), '{}')",
    "date_trunc('day', from_utc_timestamp(at, '{}'))",
)


def around(zone: str) -> pa.Table:
    """Return instants around the changes of a clock, in UTC and by the clock."""
    _, changes = zones.transitions(zone)
    seconds = {
        change.at + shift + apart
        for change in changes
        for shift in (0, change.before, change.after)
        for apart in (-1, 0, 1, 1_799)
        if change.at < (zones.LAST_YEAR - 1971) * 365 * 86_400
    }
    seconds |= {number * 10_000_019 for number in range(-6_000, 410)}
    instants = [EPOCH + timedelta(seconds=second, microseconds=second % 7) for second in sorted(seconds)]
    return pa.table({"at": pa.array(instants, pa.timestamp("us", "UTC"))})


def differing(spark: SparkSession, names: Sequence[str]) -> list[str]:
    found = []
    for zone in names:
        rows, texts = around(zone), [f"{text.format(zone)} as x{number}" for number, text in enumerate(TEXTS)]
        with by_duckdb():
            mine = to_arrow(to_frame(in_process(), rows).selectExpr("at", *texts)).sort_by("at")
        theirs = to_arrow(to_frame(spark, rows).selectExpr("at", *texts)).sort_by("at")
        if any(comparable_column(mine[name]) != comparable_column(theirs[name]) for name in mine.column_names):
            found.append(zone)
    return found


def test_clocks_of_zones_are_those_of_spark(spark: SparkSession) -> None:
    assert differing(spark, SOME) == []


@pytest.mark.long
def test_clocks_of_all_zones_are_those_of_spark(spark: SparkSession) -> None:
    assert len(zones.regions()) > 500
    assert differing(spark, sorted(zones.regions())) == []


WAYS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "given": lambda rows: rows,
    "persisted": lambda rows: rows.persist(),
    "made by a Python function": lambda rows: by_key(rows, (), ["at"], lambda batch: batch, rows.schema),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("beyond", [False, True])
def test_clock_of_a_zone_is_left_to_spark_for_many_rows(
    monkeypatch: pytest.MonkeyPatch, way: str, *, beyond: bool
) -> None:
    rows = around("Europe/London")
    monkeypatch.setattr(cost, "IN_PROCESS_CALLED_ROWS", rows.num_rows - beyond)
    with by_duckdb(), pytest.raises(Unsupported, match="so many rows") if beyond else nullcontext():
        moved = WAYS[way](to_frame(in_process(), rows)).selectExpr("from_utc_timestamp(at, 'Europe/London') as x")
        assert to_arrow(moved).num_rows == rows.num_rows
