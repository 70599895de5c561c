"""The tables, made from the events in landing/ in a warehouse of the tests' own."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from lake.testing import Lakehouse

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    return Lakehouse(PROJECT, tmp_path_factory.mktemp("lake")).land_samples().run()


def test_order_has_its_newest_state(shop):
    orders = shop.table("current_order")
    assert [(order["order_id"], order["status"]) for order in orders] == [
        (1, "paid"),
        (2, "cancelled"),
        (3, "placed"),
        (5, "placed"),
    ]


def test_customer_daily_groups_by_days_of_london(shop):
    assert shop.table("customer_daily") == [
        {"customer": "ada", "day": date(2024, 3, 30), "orders": 2, "cancelled": 0, "amount": Decimal("25.15")},
        {"customer": "grace", "day": date(2024, 3, 30), "orders": 1, "cancelled": 1, "amount": Decimal("250.00")},
        {"customer": "grace", "day": date(2024, 4, 1), "orders": 1, "cancelled": 0, "amount": Decimal("42.00")},
    ]


def test_tables_equal_their_recomputation(shop):
    shop.check_laws()
