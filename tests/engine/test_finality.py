"""Finality through the engine: rows become final as the logs advance, even without events of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.engine.explain.explain import explain
from lake.errors import DeclarationError
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


@pytest.mark.long
def test_rows_become_final_as_the_logs_advance(spark: SparkSession, tmp_path: Path) -> None:
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


STREAMS = {
    "unpaid": """
@table(
    Pattern(
        "order_id",
        sequence="at",
        steps=[Step("ordered", "what = 'ordered'"), Absent("what = 'paid'", within=timedelta(hours=1))],
        measures={"ordered_at": FirstOf("at"), "price": In("ordered", Max("price"))},
        is_final=True,
    ),
    log("orders"),
    log("payments"),
)
def unpaid(orders, payments):
    '''An order without a payment within an hour.'''
    ordered = orders.selectExpr("order_id", "ordered_at as at", "'ordered' as what", "5 as price")
    return ordered, payments.selectExpr("order_id", "paid_at as at", "'paid' as what")
""",
}


@pytest.mark.long
def test_absence_in_another_stream_is_final_when_both_streams_have_advanced(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs = {name: HEAD + text for name, text in STREAMS.items()}
    shop = declare(empty(tmp_path / "shop"), ORDERS, PAYMENTS, jobs=jobs)

    def unpaid() -> dict[Any, bool]:
        return {row["order_id"]: row["is_final"] for row in shop.table("unpaid")}

    shop.land("orders", order(1, 0), order(2, 5), order(3, 10), order(4, 90)).run()
    assert unpaid() == {1: False, 2: False, 3: False, 4: False}
    shop.land("payments", {"order_id": 1, "paid_at": at(20)}, {"order_id": 3, "paid_at": at(69)}).run()
    assert unpaid() == {2: True, 4: False}
    shop.land("payments", {"order_id": 3, "paid_at": at(200)}).run()
    assert unpaid() == {2: True, 4: False}  # The last order is of minute 90
    shop.land("orders", order(5, 160)).run()
    assert unpaid() == {2: True, 4: True, 5: False}
    [row] = explain(shop.project, lambda: shop.spark, "unpaid", ["order_id=2"]).rows
    assert [[cause.role for cause in side.causes] for side in row.sides] == [["step ordered"], []]
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
def test_declaration_rejects_a_kind_that_is_never_final(kind: str, words: str) -> None:
    names: dict[str, Any] = {}
    exec(HEAD, names)
    with pytest.raises(DeclarationError, match=words):
        eval(kind, names)
