"""A copy in PostgreSQL while the engine runs, deploys, rebuilds, rolls back and forgets."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from lake.ops.pipeline import catch_up
from lake.privacy.forget import forget
from lake.read.sql import reader
from lake.sinks.deliver import DeliveryOutcome, deliver
from lake.sinks.kind import declared_sinks
from lake.sinks.verify import verify_sink
from lake.store.ledger.editions import kept_editions
from lake.testing import Commands, Lakehouse
from tests.servers.postgres import Postgres
from tests.shop import new_shop, order

TEXT = 'kind = "postgres"\nurl = "{}"\n{}[tables.customer_daily]\n[tables.current_order]\n'


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Project of `lake init` with two orders. Tests only copy it."""
    home = tmp_path_factory.mktemp("calm")
    return new_shop(home).land("orders", order(1, "joan"), order(2, "grace")).run()


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.database()


@pytest.fixture
def shop(calm: Lakehouse, tmp_path: Path, url: str) -> Lakehouse:
    """Copy of `calm` with a sink."""
    shutil.copytree(calm.home, tmp_path, dirs_exist_ok=True)
    shop = Lakehouse(tmp_path / "shop", tmp_path)
    declare(shop, url)
    return shop


def declare(shop: Lakehouse, url: str, more: str = "") -> None:
    shop.source.path("sinks").mkdir(exist_ok=True)
    shop.source.path("sinks/crm.toml").write_text(TEXT.format(url, more))


def deliver_and_verify(shop: Lakehouse) -> DeliveryOutcome:
    """Deliver, and check that the sink has the edition that readers see."""
    [crm] = declared_sinks(shop.settings, ["crm"])
    done = deliver(shop.settings, crm)
    edition, verdicts = verify_sink(shop.settings, crm)
    assert edition == reader(shop.settings).edition.number
    assert {verdict.verdict for verdict in verdicts} == {"identical"}, verdicts
    return done


def sent(done: DeliveryOutcome) -> list[tuple[int, int, int]]:
    return [(one.inserted, one.updated, one.deleted) for one in done.tables]


def rows(sql: str, url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_copy_follows_late_events_a_rebuild_a_deploy_and_a_rollback(commands: Commands, shop: Lakehouse) -> None:
    def lake(*words: str) -> None:
        done = commands.lake(*words, at=shop)
        assert done.code == 0, done.err

    assert sent(deliver_and_verify(shop)) == [(2, 0, 0), (2, 0, 0)]
    shop.land("orders", order(3, "joan"))
    lake("run")
    assert sent(deliver_and_verify(shop)) == [(1, 0, 0), (1, 0, 0)]
    lake("rebuild", "--all")
    lake("publish")
    done = deliver_and_verify(shop)
    assert (done.changed, sent(done)) in [(False, []), (True, [(0, 0, 0), (0, 0, 0)])], "a rebuild sends nothing"
    job = shop.source.path("jobs/gold/customer_daily.py")
    text = job.read_text()
    job.write_text(text.replace('Sum("amount"),', 'Sum("-amount"),'))
    lake("deploy")
    assert sent(deliver_and_verify(shop)) == [(0, 3, 0), (0, 0, 0)]
    lake("publish", "--edition", "1")
    assert sent(deliver_and_verify(shop)) == [(0, 2, 1), (0, 0, 1)]
    lake("publish", "--resume")
    assert sent(deliver_and_verify(shop)) == [(1, 2, 0), (1, 0, 0)]
    job.write_text(text.replace('Sum("amount"),', 'Sum("amount * 2"),'))
    lake("deploy")
    done = deliver_and_verify(shop)
    assert (sent(done), done.tables[0].whole) == ([(3, 0, 0), (0, 0, 0)], True), "its column has another type"


def test_run_delivers_to_a_sink_with_after_publish_and_reports_its_failure(
    commands: Commands, shop: Lakehouse, url: str
) -> None:
    declare(shop, url, "after_publish = true\n")
    shop.source.path("sinks/only_by_command.toml").write_text(TEXT.format("env:NOT_SET", ""))
    shop.land("orders", order(3, "joan"))
    done = commands.lake("run", at=shop)
    assert done.code == 0, done.err
    assert "deliver crm: edition 2: customer_daily +3 ~0 -0, current_order +3 ~0 -0" in done.err
    assert not deliver_and_verify(shop).changed
    declare(shop, "host=127.0.0.1 port=1", "after_publish = true\n")
    shop.land("orders", order(4, "joan"))
    done = commands.lake("run", at=shop)
    assert done.code == 75
    assert "edition 3 of cut" in done.out
    assert "deliver crm failed: PostgreSQL does not answer" in done.err


def test_purge_waits_until_the_sink_has_the_erased_rows(shop: Lakehouse, url: str) -> None:
    deliver_and_verify(shop)
    assert rows("SELECT count(*) FROM lake.current_order WHERE customer = 'joan'", url) == [(1,)]
    forget(shop.project, lambda: shop.spark, "orders", "joan")
    progress: list[str] = []
    catch_up(shop.project, lambda: shop.spark, progress.append)
    assert any("sink crm has edition 1 only, and is waited for until" in line for line in progress), progress
    assert len(kept_editions(shop.settings)) > 1
    deliver_and_verify(shop)
    assert rows("SELECT count(*) FROM lake.current_order WHERE customer = 'joan'", url) == [(0,)]
    catch_up(shop.project, lambda: shop.spark, progress.append)
    assert [edition.number for edition in kept_editions(shop.settings)] == [reader(shop.settings).edition.number]
    assert not any(sent(deliver_and_verify(shop))), "the purge changes no row"


def test_purge_stops_waiting_at_its_limit_and_the_sink_gets_all_rows_again(shop: Lakehouse) -> None:
    deliver_and_verify(shop)
    impatient = replace(shop.project, settings=replace(shop.settings, keep_consumer_days=0))
    forget(impatient, lambda: shop.spark, "orders", "joan")
    catch_up(impatient, lambda: shop.spark, lambda _: None)
    done = deliver_and_verify(shop)
    assert all(table.whole for table in done.tables)


def test_proof_lists_sinks_behind_the_purge_and_tables_that_keep_old_rows(commands: Commands, shop: Lakehouse) -> None:
    deliver_and_verify(shop)
    text = shop.source.path("sinks/crm.toml")
    text.write_text(f'{text.read_text()}name = "seen"\nmode = "append"\n')
    done = commands.lake("forget", "orders", "subject=joan", "--yes", "--proof", at=shop)
    assert (done.code, "waited for" in done.err) == (1, True), "the purge waits for the sink"
    assert "not proved to be gone from sink crm: older editions have not been purged yet: lake status" in done.out
    assert "not proved to be gone from sink crm: its table seen keeps a row of each change" in done.out
