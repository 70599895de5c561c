"""A source beside the tables that are to be what it has, while others write."""

from __future__ import annotations

import random
import threading

import pytest
from pyspark.sql import SparkSession

from lake.errors import DeclarationError
from lake.publish.verify_source import verify_source
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.sources.shop import Shop
from tests.sources.test_postgres_tables import changed, lakehouse, run

__all__ = ["lakehouse"]


def test_tables_are_what_the_source_has_at_one_place_while_others_write(
    lakehouse: Lakehouse, shop: Shop, spark: SparkSession
) -> None:
    run(lakehouse, spark)
    done = threading.Event()

    def write() -> None:
        dice = random.Random(2)
        while not done.is_set():
            changed(shop, dice)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        verdicts = [verify_source(lakehouse.project, lambda: spark, "orders") for _ in range(3)]
    finally:
        done.set()
        writer.join()
    assert {verdict.verdict for [verdict] in verdicts} == {"identical"}, verdicts
    assert len({verdict.cut for [verdict] in verdicts}) == 3
    assert verdicts[0][0].rows > 0


def test_what_differs_from_the_source_is_told_row_by_row(lakehouse: Lakehouse, shop: Shop, spark: SparkSession) -> None:
    run(lakehouse, spark)
    shop.execute("ALTER TABLE orders DISABLE TRIGGER ALL", "SET session_replication_role = replica")
    shop.execute("ALTER TABLE orders ALTER COLUMN price SET DATA TYPE numeric(14, 2) USING price + 1")  # no log of it
    [verdict] = verify_source(lakehouse.project, lambda: spark, "orders")
    assert verdict.verdict == "differs"
    assert {row["change"] for row in verdict.differences} == {"differs"}
    assert all([*row["columns"]] == ["price"] for row in verdict.differences)


def test_a_stream_that_no_latest_reads_or_no_source_feeds_is_told(lakehouse: Lakehouse, spark: SparkSession) -> None:
    with pytest.raises(DeclarationError, match="orderz"):
        verify_source(lakehouse.project, lambda: spark, "orderz")
    (lakehouse.source.project / "sources/shop.toml").unlink()
    with pytest.raises(DeclarationError, match="orders has no source"):
        verify_source(lakehouse.project, lambda: spark, "orders")
    assert not Warehouse(lakehouse.settings).log("orders").path.exists()
