"""Rows explained at a cut of which `lake maintain` has deleted the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checks import answer
from tests.explain.test_explain import CONTRACT, JOBS
from tests.shop import declare, empty

pytestmark = pytest.mark.slow

COUNTED = '''
from jobs.silver.current_order import current_order
from lake import Aggregate, Count, table


@table(Aggregate("customer", {"orders": Count()}), current_order)
def customer_orders(orders):
    """Number of a customer's orders."""
    return orders.select("customer")
'''
TABLES = ("silver/current_order", "silver/order_status", "gold/customer_total")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a shop whose only order changed at each of three cuts. Maintenance keeps two versions of each table."""
    settings = empty(tmp_path_factory.mktemp("shop"), "keep_editions = 1\nkeep_days = 0\n")
    declare(settings, CONTRACT, jobs={name: JOBS[name] for name in TABLES} | {"gold/customer_orders": COUNTED})
    settings.path("landing/orders").mkdir()
    for hour in (1, 2, 3):
        order = {"order_id": 1, "customer": "bob", "status": f"is {hour}", "amount": hour}
        text = json.dumps(order | {"at": f"2024-03-01T0{hour}:00:00Z"})
        settings.path(f"landing/orders/{hour}.jsonl").write_text(text)
        answer(settings.project, "run")
    answer(settings.project, "maintain")
    return settings.project


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "key", "column", "value"),
    [
        ("current_order", "order_id=1", "amount", 1),
        ("order_status", "order_id=1", "status", "is 1"),
        ("customer_total", "customer=bob", "amount", 1),
    ],
)
def test_explain_at_a_cut_that_was_deleted_reads_the_logs(
    shop: Path, table: str, key: str, column: str, value: object
) -> None:
    explained = answer(shop, "explain", table, key, "--at-cut", "1")
    [row] = explained["rows"]
    assert row["row"][column] == value
    assert explained["notes"] == ["cut 1 is not kept: this is made of the logs, by definitions and contracts of now"]
    kept = answer(shop, "explain", table, key, "--at-cut", "3")
    assert (kept["count"], kept["notes"]) == (3 if table == "order_status" else 1, [])


def test_explain_reads_the_logs_for_an_input_that_was_deleted_at_the_cut(shop: Path) -> None:
    explained = answer(shop, "explain", "customer_orders", "customer=bob", "--at-cut", "1")
    [row] = explained["rows"]
    assert (row["row"]["orders"], explained["notes"]) == (1, [])
    [order] = row["from"][0]["rows"]
    assert [event["batch"] for event in order["from"][0]["events"]] == [1]
