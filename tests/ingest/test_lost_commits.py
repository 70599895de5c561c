"""Recovery if the newest commits of logs, tables and ledgers are truncated or gone. No JVM."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lake.config import load_settings
from lake.engine.advance import _is_current
from lake.engine.inputs import Evaluation, Inputs
from lake.errors import DeclarationError, LakeError, StorageError
from lake.ingest import landing
from lake.ingest.append import append
from lake.ingest.files import Mark, mark_as_json
from lake.ops.scaffold import init
from lake.project.project import Project, load
from lake.publish.cut import cut
from lake.quality import gate
from lake.store import delta, duckdb_tables, erasures, voids
from lake.store.delta import Position
from lake.store.ledger import cuts, editions
from lake.store.ledger.cuts import Cut, get_cut, latest_cut
from lake.store.locks.lease import lease
from lake.store.log import Log
from lake.store.snapshot import published
from lake.store.storage import Address
from lake.store.table_head import TableHead
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all
from lake.store.tables import FeedGap
from lake.store.warehouse import Warehouse
from tests.checks import no_spark, present
from tests.judgements import record_check

pytestmark = pytest.mark.slow

ORDER, DAILY = "current_order", "customer_daily"


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """Project of `lake init`."""
    init(tmp_path / "shop")
    return load(load_settings(tmp_path / "shop"))


def tear(path: Address) -> None:
    """Truncate the newest commit of the table at `path`."""
    file = commit_file(path, delta.version(path)).local
    file.write_bytes(file.read_bytes()[:100])
    forget_all()


def advance_table(shop: Project, name: str, cut: int, **inputs: int) -> TableHead:
    """Commit a row to the table as of `cut`."""
    table = shop.table(shop.tables[name])
    homes = {each: each for each in inputs if each in shop.tables}
    with lease(shop.settings, table.lease):
        position = (table.position() or delta.start(table.app)).next(cut=cut, voids=0, inputs=inputs, homes=homes)
        duckdb_tables.append(table.path, "order_id BIGINT", [[cut]], position)
        return present(table.head())


def evaluation(shop: Project, head: TableHead, inputs: Inputs) -> Evaluation:
    return Evaluation(inputs, shop.tables[ORDER], shop.table(shop.tables[ORDER]), head)


def at(shop: Project, number: int, voids: int = 0, **batches: int) -> Inputs:
    return Inputs(no_spark, shop, Cut(number, batches, voids, datetime.now(UTC)))


def append_batch(shop: Project, batch: int, *marks: Mark) -> None:
    """Commit a batch of orders without events."""
    files = [*map(mark_as_json, marks)]
    data: dict[str, Any] = {
        "offsets": {},
        "watermark": None,
        "counts": {},
        "files": files,
        "contract": 1,
        "at": "2024-01-01T00:00:00Z",
        "content": {},
    }
    with lease(shop.settings, "log.orders"):
        head = Log(shop.settings, "orders").head()
        duckdb_tables.append(Warehouse(shop.settings).log("orders").path, "_batch BIGINT", [[batch]], head.next(**data))
        landing.record_ingested(Log(shop.settings, "orders"))


def test_lost_batch_is_detected_by_cuts_reads_and_ingestion(shop: Project) -> None:
    settings = shop.settings
    for batch in (1, 2):
        append_batch(shop, batch)
    assert cut(shop).batches == {"orders": 2}
    tear(Warehouse(settings).log("orders").path)
    for uses in (
        lambda: cut(shop),
        lambda: at(shop, 1, orders=2).whole(shop.tables[ORDER].inputs[0]),
        lambda: append(settings, no_spark, shop.contracts["orders"], lambda _: None),
    ):
        with pytest.raises(StorageError, match="the log of orders is damaged: it ends at batch 1, but") as told:
            uses()
        assert "restore a backup of the warehouse" in told.value.fix
    assert present(latest_cut(settings)).batches == {"orders": 2}


def test_cut_flushes_the_batches_that_it_counts(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    append_batch(shop, 1)
    flushed: list[str] = []
    monkeypatch.setattr(Log, "flush", lambda log: flushed.append(log.stream))
    record = cuts.record_cut

    def recorded(*args: Any, **more: Any) -> Cut:
        flushed.append("cut")
        return record(*args, **more)

    monkeypatch.setattr("lake.publish.cut.record_cut", recorded)
    cut(shop)
    assert flushed == ["orders", "cut"]


def test_number_of_a_lost_cut_is_not_reused(shop: Project) -> None:
    append_batch(shop, 1)
    assert cut(shop).number == 1
    append_batch(shop, 2)
    assert cut(shop).number == 2
    tear(Warehouse(shop.settings).book("cuts").path)
    assert cut(shop).number == 2, "nothing knows of the first one"
    advance_table(shop, ORDER, 2, orders=2)
    tear(Warehouse(shop.settings).book("cuts").path)
    assert cut(shop).number == 3
    editions.record_edition(shop.settings, 57, {})
    shutil.rmtree(Warehouse(shop.settings).book("cuts").path.local)
    assert cut(shop).number == 58


def test_lost_cut_is_recovered_from_the_tables_that_followed_it(shop: Project) -> None:
    for batch in (1, 2, 3):
        append_batch(shop, batch)
        made = cut(shop)
        lost = advance_table(shop, ORDER, made.number, orders=batch)
        advance_table(shop, DAILY, made.number, current_order=lost.version)
    shutil.rmtree(Warehouse(shop.settings).book("cuts").path.local)
    assert [get_cut(shop.settings, number).batches for number in (1, 2, 3)] == [{"orders": n} for n in (1, 2, 3)]
    assert cut(shop).number == 4
    for unknown in (0, 5):
        with pytest.raises(DeclarationError, match=f"no cut {unknown}"):
            get_cut(shop.settings, unknown)


def test_table_is_not_current_after_a_void(shop: Project) -> None:
    before = advance_table(shop, ORDER, 2, orders=2)
    assert _is_current(evaluation(shop, before, at(shop, 2, orders=2)))
    assert not _is_current(evaluation(shop, before, at(shop, 2, orders=2, voids=1)))


def test_table_rereads_an_input_that_lost_the_commit_it_was_derived_from(shop: Project) -> None:
    advance_table(shop, ORDER, 1, orders=1)
    lost = advance_table(shop, ORDER, 2, orders=2)
    daily = advance_table(shop, DAILY, 2, current_order=lost.version)
    [source] = shop.tables[DAILY].inputs
    assert at(shop, 2, orders=2).changes(source, daily) is None
    tear(shop.table(shop.tables[ORDER]).path)
    with pytest.raises(FeedGap, match="lost versions that were read"):
        at(shop, 1, orders=1).changes(source, daily)
    assert advance_table(shop, ORDER, 3, orders=3).version == lost.version
    with pytest.raises(FeedGap, match="lost versions that were read"):
        at(shop, 3, orders=3).changes(source, daily)


def void(shop: Project, offset: int) -> int:
    at = datetime.now(UTC)
    [made] = voids.record(
        shop.settings, [("orders", (1, 0, offset, None))], reason="a test", at=at, heads={"orders": 9}
    )
    return made.number


def test_number_of_a_lost_void_is_not_reused(shop: Project) -> None:
    append_batch(shop, 1)
    assert [void(shop, 1), void(shop, 2), cut(shop).voids] == [1, 2, 2]
    tear(Warehouse(shop.settings).book("voids").path)
    assert cut(shop).voids == 1
    assert erasures.record(shop.settings, "orders", ["somebody"], at=datetime.now(UTC)) == 3
    tear(Warehouse(shop.settings).book("erasures").path)
    assert void(shop, 3) == 3, "no cut has counted it"


def test_table_rereads_its_log_when_an_applied_void_was_lost(shop: Project) -> None:
    append_batch(shop, 1)
    void(shop, 1)
    [source] = shop.tables[ORDER].inputs
    head = TableHead(Position("table", 1), 1, "advance", {"orders": 1}, "", voids=1)
    assert at(shop, 1, orders=1, voids=1).changes(source, head) is None
    tear(Warehouse(shop.settings).book("voids").path)
    with pytest.raises(FeedGap, match="void 1, which was applied then, was lost"):
        at(shop, 2, orders=1).changes(source, head)


def test_lost_version_is_neither_published_nor_counted_as_checked(shop: Project) -> None:
    table = shop.table(shop.tables[ORDER])
    for number in (1, 2):
        version = advance_table(shop, ORDER, number, orders=number).version
    entry = editions.EditionTable("silver", "silver/current_order", version, "")
    edition = editions.record_edition(shop.settings, 2, {ORDER: entry})
    check = record_check(
        shop.settings, ORDER, home=ORDER, scope="table", cut=2, version=version, suite="", outcome="passed", results=[]
    )
    assert published(shop.settings, ORDER, edition).version == version
    assert gate._version_exists(table, check)
    tear(table.path)
    assert advance_table(shop, ORDER, 3, orders=3).version == version
    with pytest.raises(LakeError, match=f"version {version} of edition 1 was lost"):
        published(shop.settings, ORDER, edition)
    assert not gate._version_exists(table, check)
