"""Comparison of tables with their source during writes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from lake.errors import DeclarationError
from lake.publish.verify_source import verify_source
from lake.store.warehouse import Warehouse
from lake.testing import Commands, Lakehouse
from tests.sources.shop import VARIABLE, Shop
from tests.sources.test_postgres_tables import change_orders, lakehouse, run

__all__ = ["lakehouse"]


@contextmanager
def writing(shop: Shop) -> Iterator[None]:
    """Write by another connection during the block."""
    done = threading.Event()

    def write() -> None:
        dice = random.Random(2)
        while not done.is_set():
            with suppress(psycopg.errors.UniqueViolation):  # A key may be changed to an existing one
                change_orders(shop, dice)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def test_verify_source_finds_tables_identical_at_one_position_during_writes(
    lakehouse: Lakehouse, shop: Shop, spark: SparkSession
) -> None:
    run(lakehouse, spark)
    with writing(shop):
        verdicts = [verify_source(lakehouse.project, lambda: spark, "orders") for _ in range(3)]
    assert {verdict.verdict for [verdict] in verdicts} == {"identical"}, verdicts
    assert len({verdict.cut for [verdict] in verdicts}) == 3
    assert verdicts[0][0].rows > 0


def test_verify_source_reports_differences_row_by_row(lakehouse: Lakehouse, shop: Shop, spark: SparkSession) -> None:
    run(lakehouse, spark)
    shop.execute("ALTER TABLE orders DISABLE TRIGGER ALL", "SET session_replication_role = replica")
    shop.execute("ALTER TABLE orders ALTER COLUMN price SET DATA TYPE numeric(14, 2) USING price + 1")  # Not in the log
    [verdict] = verify_source(lakehouse.project, lambda: spark, "orders")
    assert verdict.verdict == "differs"
    assert {row["change"] for row in verdict.differences} == {"differs"}
    assert all([*row["columns"]] == ["price"] for row in verdict.differences)


def test_verify_command_names_the_differing_keys_during_writes(
    lakehouse: Lakehouse, shop: Shop, commands: Commands
) -> None:
    settings: dict[str, Any] = {VARIABLE: shop.reader_dsn}

    def verify(code: int) -> tuple[Any, str]:
        with writing(shop):
            done = commands.lake("verify", "--source", "orders", "--json", at=lakehouse, **settings)
        assert done.code == code, done.err
        return json.loads(done.out), done.err

    shop.execute("INSERT INTO orders VALUES (500, 'kept', NULL, 1), (501, 'gone', NULL, 2)")
    assert commands.lake("run", at=lakehouse, **settings).code == 0
    told, _ = verify(0)
    [table] = told["tables"]
    assert (table["table"], table["verdict"], table["differences"]) == ("current_order", "identical", [])
    shop.execute(  # Not in the log
        "ALTER TABLE orders ALTER COLUMN price SET DATA TYPE numeric(13, 2)"
        " USING CASE WHEN id > 499 THEN price + 1 ELSE price END"
    )
    told, said = verify(1)
    [table] = told["tables"]
    assert {(row["id"], row["change"]) for row in table["differences"]} == {(500, "differs"), (501, "differs")}
    assert "not what the source of orders has: current_order" in said
    done = commands.lake("verify", "--source", "orders", at=lakehouse, **settings)
    assert done.code == 1
    assert all(word in done.out for word in ("current_order id=500: differs", "current_order id=501: differs", "price"))


def test_verify_source_rejects_a_stream_without_a_latest_table_or_a_source(
    lakehouse: Lakehouse, spark: SparkSession
) -> None:
    with pytest.raises(DeclarationError, match="orderz"):
        verify_source(lakehouse.project, lambda: spark, "orderz")
    (lakehouse.source.project / "sources/shop.toml").unlink()
    with pytest.raises(DeclarationError, match="orders has no source"):
        verify_source(lakehouse.project, lambda: spark, "orders")
    assert not Warehouse(lakehouse.settings).log("orders").path.exists()
