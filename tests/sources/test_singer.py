"""Real Singer tap, from its files into a log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.connect.singer.tap import append_tapped, command_line_tap
from lake.store import duckdb_tables
from lake.store.log import Log
from tests.servers.singer import Singer
from tests.shop import contract, declare, empty, optional
from tests.spool import Kept

pytestmark = pytest.mark.singer


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    settings = empty(tmp_path / "shop")
    names = ("last_modified", "filename", "stream")
    kind, default = optional("string")
    own = {name: (kind, {**default, "aliases": [f"_sdc_{name}"], "transport": True}) for name in names}
    declare(settings, contract("orders", {"order_id": "long", "amount": "decimal(9, 2)", **own}, id=["order_id"]))
    return settings


@pytest.mark.smoke
def test_singer_tap_delivers_rows_with_its_state_and_receives_it_again(singer: Singer, shop: Settings) -> None:
    singer.write("a.jsonl", 1, 2, 3)
    taken, source = Kept(), command_line_tap(shop, "tap_orders", "orders", singer.command)
    progress = source.read(None, taken)
    assert source.read(progress, taken) is None
    source.close()
    assert progress is not None
    assert [json.loads(record.text)["order_id"] for _, record in taken.records] == [1, 2, 3]
    assert "bookmarks" in progress["state"]
    assert all("singer.time_extracted" in record.facts for _, record in taken.records)
    (singer.folder / "a.jsonl").unlink()
    singer.write("b.jsonl", 4)
    later, source = Kept(), command_line_tap(shop, "tap_orders", "orders", singer.command)
    after = source.read(progress, later)
    source.close()
    assert after is not None
    partitions = after["state"]["bookmarks"]["orders"]["partitions"]
    names = [Path(partition["context"]["_sdc_filename"]).name for partition in partitions]
    assert names == ["a.jsonl", "b.jsonl"]  # It knows the first by its state alone
    assert [json.loads(record.text)["order_id"] for _, record in later.records] == [4]


def test_lake_tap_appends_new_rows(singer: Singer, shop: Settings, spark: SparkSession) -> None:
    singer.write("a.jsonl", 1, 2, 3)
    counts = append_tapped(shop, lambda: spark, "orders", singer.command)
    assert (counts.read, counts.accepted) == (3, 3)
    state = Log(shop, "orders").head().sources["tap_orders"].progress["state"]
    assert "bookmarks" in state
    again = append_tapped(shop, lambda: spark, "orders", singer.command)
    assert again.accepted == 0
    singer.write("b.jsonl", 4)
    append_tapped(shop, lambda: spark, "orders", singer.command)
    rows = duckdb_tables.rows(Log(shop, "orders").path, "SELECT order_id FROM t ORDER BY order_id")
    assert [row["order_id"] for row in rows] == [1, 2, 3, 4]
