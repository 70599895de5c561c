"""Consumers of a shop's tables while the engine runs, deploys, rebuilds, rolls back and forgets."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.errors import StartOver
from lake.ops.pipeline import catch_up
from lake.privacy.forget import forget
from lake.read.sql import reader
from lake.read.subscription import subscribe
from lake.store.ledger.editions import kept_editions
from lake.testing import Commands, Kill, Lakehouse
from tests.shop import new_shop, order


@pytest.fixture(scope="module")
def read_only_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return the project of `lake init` with orders of two people. Read only."""
    home = tmp_path_factory.mktemp("calm")
    return new_shop(home).land("orders", order(1, "joan"), order(2, "grace")).run()


@pytest.fixture
def shop(read_only_shop: Lakehouse, tmp_path: Path) -> Lakehouse:
    """Return a writable copy of `calm`."""
    shutil.copytree(read_only_shop.home, tmp_path, dirs_exist_ok=True)
    return Lakehouse(tmp_path / "shop", tmp_path)


class Copy:
    """Copy of a table by its change feed; it records the changes."""

    def __init__(self, settings: Settings, table: str) -> None:
        self.settings = settings
        self.table = table
        self.rows: dict[Any, Any] = {}

    def follow(self, **options: Any) -> list[str]:
        """Apply the pending changes; after each, the copy equals the edition."""
        kinds = []
        for changes in subscribe(self.settings, self.table, consumer="crm", **options):
            if changes.snapshot:
                self.rows.clear()
            for change in changes:
                kinds.append(change.change)
                key = tuple(change.key.values())
                self.rows.pop(key, None)
                if change.after is not None:
                    self.rows[key] = change.after
            changes.ack()
            assert sorted(self.rows.values(), key=str) == sorted(self.seen(changes.edition), key=str)
        return kinds

    def seen(self, edition: int) -> list[dict[str, Any]]:
        """Return the rows that readers see in an edition."""
        read = reader(self.settings, edition)
        if self.table not in read.edition.tables:
            return []
        rows: list[dict[str, Any]] = read.relation(f"from {self.table}").to_arrow_table().to_pylist()
        return rows


def twice(shop: Lakehouse) -> None:
    """Change the job so that it counts every amount twice."""
    job = shop.source.path("jobs/gold/customer_daily.py")
    job.write_text(job.read_text().replace('Sum("amount"),', 'Sum("amount * 2"),'))


@pytest.mark.long
def test_consumer_copy_follows_late_events_rebuild_deploy_and_rollback(commands: Commands, shop: Lakehouse) -> None:
    def lake(*words: str) -> None:
        done = commands.lake(*words, at=shop)
        assert done.code == 0, done.err

    copy = Copy(shop.settings, "customer_daily")
    assert copy.follow() == ["insert", "insert"]
    late = order(1, "joan", changed_at="2024-04-03T08:00:00Z", status="shipped")
    shop.land("orders", late, order(2, "grace", status="cancelled", changed_at="2024-04-09T10:00:00Z")).run()
    assert copy.follow() == ["update"]
    lake("rebuild", "customer_daily")
    lake("publish")
    assert copy.follow() == []
    twice(shop)
    lake("deploy")
    assert copy.follow() == ["update", "update"]
    lake("publish", "--edition", "2")
    assert copy.follow() == ["update", "update"]
    lake("publish", "--resume")
    assert copy.follow() == ["update", "update"]
    shop.source.path("jobs/gold/customer_daily.py").unlink()
    shop.source.path("quality/customer_daily.json").unlink()
    lake("deploy")
    assert copy.follow() == ["delete", "delete"]


@pytest.mark.long
def test_consumer_of_the_first_edition_of_a_deploy_continues(commands: Commands, shop: Lakehouse) -> None:
    copy = Copy(shop.settings, "customer_daily")
    copy.follow()
    twice(shop)
    assert commands.lake("deploy", at=shop, kill=Kill("edition.after")).landed
    assert copy.follow() == ["update", "update"]
    settled = commands.lake("publish", at=shop)
    assert settled.code == 0, settled.err
    assert [kept.number for kept in kept_editions(shop.settings)] == [3, 2, 1]
    assert copy.follow() == []


@pytest.mark.long
def test_purge_waits_for_a_consumer_and_then_deletes_the_person(shop: Lakehouse) -> None:
    said = list[str]()
    copy = Copy(shop.settings, "current_order")
    copy.follow()
    forget(shop.project, lambda: shop.spark, "orders", "joan")
    catch_up(shop.project, lambda: shop.spark, said.append)
    [waiting] = [line for line in said if "waiting" in line]
    assert "consumer crm of current_order has edition 1 only, and is waited for until " in waiting
    assert 1 in [kept.number for kept in kept_editions(shop.settings)]
    assert copy.follow() == ["update"]
    assert {row["customer"] for row in copy.rows.values()} == {None, "grace"}
    catch_up(shop.project, lambda: shop.spark, said.append)
    assert any("only the published version is left" in line for line in said)
    assert copy.follow() == []


@pytest.mark.long
def test_purge_stops_waiting_and_the_consumer_starts_over(shop: Lakehouse) -> None:
    copy = Copy(shop.settings, "current_order")
    copy.follow()
    forget(shop.project, lambda: shop.spark, "orders", "joan")
    hasty = replace(shop.project, settings=replace(shop.settings, keep_consumer_days=0.0))
    catch_up(hasty, lambda: shop.spark, lambda _: None)
    with pytest.raises(StartOver, match="edition 1 has expired"):
        copy.follow()
    assert copy.follow(start_over=True) == ["insert", "insert"]
    assert {row["customer"] for row in copy.rows.values()} == {None, "grace"}
