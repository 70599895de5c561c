"""Joins against published rows.

Source: Kafka Streams, join semantics (C10). Kafka holds an unmatched row back until its window has closed; here it is
returned at once, and a later partner corrects it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import DeclarationError, Join
from lake.kinds.columns import ORDER, SIGN
from lake.kinds.join import How
from lake.testing.laws import at_once, by_slices

LEFT = {3: "A", 5: "B", 9: "C", 15: "D", 40: "E", 60: "F", 100: "G"}
RIGHT = {4: "a", 6: "b", 10: "c", 14: "d", 80: "f"}
NEAR = {(ours, theirs) for ours in "ABCD" for theirs in "abcd"}
ALONE, ALONE_RIGHT = {("E", None), ("F", None), ("G", None)}, {(None, "f")}


def side(spark: SparkSession, name: str, rows: list[tuple[str, int, int]]) -> DataFrame:
    """Return signed rows (value, second, sign) of one key."""
    data = [(1, value, datetime(2020, 1, 1) + timedelta(seconds=at), sign) for value, at, sign in rows]
    frame = spark.createDataFrame(data, f"key int, {name} string, {name}_at timestamp, _sign int")
    return frame.withColumn(ORDER, F.struct(f"{name}_at"))


def pairs(table: DataFrame) -> list[tuple[Any, ...]]:
    return [(row["left"], row["right"]) for row in table.collect()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "expected"), [("inner", NEAR), ("left", NEAR | ALONE), ("full", NEAR | ALONE | ALONE_RIGHT)]
)
def test_join_of_streams_matches_rows_within_fifteen_seconds_as_in_kafka(
    spark: SparkSession, how: How, expected: Any
) -> None:
    kind = Join(
        "key",
        left="left",
        right="right",
        how=how,
        within=timedelta(seconds=15),
        times=("left_at", "right_at"),
    )

    def part(first: int, last: int) -> tuple[DataFrame, DataFrame]:
        ours = [(value, at, 1) for at, value in LEFT.items() if first <= at < last]
        theirs = [(value, at, 1) for at, value in RIGHT.items() if first <= at < last]
        return side(spark, "left", ours), side(spark, "right", theirs)

    for parts in ([part(0, 200)], [part(0, 5), part(5, 14), part(14, 200)], [part(10, 200), part(0, 10)]):
        found = pairs(by_slices(kind, parts))
        assert len(found) == len(set(found))
        assert set(found) == expected


CHANGES = [  # Second, side, new value, and the row of an inner, a left and a full join after the change
    (3, "left", "A", None, ("A", None), ("A", None)),
    (4, "right", "a", ("A", "a"), ("A", "a"), ("A", "a")),
    (5, "left", "B", ("B", "a"), ("B", "a"), ("B", "a")),
    (6, "right", "b", ("B", "b"), ("B", "b"), ("B", "b")),
    (7, "left", None, None, None, (None, "b")),
    (8, "right", None, None, None, None),
    (9, "left", "C", None, ("C", None), ("C", None)),
    (10, "right", "c", ("C", "c"), ("C", "c"), ("C", "c")),
    (11, "right", None, None, ("C", None), ("C", None)),
    (12, "left", None, None, None, None),
    (14, "right", "d", None, None, (None, "d")),
    (15, "left", "D", ("D", "d"), ("D", "d"), ("D", "d")),
]


@pytest.mark.long
@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_join_of_tables_matches_rows_by_key_as_in_kafka(spark: SparkSession, how: How) -> None:
    """Each second is a key of its own; its last change is that of the second."""
    kind = Join("key", how=how)
    parts = []
    held: dict[str, str | None] = {"left": None, "right": None}
    for second, name, value, *_ in CHANGES:
        later = [at for at, *_ in CHANGES if at >= second]
        rows: dict[str, list[tuple[Any, ...]]] = {"left": [], "right": []}
        rows[name] = [(key, old, sign) for key in later for old, sign in ((held[name], -1), (value, 1)) if old]
        held[name] = value
        parts.append((signed_rows(spark, "left", rows["left"]), signed_rows(spark, "right", rows["right"])))
    expected = {second: row[("inner", "left", "full").index(how)] for second, _, _, *row in CHANGES}
    for table in (at_once(kind, parts), by_slices(kind, [*parts[:4], union(parts[4:8]), union(parts[8:])])):
        found = {row["key"]: (row["left"], row["right"]) for row in table.collect()}
        assert found == {second: row for second, row in expected.items() if row}


def signed_rows(spark: SparkSession, name: str, rows: list[tuple[int, str, int]]) -> DataFrame:
    """Return signed rows (key, value, sign)."""
    return spark.createDataFrame(rows, f"key int, {name} string, _sign int").withColumn(ORDER, F.struct("key"))


def union(parts: list[tuple[DataFrame, DataFrame]]) -> tuple[DataFrame, ...]:
    return tuple(reduce(DataFrame.unionByName, frames) for frames in zip(*parts, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("ids", [{}, {"left": "left"}, {"right": "right"}, {"left": "left", "right": "right"}])
def test_full_join_has_one_row_per_identity_if_keys_are_null(spark: SparkSession, ids: Any) -> None:
    kind = Join(("key", "part"), how="full", **ids)
    parts = []
    for name, other in (("left", "right"), ("right", "left")):
        frames = {name: part_of_key(spark, name, [(None, 1), (1, None), (1, 1)]), other: part_of_key(spark, other, [])}
        parts.append((frames["left"], frames["right"]))
    for number in (1, 2):
        for table in (at_once(kind, parts[:number]), by_slices(kind, parts[:number])):
            assert table.groupBy(*kind.identity).count().where("count > 1").isEmpty()
            assert table.where("`left` is not null").count() == 3
    met = table.where("`left` is not null and `right` is not null").count()
    assert met == (1 if ids else 3)


def test_full_join_has_one_row_if_neither_side_has_a_partner_or_id(spark: SparkSession) -> None:
    options: dict[str, Any] = {"how": "full", "within": timedelta(minutes=1), "times": ("at", "rat")}
    at, late = datetime(2024, 1, 1, 10), datetime(2024, 1, 1, 11)
    left = [("a", None, at), ("a", 1, at), ("b", None, at), (None, None, at), ("c", None, late), ("d", None, at)]
    right = [("a", None, late), ("a", 2, late), ("b", None, at), (None, None, late), ("c", 3, at)]
    some: list[dict[str, Any]] = [{"left": "lid", "right": "rid"}, {"left": "lid"}, {"right": "rid"}]
    for ids in some:
        kind = Join("k", **ids, **options)
        sides = [
            spark.createDataFrame(rows, f"k string, {names}").withColumns({SIGN: F.lit(1), ORDER: F.struct("k", each)})
            for rows, names, each in ((left, "lid int, at timestamp", "at"), (right, "rid int, rat timestamp", "rat"))
        ]
        table = kind.evaluate(*sides).select(*kind.identity, "at", "rat").collect()
        assert len({tuple(row)[: len(kind.identity)] for row in table}) == len(table)
        if len(ids) == 2:
            found = {(row.k, row.lid, row.rid): (row.at, row.rat) for row in table}
            assert found == {
                ("a", None, None): (at, None), ("a", 1, None): (at, None), ("a", None, 2): (None, late),
                ("b", None, None): (at, at), (None, None, None): (at, None), ("c", None, None): (late, None),
                ("c", None, 3): (None, at), ("d", None, None): (at, None),
            }  # fmt: skip


def part_of_key(spark: SparkSession, name: str, keys: list[tuple[int | None, int | None]]) -> DataFrame:
    """Return a row for each key, with the value `name`."""
    rows = spark.createDataFrame([(*key, name) for key in keys], f"key int, part int, {name} string")
    return rows.withColumns({SIGN: F.lit(1), ORDER: F.struct(name)})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Join(()), "Join needs a key"),
        (lambda: Join("k", how="outer"), "how="),  # type: ignore[arg-type]
        (lambda: Join("k", within=timedelta(hours=1)), "needs `within` and `times`"),
        (lambda: Join("k", times=("a", "b")), "needs `within` and `times`"),
        (lambda: Join("k", within=(timedelta(0), timedelta(hours=-1)), times=("a", "b")), "invalid within"),
        (lambda: Join("k", how="full", within=timedelta(hours=1), times=("a", "b")), "would look alike"),
    ],
)
def test_join_rejects_invalid_options(wrong: Any, told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        wrong()
