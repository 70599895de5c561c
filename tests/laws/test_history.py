"""Laws of History: equal in any slicing and equal to the model; each key is a separate history."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import History, Latest
from lake.testing.laws import at_once, by_slices
from tests.laws.frames import frames, rows, table_by_slices
from tests.laws.models import history as model
from tests.laws.models.events import dumps, histories, remaining_events, shuffled, truncated

VERSION = ("key", "a", "b", "valid_from", "valid_to")
REMOVED: dict[str, Any] = {"deletes": "op = 'delete'", "truncate": "op = 'truncate'"}
KIND = History("key", sequence="at", track="a", **REMOVED)
FUNCTION = ("key", "at as _at", "op as _op", "a", "b", "_order", "_sign")
EVERY: dict[str, Any] = {"sequence": "_at", "deletes": "_op = 'delete'"}


def all_keep(kind: History, table: DataFrame) -> bool:
    """Return whether no row of `table` breaks an invariant of its kind."""
    found = table.toArrow()
    with duckdb.connect() as con:
        con.register("history", found)
        return all(not con.sql(sql.format(table="history")).fetchall() for sql in kind.invariants.values())


@pytest.mark.parametrize("truncate", [False, pytest.param(True, marks=pytest.mark.long)], ids=["deletes", "truncate"])
def test_history_is_equal_in_any_slicing(spark: SparkSession, truncate: bool) -> None:
    parts = histories(seed=1 + truncate)
    parts = truncated(parts, at=3, part=2) if truncate else parts
    assert table_by_slices(KIND, frames(spark, parts), *VERSION) == model.table(remaining_events(parts))


@pytest.mark.long
@pytest.mark.parametrize("truncate", [True, False], ids=["truncate", "deletes"])
def test_history_dates_versions_by_another_column_than_its_sequence(spark: SparkSession, truncate: bool) -> None:
    kind = History("key", sequence="at", dated="c", track="a", **REMOVED)
    parts = histories(seed=11 + truncate)
    parts = truncated(parts, at=3, part=2, c=2) if truncate else parts
    assert table_by_slices(kind, frames(spark, parts), *VERSION) == model.table(remaining_events(parts), dated=True)
    assert all_keep(kind, at_once(kind, frames(spark, parts)))


@pytest.mark.long
def test_history_without_deletes_has_no_gaps(spark: SparkSession) -> None:
    kind = History("key", sequence="at", track="a")
    parts = [[(each, sign) for each, sign in part if each.op == "put"] for part in histories(seed=3)]
    assert table_by_slices(kind, frames(spark, parts), *VERSION) == model.table(remaining_events(parts))


@pytest.mark.long
def test_history_with_a_total_sequence_is_equal_in_any_order_of_arrival(spark: SparkSession) -> None:
    parts = histories(seed=4, total=True, voids=False)
    mixed = by_slices(KIND, frames(spark, shuffled(parts, seed=4)))
    assert rows(mixed, *VERSION) == model.table(remaining_events(parts))


@pytest.mark.long
def test_history_of_dumps_is_that_of_their_differences(spark: SparkSession) -> None:
    kind = History("key", sequence="at", track="a", snapshots=True)
    parts = dumps(seed=8)
    versions = table_by_slices(kind, frames(spark, parts), "key", "a", "valid_from", "valid_to")
    assert versions == model.of_dumps([event for event, _ in part] for part in parts)


@pytest.mark.long
def test_history_keeps_the_invariants_of_the_gate(spark: SparkSession) -> None:
    assert all_keep(KIND, at_once(KIND, frames(spark, truncated(histories(seed=5), at=4, part=3))))


@pytest.mark.long
def test_latest_equals_the_current_rows_of_history(spark: SparkSession) -> None:
    parts = [part.selectExpr(*FUNCTION) for part in frames(spark, histories(seed=6, nulls=False))]
    current = at_once(History("key", **EVERY), parts).where("is_current")
    assert rows(current, "key", "a", "b") == rows(at_once(Latest("key", **EVERY), parts), "key", "a", "b")


@pytest.mark.long
def test_history_as_of_a_time_equals_latest_up_to_it(spark: SparkSession) -> None:
    parts = [part.selectExpr(*FUNCTION) for part in frames(spark, histories(seed=7, nulls=False))]
    times = spark.range(7).selectExpr("cast(id as int) as time")
    versions = at_once(History("key", **EVERY), parts).crossJoin(times)
    as_of = versions.where("valid_from <= time and (valid_to is null or time < valid_to)")
    prefixes = [part.crossJoin(times).where(F.col("_at") <= F.col("time")) for part in parts]
    latest = at_once(Latest(("key", "time"), **EVERY), prefixes)
    assert rows(as_of, "key", "time", "a", "b") == rows(latest, "key", "time", "a", "b")
