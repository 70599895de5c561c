"""What can still change, told through the engine: rows become final as the logs go on, though none of their own came."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.errors import DeclarationError
from lake.testing import Lakehouse
from tests.shop import HEAD, contract, declare, empty

TEN = datetime(2024, 5, 1, 10, tzinfo=UTC)
ORDERS = contract("orders", {"order_id": "int", "ordered_at": "timestamp"}, time="ordered_at")
PAYMENTS = contract("payments", {"order_id": "int", "paid_at": "timestamp"}, time="paid_at")
PRICES = contract("prices", {"shop": "int", "price": "int", "since": "timestamp"}, time="since")
JOBS = {
    "paid": """
@table(
    Join(
        "order_id", how="left", within=(timedelta(0), timedelta(hours=1)), times=("ordered_at", "paid_at"),
        lateness=timedelta(minutes=30), is_final=True,
    ),
    log("orders"),
    log("payments"),
)
def paid(orders, payments):
    '''An order with its payment.'''
    return orders, payments
""",
    "priced": """
@table(Enrich("order_id", AsOf("shop", time="since"), time="ordered_at", is_final=True), log("orders"), log("prices"))
def priced(orders, prices):
    '''An order with its price.'''
    return orders.selectExpr("order_id", "ordered_at", "1 as shop"), prices
""",
    "flurry": """
@table(
    Pattern("shop", sequence="ordered_at", steps=[Step("a", times="{2,}")], within=timedelta(hours=1),
    measures={"orders": Count(), "since": FirstOf("ordered_at")}, is_final=True),
    log("orders"),
)
def flurry(orders):
    '''Orders within an hour.'''
    return orders.selectExpr("1 as shop", "ordered_at")
""",
}


def at(minutes: int) -> str:
    return (TEN + timedelta(minutes=minutes)).isoformat()


def order(number: int, minutes: int) -> dict[str, Any]:
    return {"order_id": number, "ordered_at": at(minutes)}


def test_rows_become_final_as_the_logs_go_on(spark: SparkSession, tmp_path: Path) -> None:
    jobs = {name: HEAD + text for name, text in JOBS.items()}
    shop = declare(empty(tmp_path / "shop"), ORDERS, PAYMENTS, PRICES, jobs=jobs)

    def final(name: str, column: str) -> dict[Any, bool]:
        return {row[column]: row["is_final"] for row in shop.table(name)}

    shop.land("orders", order(1, 0), order(2, 5), order(3, 100))
    shop.land("payments", {"order_id": 1, "paid_at": at(20)}).land("prices", {"shop": 1, "price": 5, "since": at(3)})
    shop.run()
    assert final("paid", "order_id") == {1: True, 2: False, 3: False}
    assert final("priced", "order_id") == {1: True, 2: False, 3: False}
    assert final("flurry", "orders") == {2: True}
    shop.land("payments", {"order_id": 9, "paid_at": at(96)}).land("prices", {"shop": 2, "price": 7, "since": at(50)})
    shop.run()
    assert final("paid", "order_id") == {1: True, 2: True, 3: False}
    assert final("priced", "order_id") == {1: True, 2: True, 3: False}
    shop.land("orders", order(4, 110), order(5, 111)).run()
    assert final("flurry", "orders") == {2: True, 3: False}
    shop.check_laws(slices=2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Join('order_id', is_final=True, lateness=timedelta(hours=-1))", "invalid lateness"),
        ("Enrich('order_id', AsOf('shop', time='since'), time='at', lateness=timedelta(-1))", "invalid lateness"),
        ("Pattern('shop', sequence=(), steps=[Step('a')], measures={}, is_final=True)", "is_final needs a sequence"),
        ("Pattern('shop', sequence='at', steps=[Step('a')], measures={'is_final': Count()}, is_final=True)", "already"),
    ],
)
def test_what_can_never_be_final_is_refused_when_it_is_declared(kind: str, words: str) -> None:
    names: dict[str, Any] = {}
    exec(HEAD, names)
    with pytest.raises(DeclarationError, match=words):
        eval(kind, names)
