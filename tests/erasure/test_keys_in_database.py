"""Keys in a PostgreSQL database: encrypt, read, forget, copy; and an unavailable server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.engine.verify import verify_all
from lake.store.keys import has_store, open_store
from lake.testing import Commands, Lakehouse
from tests.servers.postgres import Postgres, url
from tests.shop import contract, new_shop, order


@pytest.fixture
def keys(postgres: Postgres) -> str:
    """Return the URL of a database without a key store."""
    return url(postgres.database())


@pytest.fixture
def shop(spark: SparkSession, keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Return the shop of `lake init` with its keys in that database."""
    monkeypatch.setenv("LAKE_KEYS", keys)
    return new_shop(tmp_path)


@pytest.mark.postgres
def test_forget_uses_keys_of_a_database(
    spark: SparkSession, commands: Commands, shop: Lakehouse, keys: str, tmp_path: Path
) -> None:
    settings = shop.settings
    shop.land("orders", order(1, "margaret hamilton"), order(2, "grace")).run()
    assert has_store(settings)
    assert not settings.keys_path.exists()

    words = ("forget", "orders", "subject=margaret hamilton", "--yes", "--proof")
    done = commands.lake(*words, at=shop, LAKE_KEYS=keys)
    assert done.code == 0, done.err
    assert {row["order_id"]: row["customer"] for row in shop.run().table("current_order")} == {1: None, 2: "grace"}
    assert {each.verdict for each in verify_all(lambda: spark, shop.project, on_progress=lambda _: None)} == {
        "identical"
    }
    assert open_store(settings).people() == {"orders": 2}

    copy = tmp_path / "copy"
    done = commands.lake("backup", str(copy), "--keys", str(tmp_path / "safe.sqlite"), at=shop, LAKE_KEYS=keys)
    assert done.code == 0, done.err
    other = Lakehouse(settings.project, tmp_path / "other")
    (tmp_path / "other").mkdir()
    (copy / "warehouse").rename(tmp_path / "other/warehouse")
    other.settings = replace(other.settings, keys=tmp_path / "safe.sqlite")
    other.land("orders", order(3, "ada"), order(4, "margaret hamilton")).run()
    found = {row["order_id"]: row["customer"] for row in other.table("current_order")}
    assert found == {1: None, 2: "grace", 3: "ada", 4: None}


@pytest.mark.postgres
def test_unavailable_key_database_blocks_personal_streams_only(
    commands: Commands, postgres: Postgres, shop: Lakehouse, keys: str
) -> None:
    pings = contract("pings", {"id": "int"}, id=["id"])
    (shop.settings.project / "schemas/pings.avsc").write_text(json.dumps(pings))
    shop.land("orders", order(1, "grace")).run()
    shop.land("orders", order(2, "ada")).land("pings", {"id": 1})
    away = keys.replace(f":{postgres.port}/", ":1/")
    done = commands.lake("ingest", at=shop, LAKE_KEYS=away)
    assert done.code == 75, done.err
    assert "PostgreSQL does not answer" in done.err
    assert keys.partition("@")[0].rpartition(":")[2] not in done.err + done.out
    assert "pings" in done.out
    done = commands.lake("sql", "select count(*) from current_order", at=shop, LAKE_KEYS=away)
    assert done.code == 0, done.err
    assert len(shop.run().table("current_order")) == 2
