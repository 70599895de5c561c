"""Events without a key affect all keys: TRUNCATE, and the marker of a full dump. Source of the users: Databricks,
AUTO CDC (C1), whose columns have other names.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.testing import Lakehouse
from tests.shop import contract, declare

pytestmark = pytest.mark.long

CHANGES = contract(
    "changes", {"user_id": "long?", "city": "string?", "op": "string", "number": "long"}, broadcast="op = 'TRUNCATE'"
)
STOCK = contract(
    "stock",
    {"item": "string?", "pieces": "int?", "dump": "int", "ended": ("boolean", {"default": False})},
    id="content",
    broadcast="ended",
)
JOBS = {
    "user": '''
from lake import Latest, log, table

@table(Latest("user_id", sequence="_at", deletes="_op = 'DELETE'", truncate="_op = 'TRUNCATE'"), log("changes"))
def user(changes):
    """A user as last told."""
    return changes.selectExpr("user_id", "city", "op as _op", "number as _at")
''',
    "stay": '''
from lake import History, log, table

@table(History("user_id", sequence="_at", deletes="_op = 'DELETE'", truncate="_op = 'TRUNCATE'"), log("changes"))
def stay(changes):
    """Where a user lived from one change to the next."""
    return changes.selectExpr("user_id", "city", "op as _op", "number as _at")
''',
    "moves": '''
from lake import Aggregate, Count, log, table

@table(Aggregate("user_id", {"moves": Count()}), log("changes"))
def moves(changes):
    """How often a user's data changed."""
    return changes.select("user_id")
''',
    "asked": '''
from lake import View, log, table

@table(View("user_id"), log("changes"))
def asked(changes):
    """What a user's changes are measured by: how many of them, and how many truncates there were."""
    return changes.sparkSession.sql(
        "select user_id, count(*) as changes, (select count(*) from {c} where op = 'TRUNCATE') as truncates"
        " from {c} where user_id is not null group by user_id", c=changes)
''',
    "item": '''
from lake import History, log, table

@table(History("item", sequence="_dump", snapshots=True, marker="_ended"), log("stock"))
def item(stock):
    """How many pieces of an item there were, by full dumps."""
    return stock.selectExpr("item", "pieces", "dump as _dump", "ended as _ended")
''',
}
USERS = [
    (124, "Oaxaca", "INSERT", 1), (123, "Monterrey", "INSERT", 1), (125, "Tijuana", "INSERT", 2),
    (126, "Cancun", "INSERT", 2), (None, None, "TRUNCATE", 3), (123, None, "DELETE", 6),
    (125, "Guadalajara", "UPDATE", 6), (125, "Mexicali", "UPDATE", 5), (123, "Chihuahua", "UPDATE", 5),
]  # fmt: skip


@pytest.fixture
def lakehouse(spark: SparkSession, project: Settings) -> Lakehouse:
    return declare(project, CHANGES, STOCK, jobs=JOBS)


def changes(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(("user_id", "city", "op", "number"), row, strict=True)) for row in rows]


def stock(dump: int, *, ended: bool = True, **pieces: int) -> list[dict[str, Any]]:
    rows = [{"item": item, "pieces": count, "dump": dump, "ended": False} for item, count in pieces.items()]
    return [*rows, *([{"item": None, "pieces": None, "dump": dump, "ended": True}] if ended else [])]


@pytest.mark.parametrize("slices", [(9,), (2, 5, 9), (4, 5, 9)], ids=str)
def test_truncate_affects_every_key_in_any_slicing(lakehouse: Lakehouse, slices: tuple[int, ...]) -> None:
    done = 0
    for end in slices:
        lakehouse.land("changes", *changes(*USERS[done:end])).run()
        done = end
    assert [(row["user_id"], row["city"]) for row in lakehouse.table("user")] == [(125, "Guadalajara")]
    stays = {(r["user_id"], r["city"], r["valid_from"], r["valid_to"]) for r in lakehouse.table("stay")}
    assert stays == {
        (123, "Monterrey", 1, 3), (123, "Chihuahua", 5, 6), (124, "Oaxaca", 1, 3), (125, "Tijuana", 2, 3),
        (125, "Mexicali", 5, 6), (125, "Guadalajara", 6, None), (126, "Cancun", 2, 3),
    }  # fmt: skip
    assert {row["truncates"] for row in lakehouse.table("asked")} == {1}
    assert {row["user_id"]: row["moves"] for row in lakehouse.table("moves")} == {123: 3, 124: 1, 125: 3, 126: 1}


def test_event_older_than_a_truncate_stays_deleted_in_a_later_batch(lakehouse: Lakehouse) -> None:
    lakehouse.land("changes", *changes((1, "Oslo", "INSERT", 1), (None, None, "TRUNCATE", 3))).run()
    assert lakehouse.table("user") == []
    lakehouse.land("changes", *changes((1, "Rome", "UPDATE", 2), (2, "Bern", "INSERT", 4))).run()
    assert [(row["user_id"], row["city"]) for row in lakehouse.table("user")] == [(2, "Bern")]


def test_dump_counts_when_it_is_complete_and_an_older_dump_never(lakehouse: Lakehouse) -> None:
    def items() -> set[tuple[Any, ...]]:
        return {(r["item"], r["pieces"], r["valid_from"], r["valid_to"]) for r in lakehouse.table("item")}

    lakehouse.land("stock", *stock(1, nut=5, bolt=7)).run()
    first = {("nut", 5, 1, None), ("bolt", 7, 1, None)}
    assert items() == first
    lakehouse.land("stock", *stock(3, ended=False, nut=4)).run()
    assert items() == first
    lakehouse.land("stock", *stock(3, rivet=1)).run()
    third = {("nut", 5, 1, 3), ("nut", 4, 3, None), ("bolt", 7, 1, 3), ("rivet", 1, 3, None)}
    assert items() == third
    lakehouse.land("stock", *stock(2, bolt=9)).land("changes", *changes(*USERS)).run()
    assert items() == third
    lakehouse.land("stock", *stock(4)).run()
    assert items() == {(name, count, since, until or 4) for name, count, since, until in third}
    lakehouse.check_laws()
