"""As-of joins against published rows.

Sources: Flink, temporal joins (C8); Kafka Streams, stream-table join (C10) and versioned state stores (KIP-889).
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import AsOf, DeclarationError, Enrich
from lake.kinds.columns import ORDER, SIGN, visible
from lake.testing.laws import at_once, by_slices
from tests.kinds.events import batches

ORDERS = "id string, currency string, at timestamp"
RATES = "currency string, since timestamp, rate decimal(4, 2)"

How = Literal["left", "inner"]
Rows = list[tuple[Any, ...]]


def table(kind: Enrich, parts: list[tuple[DataFrame, DataFrame]]) -> list[tuple[Any, ...]]:
    """Return the visible rows; assert that they are equal at once and part by part."""
    whole, sliced = at_once(kind, parts), by_slices(kind, parts)
    assert sliced.select(*whole.columns).exceptAll(whole).isEmpty()
    return sorted(tuple(row) for row in whole.select(*visible(whole.columns)).collect())


def signed_parts(
    spark: SparkSession, left: str, right: str, *parts: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
) -> list[tuple[Any, ...]]:
    ours = batches(spark, left, *(part[0] for part in parts))
    theirs = batches(spark, right, *(part[1] for part in parts))
    return list(zip(ours, theirs, strict=True))


@pytest.mark.long
def test_enrich_joins_an_order_with_the_rate_of_its_time_as_in_flink(spark: SparkSession) -> None:
    from decimal import Decimal

    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2020-01-01T{text}")

    kind = Enrich("id", AsOf("currency", time="since"), time="at")
    old, new = ("EUR", at("11:00"), Decimal("1.14")), ("EUR", at("12:03"), Decimal("1.10"))
    orders = [("o_001", "EUR", at("12:00")), ("o_002", "EUR", at("12:06"))]
    for parts in ([(orders, [old]), ([], [new])], [(orders[1:], [new]), (orders[:1], [old])]):
        rows = table(kind, signed_parts(spark, ORDERS, RATES, *parts))
        assert [(id, rate) for id, _, _, rate in rows] == [("o_001", Decimal("1.14")), ("o_002", Decimal("1.10"))]


@pytest.mark.long
def test_enrich_joins_a_late_event_with_the_version_of_its_time(spark: SparkSession) -> None:
    """KIP-889: B is b0 at 0 and b3 at 3; a2 comes after a4 and must be joined with b0."""
    kind = Enrich("a", AsOf("key", time="t"), time="at")
    parts = signed_parts(
        spark,
        "a string, key int, at int",
        "key int, t int, b string",
        ([("a1", 1, 1)], [(1, 0, "b0")]),
        ([("a4", 1, 4)], [(1, 3, "b3")]),
        ([("a2", 1, 2)], []),
    )
    assert table(kind, parts) == [("a1", 1, 1, "b0"), ("a2", 1, 2, "b0"), ("a4", 1, 4, "b3")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [("B", 1, 5, "a"), ("D", 1, 15, "d")]),
        ("left", [("A", 1, 3, None), ("B", 1, 5, "a"), ("C", 1, 9, None), ("D", 1, 15, "d")]),
    ],
)
def test_enrich_joins_a_stream_with_a_table_as_in_kafka(spark: SparkSession, how: How, expected: Any) -> None:
    """The table has the versions a at 4, b at 6, deleted at 8, c at 10, deleted at 11, d at 14."""
    kind = Enrich("left", AsOf("key", time="valid_from"), time="at", how=how)
    events = [("A", 1, 3), ("B", 1, 5), ("C", 1, 9), ("D", 1, 15)]
    versions = [(1, 4, 6, "a"), (1, 6, 8, "b"), (1, 10, 11, "c"), (1, 14, None, "d")]
    schemas = "left string, key int, at int", "key int, valid_from int, valid_to int, right string"
    for parts in ([(events, []), ([], versions)], [(events[2:], versions[:2]), (events[:2], versions[2:])]):
        assert table(kind, signed_parts(spark, *schemas, *parts)) == expected


@pytest.mark.long
def test_enrich_uses_the_last_version_in_the_log_if_times_are_equal(spark: SparkSession) -> None:
    kind = Enrich("id", AsOf("key", time="t"), time="at")
    schemas = "id string, key int, at int", "key int, t int, value string"
    parts = signed_parts(spark, *schemas, ([("e", 1, 5)], [(1, 5, "first")]), ([], [(1, 5, "second")]))
    assert table(kind, parts) == [("e", 1, 5, "second")]


@pytest.mark.long
def test_enrich_keeps_the_newest_row_of_an_identity_when_another_changes(spark: SparkSession) -> None:
    """The identity is the line of an order; the first of two lines is corrected."""
    kind = Enrich("order", AsOf("key", time="t"), time="at")
    schemas = "order string, line int, key int, at int, what string", "key int, t int, value string"
    first, second, corrected = (("o1", line, 1, 5, what) for line, what in ((1, "x"), (2, "y"), (1, "z")))
    parts = signed_parts(
        spark, *schemas, ([first, second], [(1, 0, "v")]), ([first], []), ([corrected], []), ([second], [])
    )
    places = ("_batch", "_arrival", "_bucket", "_offset")
    lines = [events.withColumn(ORDER, F.struct("order", "line")).drop(*places) for events, _ in parts]
    gone = [events.withColumn(SIGN, F.lit(-1)) for events in lines]
    nothing = parts[1][1]
    corrects = [(lines[0], parts[0][1]), (gone[1].unionByName(lines[2]), nothing)]
    assert table(kind, corrects) == [("o1", 2, 1, 5, "y", "v")]
    assert table(kind, [*corrects, (gone[3], nothing)]) == [("o1", 1, 1, 5, "z", "v")]


@pytest.mark.long
@pytest.mark.parametrize("how", ["left", "inner"])
def test_enrich_returns_to_the_hidden_version_when_an_ended_version_is_removed(spark: SparkSession, how: How) -> None:
    kind = Enrich("id", AsOf("key", time="since", until="until"), time="at", how=how)
    schemas = "id string, key int, at int", "key int, since int, until int, value string"
    old, ended, other = (1, 5, None, "a"), (1, 5, 6, "b"), (1, 7, 8, "c")
    hidden = signed_parts(spark, *schemas, ([("e", 1, 8)], [old]), ([], [ended]), ([], [other]))
    assert table(kind, hidden) == ([("e", 1, 8, None)] if how == "left" else [])
    nothing, _ = signed_parts(spark, *schemas, ([], []))[0]
    gone = [(nothing, versions.withColumn(SIGN, F.lit(-1))) for _, versions in hidden[1:]]
    assert table(kind, [*hidden, *gone]) == [("e", 1, 8, "a")]
    assert table(kind, [*hidden, *reversed(gone)]) == [("e", 1, 8, "a")]


@pytest.mark.long
def test_enrich_tolerance_ends_at_the_hour_if_versions_have_dates(spark: SparkSession) -> None:
    kind = Enrich("id", AsOf("key", time="since", tolerance=timedelta(hours=36)), time="at")
    within, beyond = datetime(2020, 1, 2, 10), datetime(2020, 1, 2, 13)
    events = [("e", 1, within), ("f", 1, beyond)]
    schemas = "id string, key int, at timestamp", "key int, since date, value string"
    parts = signed_parts(spark, *schemas, (events, []), ([], [(1, date(2020, 1, 1), "v")]))
    assert table(kind, parts) == [("e", 1, within, "v"), ("f", 1, beyond, None)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Enrich("id", time="at"), "needs a dimension"),
        (lambda: Enrich("id", AsOf(()), time="at"), "needs columns"),
        (lambda: Enrich("id", AsOf("k", tolerance=timedelta(hours=-1)), time="at"), "tolerance"),
        (lambda: Enrich("id", AsOf("k"), time="_time"), "hidden"),
        (lambda: Enrich("id", AsOf("k"), time="at", how="outer"), "how="),  # type: ignore[arg-type]
    ],
)
def test_enrich_rejects_invalid_options(wrong: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        wrong()


def test_enrich_rejects_a_column_of_two_inputs(spark: SparkSession) -> None:
    kind = Enrich("id", AsOf("key", time="t"), time="at")
    parts = signed_parts(spark, "id string, key int, at int, value int", "key int, t int, value int", ([], []))
    with pytest.raises(DeclarationError, match="'value' is a column of two inputs"):
        at_once(kind, parts)
