"""The tables from the events in landing/, through a warehouse of the test's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

import lake

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The project, copied and run."""
    folder = tmp_path_factory.mktemp("shop") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns(".*"))
    subprocess.run([Path(sys.executable).with_name("lake"), "run", "--project", folder], check=True)
    return lake.open(folder)


def test_an_order_is_as_its_newest_change_left_it(shop):
    assert rows(shop, "select order_id, status from current_order order by order_id") == [
        (1, "paid"),
        (2, "cancelled"),
        (3, "placed"),
        (5, "placed"),
    ]


def test_a_day_is_a_day_in_london(shop):
    query = "select customer, cast(day as text), orders, cancelled, amount from customer_daily order by all"
    assert rows(shop, query) == [
        ("ada", "2024-03-30", 2, 0, Decimal("25.15")),
        ("grace", "2024-03-30", 1, 1, Decimal("250.00")),
        ("grace", "2024-04-01", 1, 0, Decimal("42.00")),
    ]


def rows(shop, query):
    return shop.sql(query).duckdb().fetchall()
