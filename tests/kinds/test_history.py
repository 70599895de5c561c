"""History on published examples: Databricks AUTO CDC (C1, C2), mack (C4), SQLMesh (C6), Flink (C8)."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import DeclarationError, History
from tests.kinds.events import batches, table
from tests.kinds.test_latest import CHANGES, SLICINGS, TRUNCATE, USERS, sliced

SPAN = ("valid_from", "valid_to")


def user_history(**options: Any) -> History:
    return History("id", sequence="_number", deletes="_operation = 'DELETE'", **options)


@pytest.mark.turns
@pytest.mark.parametrize("ends", SLICINGS.values(), ids=SLICINGS)
def test_history_has_every_version_of_c1_in_any_slicing(spark: SparkSession, ends: Any) -> None:
    assert table(user_history(), batches(spark, USERS, *sliced(CHANGES, ends)), "id", "name", "city", *SPAN) == [
        (123, "Isabel", "Chihuahua", 5, 6),
        (123, "Isabel", "Monterrey", 1, 5),
        (124, "Raul", "Oaxaca", 1, None),
        (125, "Mercedes", "Guadalajara", 6, None),
        (125, "Mercedes", "Mexicali", 5, 6),
        (125, "Mercedes", "Tijuana", 2, 5),
        (126, "Lily", "Cancun", 2, None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("ends", SLICINGS.values(), ids=SLICINGS)
def test_history_ignored_columns_follow_the_newest_event_of_c1(spark: SparkSession, ends: Any) -> None:
    kind = user_history(ignore="city")
    assert table(kind, batches(spark, USERS, *sliced(CHANGES, ends)), "id", "name", "city", *SPAN) == [
        (123, "Isabel", "Chihuahua", 1, 6),
        (124, "Raul", "Oaxaca", 1, None),
        (125, "Mercedes", "Guadalajara", 2, None),
        (126, "Lily", "Cancun", 2, None),
    ]


@pytest.mark.long
@pytest.mark.parametrize("at", [0, 8])
def test_history_truncate_closes_every_older_version(spark: SparkSession, at: int) -> None:
    kind = user_history(ignore="city", truncate="_operation = 'TRUNCATE'")
    rows = [*CHANGES[:at], TRUNCATE, *CHANGES[at:]]
    assert table(kind, batches(spark, USERS, *sliced(rows, [5, 9])), "id", "city", *SPAN) == [
        (123, "Chihuahua", 5, 6),
        (123, "Monterrey", 1, 3),
        (124, "Oaxaca", 1, 3),
        (125, "Guadalajara", 5, None),
        (125, "Tijuana", 2, 3),
        (126, "Cancun", 2, 3),
    ]


Rows = list[tuple[Any, ...]]
DUMPS = "id int, city string, _number int"
DUMP_0: Rows = [(1, "Oaxaca", 0), (2, "Monterrey", 0), (3, "Tijuana", 0)]
DUMP_1: Rows = [
    (2, "Carmel", 1),
    (3, "Los Angeles", 1),
    (4, "Death Valley", 1),
    (6, "Kings Canyon", 1),
]
AFTER_1 = [
    (1, "Oaxaca", 0, 1),
    (2, "Carmel", 1, None),
    (2, "Monterrey", 0, 1),
    (3, "Los Angeles", 1, None),
    (3, "Tijuana", 0, 1),
    (4, "Death Valley", 1, None),
    (6, "Kings Canyon", 1, None),
]


@pytest.mark.long
def test_history_derives_changes_and_deletes_from_dumps_of_c2(spark: SparkSession) -> None:
    kind = History("id", sequence="_number", snapshots=True)
    for parts in ([DUMP_0, DUMP_1], [DUMP_0[:2], [*DUMP_0[2:], *DUMP_1]]):
        assert table(kind, batches(spark, DUMPS, *parts), "id", "city", *SPAN) == AFTER_1


@pytest.mark.long
def test_history_ignores_a_dump_older_than_the_previous_dump_of_c2(spark: SparkSession) -> None:
    kind = History("id", sequence="_number", snapshots=True)
    three, four = [(1, "c", 3)], [(1, "d", 4), (2, "d", 4)]
    found = table(kind, batches(spark, DUMPS, DUMP_0, four, three), "id", "city", *SPAN)
    assert found == table(kind, batches(spark, DUMPS, DUMP_0, four), "id", "city", *SPAN)


@pytest.mark.long
def test_history_uses_marked_dumps_only_and_deletes_all_for_an_empty_dump(spark: SparkSession) -> None:
    kind = History("id", sequence="_number", snapshots=True, marker="city = 'complete'")
    marked = [(None, "complete", 0)], [(None, "complete", 1)], [(None, "complete", 2)]
    assert table(kind, batches(spark, DUMPS, DUMP_0 + marked[0], DUMP_1), "id", *SPAN) == [
        (1, 0, None), (2, 0, None), (3, 0, None)
    ]  # fmt: skip
    parts = [DUMP_0 + marked[0], DUMP_1, marked[1]]
    assert table(kind, batches(spark, DUMPS, *parts), "id", "city", *SPAN) == AFTER_1
    emptied = table(kind, batches(spark, DUMPS, *parts, marked[2]), "id", "valid_to", "is_current")
    assert {(to, current) for _, to, current in emptied} == {(1, False), (2, False)}


@pytest.mark.long
def test_history_upserts_null_in_a_tracked_column_as_in_c4(spark: SparkSession) -> None:
    kind = History("pkey", sequence="_from")
    schema = "pkey int, attr1 string, attr2 string, _from date"
    start = date(2019, 1, 1)
    before = [(1, "A", "A", start), (2, "B", "B", start), (4, "D", "D", start)]
    updates = [(2, "Z", None, date(2020, 1, 1)), (3, "C", "C", date(2020, 9, 15))]
    found = table(kind, batches(spark, schema, before, updates), "pkey", "attr1", "attr2", "is_current", *SPAN)
    assert found == [
        (1, "A", "A", True, start, None),
        (2, "B", "B", False, start, date(2020, 1, 1)),
        (2, "Z", None, True, date(2020, 1, 1), None),
        (3, "C", "C", True, date(2020, 9, 15), None),
        (4, "D", "D", True, start, None),
    ]


EPOCH, JAN_2, JAN_3 = datetime(1970, 1, 1), datetime(2020, 1, 2), datetime(2020, 1, 3)
RUN_2, RUN_3 = JAN_2.replace(hour=11), JAN_3.replace(hour=11)
MENU = "id int, name string, price string, _at timestamp_ntz, _gone boolean"


@pytest.mark.long
def test_history_by_time_closes_hard_deletes_at_the_run_time_as_in_c6(spark: SparkSession) -> None:
    """The first load is dated 1970, as in SQLMesh; row 4 of src2 is corrected to 2020-01-03 (ERRATUM)."""
    parts: list[Rows] = [
        [
            (1, "Chicken Sandwich", "10.99", EPOCH, False),
            (2, "Cheeseburger", "8.99", EPOCH, False),
            (3, "French Fries", "4.99", EPOCH, False),
        ],
        [
            (1, "Chicken Sandwich", "12.99", JAN_2, False),
            (2, None, None, RUN_2, True),
            (4, "Milkshake", "3.99", JAN_2, False),
        ],
        [
            (1, "Chicken Sandwich", "14.99", JAN_3, False),
            (2, "Cheeseburger", "8.99", JAN_3, False),
            (4, "Chocolate Milkshake", "3.99", JAN_3, False),
        ],
    ]
    kind = History("id", sequence="_at", deletes="_gone")
    assert table(kind, batches(spark, MENU, *parts), "id", "price", *SPAN, "name") == [
        (1, "10.99", EPOCH, JAN_2, "Chicken Sandwich"),
        (1, "12.99", JAN_2, JAN_3, "Chicken Sandwich"),
        (1, "14.99", JAN_3, None, "Chicken Sandwich"),
        (2, "8.99", EPOCH, RUN_2, "Cheeseburger"),
        (2, "8.99", JAN_3, None, "Cheeseburger"),
        (3, "4.99", EPOCH, None, "French Fries"),
        (4, "3.99", JAN_2, JAN_3, "Milkshake"),
        (4, "3.99", JAN_3, None, "Chocolate Milkshake"),
    ]


@pytest.mark.long
def test_history_by_column_uses_dump_times_as_boundaries_as_in_c6(spark: SparkSession) -> None:
    menus = [
        (EPOCH, [(1, "10.99", "Chicken Sandwich"), (2, "8.99", "Cheeseburger"), (3, "4.99", "French Fries")]),
        (RUN_2, [(1, "12.99", "Chicken Sandwich"), (3, "4.99", "French Fries"), (4, "3.99", "Milkshake")]),
        (
            RUN_3,
            [
                (1, "14.99", "Chicken Sandwich"),
                (2, "8.99", "Cheeseburger"),
                (3, "4.99", "French Fries"),
                (4, "3.99", "Chocolate Milkshake"),
            ],
        ),
    ]
    parts: list[Rows] = [[(*row, at) for row in rows] for at, rows in menus]
    kind = History("id", sequence="_at", snapshots=True)
    logs = batches(spark, "id int, price string, name string, _at timestamp_ntz", *parts)
    assert table(kind, logs, "id", "price", *SPAN) == [
        (1, "10.99", EPOCH, RUN_2),
        (1, "12.99", RUN_2, RUN_3),
        (1, "14.99", RUN_3, None),
        (2, "8.99", EPOCH, RUN_2),
        (2, "8.99", RUN_3, None),
        (3, "4.99", EPOCH, None),
        (4, "3.99", RUN_2, RUN_3),
        (4, "3.99", RUN_3, None),
    ]


@pytest.mark.long
def test_history_merges_equal_neighbours_as_in_c6(spark: SparkSession) -> None:
    """Daily snapshots one by one; the first is dated 1970."""
    days = [(1, 1, EPOCH), (1, 2, datetime(2025, 1, 2)), (1, 3, datetime(2025, 1, 3)), (1, 3, datetime(2025, 1, 4))]
    logs = batches(spark, "id int, v int, _at timestamp_ntz", *[[day] for day in days])
    assert table(History("id", sequence="_at"), logs, "v", *SPAN) == [
        (1, EPOCH, datetime(2025, 1, 2)),
        (2, datetime(2025, 1, 2), datetime(2025, 1, 3)),
        (3, datetime(2025, 1, 3), None),
    ]


def test_history_of_a_changelog_answers_as_of_any_time_as_in_c8(spark: SparkSession) -> None:
    schema = "id string, name string, price string, _at string, _kind string"
    changelog = [
        ("p_001", "scooter", "11.11", "00:01", "+I"),
        ("p_002", "basketball", "23.11", "00:02", "+I"),
        ("p_001", "scooter", "12.99", "12:00", "U"),
        ("p_002", "basketball", "19.99", "12:00", "U"),
        ("p_001", "scooter", "12.99", "18:00", "-D"),
    ]
    kind = History("id", sequence="_at", deletes="_kind = '-D'")
    found = table(kind, batches(spark, schema, changelog[:2], changelog[2:]), "id", "price", *SPAN)

    def as_of(time: str) -> dict[str, str]:
        return {id: price for id, price, start, end in found if start <= time and (end is None or time < end)}

    assert as_of("10:00") == {"p_001": "11.11", "p_002": "23.11"}
    assert as_of("13:00") == {"p_001": "12.99", "p_002": "19.99"}
    assert as_of("18:00") == {"p_002": "19.99"}


@pytest.mark.long
def test_history_splits_a_version_when_a_late_event_falls_inside(spark: SparkSession) -> None:
    kind = History("k", sequence="_at")
    schema = "k int, v string, _at int"
    parts: list[Rows] = [[(1, "a", 1), (1, "a", 5)], [(1, "a", 9)], [(1, "b", 7)], [(1, "b", 3)]]
    assert table(kind, batches(spark, schema, *parts), "v", *SPAN) == [
        ("a", 1, 3), ("a", 5, 7), ("a", 9, None), ("b", 3, 5), ("b", 7, 9)
    ]  # fmt: skip


@pytest.mark.long
def test_history_uses_the_last_event_of_an_instant_and_ignores_null_instants(spark: SparkSession) -> None:
    kind = History(("k", "part"), sequence=("_day", "_number"), deletes="v = 'x'")
    schema = "k int, part string, v string, _day int, _number int"
    parts: list[Rows] = [
        [(1, "p", "a", 1, 1), (1, "p", "b", 1, 3), (1, None, "n", 1, 1)],
        [(1, "p", "c", 1, 2), (1, "p", "never", None, 9), (1, "p", "x", 2, 1)],
        [(1, "p", "d", 2, 2), (1, None, "x", 1, 2)],
        [(1, "p", "x", 3, 1), (1, "p", "x", 4, 1)],
    ]
    assert table(kind, batches(spark, schema, *parts), "part", "v", *SPAN) == [("p", "b", 1, 2), ("p", "d", 2, 3)]


@pytest.mark.long
def test_history_closes_the_former_key_when_a_key_changes(spark: SparkSession) -> None:
    kind = History("k", sequence="_at", former={"k": "_before"})
    parts: list[Rows] = [[(1, "a", 1, None)], [(2, "a", 4, 1)]]
    assert table(kind, batches(spark, "k int, v string, _at int, _before int", *parts), "k", *SPAN) == [
        (1, 1, 4),
        (2, 4, None),
    ]


@pytest.mark.long
def test_history_version_keeps_its_id_when_later_events_come(spark: SparkSession) -> None:
    kind, schema = History("k", sequence="_at"), "k int, v string, _at int"
    [(before,)] = table(kind, batches(spark, schema, [(1, "a", 1)]), "version_id")
    later = table(kind, batches(spark, schema, [(1, "a", 1)], [(1, "b", 2), (2, "a", 1)]), "version_id", "k", *SPAN)
    assert (before, 1, 1, 2) in later
    assert len({id for id, *_ in later}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": ()}, "needs a sequence"),
        ({"sequence": "at", "track": "a", "ignore": "b"}, "track and ignore"),
        ({"sequence": "at", "track": "_a"}, "'_a' cannot be tracked"),
        ({"sequence": "at", "snapshots": True, "deletes": "gone"}, "snapshots cannot have deletes"),
        ({"sequence": "at", "marker": "complete"}, "marker needs snapshots=True"),
        ({"sequence": "at", "partition": "region"}, "partition needs snapshots=True"),
        ({"sequence": "at", "snapshots": True, "partition": ("region", "at")}, "partition names 'at'"),
    ],
)
def test_history_rejects_contradictory_options(options: dict[str, Any] | dict[str, str], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        History("id", **options)
