"""Who reads a table by its path gets rows that are published, or is told where they are. No JVM, but for the last."""

from __future__ import annotations

import re
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from lake.maintenance import Policy, maintain
from lake.project import Project, load
from lake.publish.addresses import keep_true
from lake.publish.deploy import deploy
from lake.publish.publish import pin
from lake.publish.retention import retired
from lake.read.sql import reader
from lake.store.locks.lease import lease
from lake.testing import Lakehouse
from tests.shop import new_shop
from tests.warehouse import DAILY, publish, published, write


def readable(project: Project, path: str) -> bool:
    return bool(DeltaTable(str(project.settings.warehouse_path / path)).to_pyarrow_table().num_rows)


def told(project: Project, path: str) -> str:
    """The sentence that a reader of the table by its path is told."""
    with pytest.raises(DeltaError) as refused:
        readable(project, path)
    found = re.search("headwater: (.*?)'", str(refused.value))
    return found[1].replace(f"{project.settings.warehouse_path}/", "") if found else str(refused.value)


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """The published shop, of which an edition without customer_daily has been published."""
    project = published(tmp_path / "shop")
    for file in ("jobs/gold/customer_daily.py", "quality/customer_daily.json"):
        project.settings.path(file).unlink()
    publish(project.settings, 1, current_order=("silver", 0))
    project = load(project.settings)
    keep_true(project)
    return project


def test_a_retired_table_is_refused_by_whoever_reads_it_by_its_path(shop: Project) -> None:
    path = shop.settings.warehouse_path / "gold/customer_daily"
    assert told(shop, "gold/customer_daily") == "gold/customer_daily is retired"
    with pytest.raises(Exception, match="gold/customer_daily is retired"):
        polars.read_delta(str(path))
    assert readable(shop, "silver/current_order")
    keep_true(shop)
    assert told(shop, "gold/customer_daily") == "gold/customer_daily is retired"


def test_editions_that_have_it_are_read_and_rolled_back_to(shop: Project) -> None:
    pinned = pin(shop.settings, 1)
    assert "customer_daily" in pinned.tables
    assert readable(shop, "gold/customer_daily")
    assert reader(shop.settings).relation("select count(*) from customer_daily").fetchall() == [(2,)]
    keep_true(shop)
    assert readable(shop, "gold/customer_daily")
    pin(shop.settings, None)
    keep_true(shop)
    assert told(shop, "gold/customer_daily") == "gold/customer_daily is retired"


def test_a_table_in_another_layer_is_told_with_its_new_address(shop: Project) -> None:
    write(shop.settings, "silver", "customer_daily", "select 1 as a")
    publish(shop.settings, 1, current_order=("silver", 0), customer_daily=("silver", 0))
    keep_true(shop)
    assert told(shop, "gold/customer_daily") == "gold/customer_daily is at silver/customer_daily now"
    assert readable(shop, "silver/customer_daily")


def test_upkeep_finds_a_retired_table_as_it_was_and_leaves_it_refused(shop: Project) -> None:
    assert [str(each.place) for each in retired(shop)] == ["table customer_daily"]
    for dry_run in (True, False):
        maintain(shop, pytest.fail, Policy(9, 9, 1 << 30, dry_run=dry_run), lambda _: None)
        assert told(shop, "gold/customer_daily") == "gold/customer_daily is retired"
    maintain(shop, pytest.fail, Policy(1, 0, 1 << 30, drop_retired=True), lambda _: None)
    assert not (shop.settings.warehouse_path / "gold/customer_daily").exists()


def test_who_writes_it_again_finds_its_rows_and_takes_the_next_version(shop: Project) -> None:
    with lease(shop.settings, "table.customer_daily"):
        assert readable(shop, "gold/customer_daily")
        version = write(shop.settings, "gold", "customer_daily", DAILY)
    assert version == 1


def test_what_was_never_published_is_left_alone(shop: Project) -> None:
    write(shop.settings, "gold", "of_another_checkout", "select 1 as a")
    keep_true(shop)
    assert readable(shop, "gold/of_another_checkout")


@pytest.mark.long
def test_deploys_that_move_a_table_there_and_back_tell_spark_too(spark: SparkSession, tmp_path: Path) -> None:
    shop = new_shop(tmp_path).land_samples().run()
    gold, silver = (shop.settings.path(f"jobs/{layer}/customer_daily.py") for layer in ("gold", "silver"))
    for old, new in ((gold, silver), (silver, gold)):
        old.rename(new)
        shop = Lakehouse(shop.settings.project, tmp_path)
        deploy(shop.project, lambda: spark, print, print)
        here, there = (f"{shop.settings.warehouse_path}/{file.parent.name}/customer_daily" for file in (new, old))
        assert spark.read.format("delta").load(here).count() == len(shop.table("customer_daily")) > 0
        with pytest.raises(Exception, match=f"{there} is at {here} now"):
            spark.read.format("delta").load(there).collect()
        shop.run().check_laws()
