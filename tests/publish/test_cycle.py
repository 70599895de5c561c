"""Cycles of a small shop: stops of the gate, pins, and changed definitions."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild
from lake.errors import DeclarationError, QualityError, Unavailable
from lake.publish.cut import pick_cut
from lake.store.ledger.editions import current_edition, latest_edition, pin_edition, resume_editions
from lake.store.locks.lease import lease
from lake.testing import Lakehouse
from tests.checks import present
from tests.shop import new_shop, order


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    """Return the project of `lake init`, run once."""
    return new_shop(tmp_path).land_samples().run()


def again(shop: Lakehouse) -> Lakehouse:
    """Return the project with its declarations read again."""
    return Lakehouse(shop.settings.project, shop.settings.warehouse_path.parent)


def expect(shop: Lakehouse, most: int) -> None:
    amount = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "max_value": most}}
    file = shop.settings.path("quality/current_order.json")
    file.write_text(json.dumps({"expectations": [amount | {"severity": "stop", "doc": "no such order"}]}))


@pytest.mark.long
def test_gate_stops_the_row_and_the_edition_and_nothing_else(shop: Lakehouse) -> None:
    expect(shop, most=500)
    before = shop.table("current_order")
    shop.land("orders", order(7, amount="9000.00"))
    with pytest.raises(QualityError, match="order_id=7"):
        shop.run()
    assert shop.table("current_order") == before
    assert present(latest_edition(shop.settings)).number == 1
    shop.land("orders", order(8, amount="20.00"))
    with pytest.raises(QualityError, match="order_id=7"):
        shop.run()
    expect(shop, most=10_000)
    shop.run().check_laws()
    assert [row["order_id"] for row in shop.table("current_order")][-2:] == [7, 8]
    assert present(latest_edition(shop.settings)).number == 2


@pytest.mark.long
def test_readers_stay_at_a_pinned_edition_until_resume(shop: Lakehouse) -> None:
    pin_edition(shop.settings, 1)
    shop.land("orders", order(7)).run()
    assert present(current_edition(shop.settings)).number == 1
    resume_editions(shop.settings)
    shop.run()
    assert present(current_edition(shop.settings)).number == 2


@pytest.mark.long
def test_changed_definition_requires_a_rebuild(shop: Lakehouse) -> None:
    job = shop.settings.path("jobs/silver/current_order.py")
    text = job.read_text().replace(".select(", ".selectExpr(")
    for number, (twice, shown) in enumerate([("amount * 2", "18.00"), ("concat(amount, '')", "9.00")], start=7):
        job.write_text(text.replace('"status", "amount"', f'"status", "amount", "{twice} as twice"'))
        changed = again(shop).land("orders", order(number))
        with pytest.raises(DeclarationError, match="lake plan"):
            changed.run()
        inputs = Inputs(lambda: changed.spark, changed.project, pick_cut(changed.project, None))  # noqa: B023  asked in this turn
        rebuild(inputs, changed.project.tables["current_order"], yes=True)
        changed.run().check_laws(slices=0)
        assert [str(row["twice"]) for row in changed.table("current_order")][-1] == shown


@pytest.mark.long
def test_run_leaves_a_table_locked_by_another_writer(shop: Lakehouse) -> None:
    shop.land("orders", order(7))
    shop.settings = replace(shop.settings, lease_seconds=0.1)
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lease(shop.settings, "table.current_order"):
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    with pytest.raises(Unavailable, match="the table current_order is being written"):
        shop.run()
    done.set()
    holder.join()
    shop.run().check_laws()


@pytest.mark.long
def test_diff_larger_than_the_memory_limit_is_written_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    shop = new_shop(tmp_path)
    shop.settings = replace(shop.settings, in_process_rows=0)
    shop.land_samples().run()
    shop.land("orders", order(7), order(3, amount="7.00")).run().check_laws()
    assert {row["order_id"]: str(row["amount"]) for row in shop.table("current_order")} == {
        1: "19.90", 2: "250.00", 3: "7.00", 5: "42.00", 7: "9.00"
    }  # fmt: skip
