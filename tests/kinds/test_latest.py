"""Latest and First on published examples: Databricks AUTO CDC (C1), Paimon and Hudi (C13)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import DeclarationError, First, Latest
from tests.kinds.events import batches, table

USERS = "id int, name string, city string, _operation string, _number int"
CHANGES = [
    (124, "Raul", "Oaxaca", "INSERT", 1),
    (123, "Isabel", "Monterrey", "INSERT", 1),
    (125, "Mercedes", "Tijuana", "INSERT", 2),
    (126, "Lily", "Cancun", "INSERT", 2),
    (123, None, None, "DELETE", 6),
    (125, "Mercedes", "Guadalajara", "UPDATE", 6),
    (125, "Mercedes", "Mexicali", "UPDATE", 5),
    (123, "Isabel", "Chihuahua", "UPDATE", 5),
]
TRUNCATE = (None, None, None, "TRUNCATE", 3)
SLICINGS = {"one": [8], "three": [1, 5, 8]}


def sliced(rows: list[Any], ends: list[int]) -> list[list[Any]]:
    starts = [0, *ends[:-1]]
    return [rows[start:end] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.turns
@pytest.mark.parametrize("ends", SLICINGS.values(), ids=SLICINGS)
def test_latest_keeps_a_row_deleted_after_an_older_upsert_of_c1(spark: SparkSession, ends: Any) -> None:
    kind = Latest("id", sequence="_number", deletes="_operation = 'DELETE'")
    assert table(kind, batches(spark, USERS, *sliced(CHANGES, ends))) == [
        (124, "Raul", "Oaxaca"),
        (125, "Mercedes", "Guadalajara"),
        (126, "Lily", "Cancun"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 8])
def test_latest_truncate_keeps_newer_rows_of_c1(spark: SparkSession, at: int) -> None:
    kind = Latest("id", sequence="_number", deletes="_operation = 'DELETE'", truncate="_operation = 'TRUNCATE'")
    rows = [*CHANGES[:at], TRUNCATE, *CHANGES[at:]]
    assert table(kind, batches(spark, USERS, *sliced(rows, [5, 9]))) == [(125, "Mercedes", "Guadalajara")]


@pytest.mark.long
def test_partial_latest_keeps_the_previous_value_for_null_as_in_c13(spark: SparkSession) -> None:
    """Paimon, merge engine partial-update."""
    kind = Latest("k", partial=True)
    rows = [(1, "23.0", 10, None), (1, None, None, "This is a book"), (1, "25.2", None, None)]
    for parts in ([rows], [[row] for row in rows]):
        logs = batches(spark, "k int, price string, stock int, note string", *parts)
        assert table(kind, logs) == [(1, "25.2", 10, "This is a book")]


GROUPED = "k int, a int, b int, g1 int, c int, d int, g2 int"


@pytest.mark.long
def test_latest_column_groups_follow_their_own_sequences_as_in_c13(spark: SparkSession) -> None:
    """Paimon, fields.<g>.sequence-group."""
    kind = Latest("k", groups={"g1": ("a", "b"), "g2": ("c", "d")})
    one, two, three = (1, 1, 1, 1, 1, 1, 1), (1, 2, 2, 2, 2, 2, None), (1, 3, 3, 1, 3, 3, 3)
    assert table(kind, batches(spark, GROUPED, [one], [two])) == [(1, 2, 2, 2, 1, 1, 1)]
    assert table(kind, batches(spark, GROUPED, [one, two], [three])) == [(1, 2, 2, 2, 3, 3, 3)]


@pytest.mark.long
def test_latest_orders_by_event_time_as_in_c13(spark: SparkSession) -> None:
    """Hudi, EVENT_TIME_ORDERING, and its partial merge."""
    schema = "id int, name string, ts int, price string"
    first, older, newer = (1, "a1", 1000, "10.0"), (1, "a1", 900, "20.0"), (1, None, 2000, "20.0")
    assert table(Latest("id", sequence="ts"), batches(spark, schema, [first], [older])) == [first]
    partial = Latest("id", sequence="ts", partial="name")
    assert table(partial, batches(spark, schema, [first], [newer])) == [(1, "a1", 2000, "20.0")]


def test_latest_deletes_the_former_key_when_a_key_changes(spark: SparkSession) -> None:
    schema = "id int, part int, name string, _before int"
    kind = Latest(("id", "part"), former={"id": "_before"})
    parts: list[list[tuple[Any, ...]]] = [
        [(1, 7, "a", None)],
        [(1, 7, "b", 1), (2, 8, "z", None)],
        [(3, 7, "b", 1)],
        [(3, 7, "c", 3)],
    ]
    assert table(kind, batches(spark, schema, *parts)) == [(2, 8, "z"), (3, 7, "c")]


@pytest.mark.long
def test_latest_sequence_of_several_columns_sorts_null_first(spark: SparkSession) -> None:
    kind = Latest("id", sequence=("day", "number"))
    rows = [(1, 2, None, "a"), (1, 2, 1, "b"), (1, None, 9, "c"), (2, None, None, "d"), (2, None, None, "e")]
    assert table(kind, batches(spark, "id int, day int, number int, v string", rows[:2], rows[2:])) == [
        (1, 2, 1, "b"),
        (2, None, None, "e"),
    ]


@pytest.mark.long
def test_first_starts_again_after_a_delete(spark: SparkSession) -> None:
    kind = First("name", deletes="not taken")
    rows = [("joe", "a", True), ("joe", "b", True), ("joe", None, False), ("joe", "c", True), ("joe", "d", True)]
    for parts in ([rows], [rows[:2], rows[2:3], rows[3:4], rows[4:]]):
        assert table(kind, batches(spark, "name string, who string, taken boolean", *parts)) == [("joe", "c", True)]


@pytest.mark.long
def test_first_counts_late_rows_newer_than_the_delete(spark: SparkSession) -> None:
    kind = First("k", sequence="at", deletes="v is null")
    rows = [(1, 5, "e"), (1, 2, "b"), (1, 1, "a"), (1, 3, None), (1, 4, "d"), (2, 9, None), (2, 8, "z")]
    assert table(kind, batches(spark, "k int, at int, v string", *[[row] for row in rows])) == [(1, 4, "d")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partial": "id"}, "'id' is in partial and in the key"),
        ({"groups": {"g": ("a",), "h": ("a",)}}, "'a' is in group 'h' and in group 'g'"),
        ({"partial": ("a",), "groups": {"g": ("a",)}}, "'a' is in group 'g' and in partial"),
        ({"former": {"ident": "before"}}, "'ident' is not a key column"),
    ],
)
def test_latest_rejects_contradictory_options(
    options: dict[str, Any] | dict[str, dict[str, str]] | dict[str, dict[str, tuple[str]]] | dict[str, str],
    message: str,
) -> None:
    with pytest.raises(DeclarationError, match=message):
        Latest("id", **options)
