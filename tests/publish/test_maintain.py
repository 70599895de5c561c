"""Maintenance of a shop with many small batches: fewer files, the same rows, and every kept edition unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.engine.verbs import Advanced
from lake.engine.verify import verify_all
from lake.errors import DeclarationError, LawError
from lake.ingest.fsck import check_log
from lake.ops.maintenance import Policy, maintain
from lake.publish.cut import pick_cut
from lake.read.sql import reader
from lake.store import delta, duckdb_tables
from lake.store.log import Log
from lake.store.storage import Address
from lake.store.upkeep import compaction
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.shop import new_shop, order

BATCHES = 3


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return the project of `lake init` after enough batches for its log and tables to be maintained."""
    home = tmp_path_factory.mktemp("maintain")
    shop = new_shop(home).land_samples().run()
    for number in range(BATCHES):
        shop.land("orders", *(order(6 * number + each) for each in range(100, 106))).run()
    return shop


def rows(shop: Lakehouse, edition: int) -> dict[str, list[Any]]:
    found = reader(shop.settings, edition)
    return {name: sorted(found.relation(f"from {name}").fetchall(), key=repr) for name in found.edition.tables}


def files(path: Address) -> int:
    table = delta.open_table(path)
    assert table is not None
    return len(table.file_uris())


def stored_files(path: Address) -> int:
    return sum(1 for file in path.local.rglob("*.parquet") if file.parent.name != "_delta_log")


def needed(path: Address) -> int:
    """Return the number of files of the newest version and the one before, which counts if the newest was truncated."""
    newest = delta.version(path)
    return len({file for n in (newest, newest - 1) for file in delta.files(DeltaTable(str(path), version=n))})


def keeping(editions: int) -> Policy:
    return Policy(editions=editions, days=0, size=1 << 30)


def verdicts(shop: Lakehouse) -> set[str]:
    return {each.verdict for each in verify_all(lambda: shop.spark, shop.project, on_progress=lambda _: None)}


@pytest.mark.long
def test_maintain_reduces_files_and_keeps_rows_and_editions(
    shop: Lakehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXCESS_FILES", 1)
    settings, said = shop.settings, list[str]()
    inputs = Inputs(lambda: spark, shop.project, pick_cut(shop.project, None))
    orders, daily = Warehouse(settings).log("orders").path, shop.project.table(shop.project.tables["customer_daily"])
    tables = [shop.project.table(each).path for each in shop.project.tables.values()]
    heads, before = Log(settings, "orders").heads(), {number: rows(shop, number) for number in (3, 4)}
    had = {path: files(path) for path in (orders, *tables)}

    done = maintain(shop.project, lambda: spark, keeping(2), said.append)

    assert (done.expired, done.kept, done.left, done.skipped) == ([1, 2], [4, 3], 0, {})
    assert all(files(path) < listed for path, listed in had.items()), had
    assert stored_files(orders) == needed(orders)
    assert Log(settings, "orders").heads() == heads
    assert Log(settings, "orders").head().batch == BATCHES + 1
    assert check_log(settings, "orders").faults == []
    assert {number: rows(shop, number) for number in (3, 4)} == before
    with pytest.raises(DeclarationError, match="edition 2 has expired; kept: 3 to 4"):
        reader(settings, 2)
    assert verdicts(shop) == {"identical"}
    told: list[Advanced] = []
    advance_all(inputs, on_progress=told.append)
    assert {each.verb for each in told} == {"none"}, "compaction is no change that a child must follow"

    shop.land("orders", order(124)).run()
    position = daily.position()
    assert position is not None
    assert sum(position.data["counts"].values()) == 1, "the change feed goes on across a compaction"

    again = maintain(shop.project, lambda: spark, keeping(1), said.append)
    assert {each.place.kind for each in again.places if each.compacted} <= {"book"}
    assert all(stored_files(path) == needed(path) for path in (orders, *tables))
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_batch_compacts_small_files_of_many_batches(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = shop.settings, Warehouse(shop.settings).log("orders").path
    lines = ('{"order_id": 1', '{"order_id": "two"}')
    shop.land("orders", *lines).run()
    before, quarantine = Log(settings, "orders").heads(), Warehouse(settings).quarantine("orders").path
    had = files(path)
    monkeypatch.setattr(compaction, "CROWDED", 2)
    shop.land("orders", *lines, order(125)).run()
    crowded = [part for part in compaction.file_groups(path) if part.is_crowded]
    assert (crowded, Log(settings, "orders").heads()[1:]) == ([], before)
    assert files(path) <= had
    assert files(quarantine) == 1
    assert check_log(settings, "orders").faults == []
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_compaction_that_changes_rows_is_rolled_back(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, path = shop.settings, Warehouse(shop.settings).log("orders").path
    heads, count = Log(settings, "orders").heads(), "SELECT count(*) AS n FROM t"
    before = files(path), duckdb_tables.rows(path, count)
    told = iter([(2, "1"), (1, "1")])
    monkeypatch.setattr(compaction, "EXCESS_FILES", -1)
    monkeypatch.setattr(compaction, "count_and_hash", lambda *_: next(told))
    with pytest.raises(LawError, match="changed rows and was undone"):
        maintain(shop.project, lambda: shop.spark, keeping(100), lambda _: None)
    assert (files(path), duckdb_tables.rows(path, count)) == before
    assert Log(settings, "orders").heads() == heads
    assert check_log(settings, "orders").faults == []
