"""Database to table by the contract and job of the guide: after each run the table equals the database's."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contracts
from lake.engine.verify import verify_all
from lake.ingest.ingest import ingest_named
from lake.ingest.replay import quarantined_records
from lake.ingest.source_ingestion import give_up_lost, restart_sources
from lake.ops import pipeline
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Lakehouse
from tests.checks import present
from tests.servers.postgres import Postgres, binaries
from tests.shop import HEAD, empty
from tests.sources.shop import VARIABLE, Shop

GUIDE = (Path(__file__).parents[2] / "docs/how-to/postgres.md").read_text("utf-8")
COLUMNS = ("id", "customer", "note", "price")


def guide(language: str, beginning: str) -> str:
    """Return the code block of the guide with this beginning."""
    return present(re.search(rf"```{language}\n({re.escape(beginning)}.*?)```", GUIDE, re.DOTALL))[1]


@pytest.fixture
def lakehouse(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    binaries()
    settings = empty(tmp_path / "shop")
    project = settings.project
    (project / "sources").mkdir()
    said = (
        guide("toml", "# sources/shop.toml")
        .replace("SHOP_DSN", VARIABLE)
        .replace("[streams]", f'slot = "{shop.slot}"\nchanges = 200\n[streams]')
    )
    (project / "sources/shop.toml").write_text(said)
    (project / "schemas/orders.avsc").write_text(guide("json", '{\n  "type": "record", "name": "orders"'))
    imports = f"{HEAD}from pyspark.sql import DataFrame\n\n\n"
    (project / "jobs/silver/current_order.py").write_text(imports + guide("python", "@table"))
    history = guide("python", "@table(\n    History")
    (project / "jobs/silver/order_history.py").write_text(imports + history)
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer text, note text, price numeric(12, 2))",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        "CREATE PUBLICATION lake FOR TABLE orders",
        "INSERT INTO orders SELECT i, 'c' || i, repeat('x', 4000), i / 3.0 FROM generate_series(1, 20) i",
    )
    return Lakehouse(project, tmp_path)


def in_the_database(shop: Shop) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in shop.query("SELECT * FROM orders ORDER BY id")]


def in_the_lake(lakehouse: Lakehouse) -> list[dict[str, Any]]:
    rows = ({name: row[name] for name in COLUMNS} for row in lakehouse.table("current_order"))
    return sorted(rows, key=lambda row: int(row["id"]))


def must_have_its_history(lakehouse: Lakehouse, shop: Shop) -> None:
    """Assert that the current versions are the database's rows, and that none begins after the server's time."""
    versions = lakehouse.table("order_history")
    now = {row["id"]: (row["customer"], row["price"]) for row in versions if row["is_current"]}
    assert now == {row["id"]: (row["customer"], row["price"]) for row in in_the_database(shop)}
    [[latest]] = shop.query("SELECT now()")
    assert max(row["valid_from"] for row in versions) < latest
    assert len({row["valid_from"] for row in versions}) > 1


def reads(lakehouse: Lakehouse) -> int:
    """Return the number of rows that copies have put into the log."""
    [counted] = duckdb_tables.rows(Log(lakehouse.settings, "orders").path, "SELECT count(*) AS n FROM t WHERE op = 'r'")
    return int(counted["n"])


def run(lakehouse: Lakehouse, spark: SparkSession) -> None:
    pipeline.run(lakehouse.settings, lambda: spark, print)


def change_orders(shop: Shop, dice: random.Random) -> None:
    """Run some transactions: large values that change, become null or stay, and keys that change."""
    for _ in range(15):
        key, other = dice.randint(1, 30), dice.randint(1, 30)
        large = dice.choice("abc") * 4000
        shop.execute(
            dice.choice(
                [
                    f"UPDATE orders SET customer = 'changed {other}' WHERE id = {key}",
                    f"UPDATE orders SET note = NULL WHERE id = {key}",
                    f"UPDATE orders SET note = '{large}' WHERE id = {key}",
                    f"UPDATE orders SET note = '{large}' || id, id = id + 100 WHERE id = {key}",
                    f"DELETE FROM orders WHERE id IN ({key}, {other})",
                    f"INSERT INTO orders VALUES ({key}, 'new', '{large}', 1.10) ON CONFLICT (id) DO NOTHING",
                    f"BEGIN; UPDATE orders SET customer = 'twice' WHERE id = {key};"
                    f"UPDATE orders SET note = '{large}', price = price + 0.01 WHERE id = {key}; COMMIT",
                ]
            )
        )


def test_table_of_the_guide_equals_that_of_the_database(
    lakehouse: Lakehouse, shop: Shop, spark: SparkSession, postgres: Postgres
) -> None:
    dice = random.Random(1)
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)
    for _ in range(2):
        change_orders(shop, dice)
        run(lakehouse, spark)
        assert in_the_lake(lakehouse) == in_the_database(shop)
    shop.execute("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'after', NULL, 2.50), (2, NULL, 'x', NULL)")
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)
    must_have_its_history(lakehouse, shop)
    assert postgres.execute(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
    assert not [*quarantined_records(lakehouse.settings)]


def test_changes_of_a_table_with_another_name_for_a_while_are_read(
    lakehouse: Lakehouse, shop: Shop, spark: SparkSession
) -> None:
    run(lakehouse, spark)
    shop.execute(
        "ALTER TABLE orders RENAME TO moved",
        "INSERT INTO moved VALUES (90, 'moved', NULL, 1)",
        "DELETE FROM moved WHERE id = 1",
        "ALTER TABLE moved RENAME TO orders",
    )
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)


def test_rows_that_take_over_keys_in_one_statement_stay(lakehouse: Lakehouse, shop: Shop, spark: SparkSession) -> None:
    shop.execute(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "ALTER TABLE orders ADD PRIMARY KEY (id) DEFERRABLE",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    run(lakehouse, spark)
    for statement in (
        "UPDATE orders SET id = id + 1",
        "UPDATE orders SET id = CASE id WHEN 5 THEN 6 ELSE 5 END WHERE id IN (5, 6)",
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE orders SET id = 8 WHERE id = 7;"
        "UPDATE orders SET note = 'was here' WHERE id = 8 AND customer = 'c7';"
        "DELETE FROM orders WHERE customer = 'c7';"
        "UPDATE orders SET note = 'is here' WHERE id = 8; COMMIT",
        "BEGIN; UPDATE orders SET id = 200 WHERE id = 9; UPDATE orders SET note = NULL WHERE id = 200;"
        "DELETE FROM orders WHERE id = 200; COMMIT",
        "BEGIN; UPDATE orders SET id = 201 WHERE id = 10; UPDATE orders SET id = 10 WHERE id = 201; COMMIT",
    ):
        shop.execute(statement)
        run(lakehouse, spark)
        assert in_the_lake(lakehouse) == in_the_database(shop), statement


def test_copy_finds_changes_missed_without_a_slot(
    lakehouse: Lakehouse, shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    run(lakehouse, spark)
    shop.execute(
        f"SELECT pg_drop_replication_slot('{shop.slot}')",
        "DELETE FROM orders WHERE id < 5",
        "UPDATE orders SET customer = 'unseen', note = NULL WHERE id = 6",
    )
    run(lakehouse, spark)
    assert f"the server has no slot '{shop.slot}'" in capsys.readouterr().out
    give_up_lost(lakehouse.settings, "shop", load_contracts(lakehouse.settings))
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)
    shop.execute("UPDATE orders SET price = 7 WHERE id = 7")
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)
    before = reads(lakehouse)
    restart_sources(lakehouse.settings, ["shop"], give_up=False, again=["orders"], on_progress=print)
    ingest_named(lakehouse.settings, lambda: spark, ["shop"], on_failure=print)
    assert reads(lakehouse) == before + len(in_the_database(shop))
    run(lakehouse, spark)
    assert in_the_lake(lakehouse) == in_the_database(shop)
    assert {one.verdict for one in verify_all(lambda: spark, lakehouse.project, on_progress=lambda _: None)} == {
        "identical"
    }
    assert not [*quarantined_records(lakehouse.settings)]
