"""Tables at an old cut, with or without a kept edition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell
from lake.cli import lake as command_line
from lake.config import Settings
from lake.errors import DeclarationError
from lake.privacy.forget import forget
from lake.store.ledger.editions import expire_editions
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.testing import Lakehouse
from tests.shop import new_shop, order

pytestmark = pytest.mark.long


def invoked(lakehouse: Lakehouse, *words: str) -> Result:
    """Run a command on the lakehouse in this process, with its session."""
    shell = Shell(project=lakehouse.settings.project)
    shell.__dict__ |= {"settings": lakehouse.settings, "spark": lakehouse.spark}
    return CliRunner().invoke(command_line, list(words), obj=shell, standalone_mode=False)


def done(lakehouse: Lakehouse, *words: str) -> Result:
    result = invoked(lakehouse, *words)
    assert result.exception is None, result.exception
    return result


def fault(lakehouse: Lakehouse, *words: str) -> str:
    result = invoked(lakehouse, *words)
    assert isinstance(result.exception, DeclarationError), result.output
    return str(result.exception)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Shop with a rejected record, an expired edition, a void batch, a forgotten customer and a changed definition."""
    home = tmp_path_factory.mktemp("shop")
    lakehouse = new_shop(home)
    lakehouse.land("orders", order(1), order(2, "margaret hamilton"), order(3), order(5, amount="much")).run()
    done(lakehouse, "void", "orders", "--batch", "1", "--reason", "a test")
    lakehouse.land("orders", order(4)).run()
    forget(lakehouse.project, lambda: lakehouse.spark, "orders", "margaret hamilton")
    lakehouse.run()
    expire_editions(lakehouse.settings, [1])
    job = lakehouse.settings.path("jobs/gold/customer_daily.py")
    job.write_text(job.read_text().replace('"orders": Count(),', '"orders": Count(), "all_orders": Count(),'))
    return Lakehouse(lakehouse.settings.project, lakehouse.home)


def files(settings: Settings) -> set[Path]:
    folders = (settings.warehouse_path, settings.path(".lake/staging"))
    return {file for folder in folders for file in folder.rglob("*") if "locks" not in file.parts}


def test_old_cut_is_queried_by_the_current_definitions(shop: Lakehouse) -> None:
    assert "edition 1 has expired" in fault(shop, "sql", "--cut", "1", "from customer_daily")
    before = files(shop.settings)
    query = "select customer, orders, all_orders from customer_daily order by all"
    answer = done(shop, "sql", "--cut", "1", "--recompute", query, "--json")
    one = {"orders": 1, "all_orders": 1}
    assert json.loads(answer.stdout) == [{"customer": name} | one for name in ("joan", "joan", None)]
    assert "recomputing customer_daily at cut 1, by the definitions and contracts of now" in answer.stderr
    assert "reads 3 events of orders, 0.0 MiB" in answer.stderr
    events = "select (select count(*) from log.orders) as events, (select count(*) from current_order) as orders"
    for cut, count in ((1, 3), (2, 1)):
        answer = done(shop, "sql", "--cut", str(cut), "--recompute", events, "--json")
        assert json.loads(answer.stdout) == [{"events": count, "orders": count}]
    assert files(shop.settings) == before, "nothing is left, and nothing changed"


def test_row_of_an_old_cut_is_explained_by_its_events(shop: Lakehouse) -> None:
    explained = json.loads(done(shop, "explain", "current_order", "order_id=1", "--at-cut", "1", "--json").stdout)
    [row] = explained["rows"]
    assert row["row"]["customer"] == "joan"
    assert [event["batch"] for event in row["from"][0]["events"]] == [1]
    [note] = explained["notes"]
    assert note.startswith("cut 1 is not kept")


def test_query_of_an_old_cut_reads_only_that_cut(shop: Lakehouse) -> None:
    at = ("sql", "--cut", "1", "--recompute")
    [live, *_] = (file for file in files(shop.settings) if "/gold/customer_daily/part-" in str(file))
    for outside in ("read_text('/etc/passwd')", f"read_parquet('{live}')", f"glob('{shop.settings.path('.lake')}/**')"):
        assert "the tables of the edition only" in fault(shop, *at, f"select * from current_order, {outside}")
    assert "DELETE is not allowed" in fault(shop, *at, "delete from current_order")
    assert not [*shop.settings.path(".lake/staging").glob("cut-*")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sql", "--recompute", "from current_order"], "--recompute needs a query and --cut"),
        (["sql", "--cut", "1", "--recompute", "--verified", "select 1"], "--recompute needs a query and --cut"),
        (["sql", "--cut", "1", "--recompute", "from nothing"], "known: current_order, customer_daily"),
        (["sql", "--cut", "9", "--recompute", "from current_order"], "no cut 9: cuts 1 to 3 exist"),
        (["rebuild", "--all", "--to", "new", "--dry-run"], "--to changes no table"),
        (["rebuild", "--all", "--to", "/nowhere/new"], "the folder above it does not exist"),
        (["rebuild", "--all", "--to", "/etc/passwd"], "this is not a folder"),
    ],
)
def test_old_cut_reports_an_unsupported_query(shop: Lakehouse, words: list[str], said: str) -> None:
    assert said in fault(shop, *words)


def test_rebuild_writes_tables_of_an_old_cut_to_a_folder(shop: Lakehouse, tmp_path: Path) -> None:
    folder, before = tmp_path / "old", files(shop.settings)
    told = json.loads(done(shop, "rebuild", "--all", "--cut", "1", "--to", str(folder), "--json").stdout)
    assert told == {
        "cut": 1,
        "tables": [
            {"table": "current_order", "rows": 3, "path": f"{folder}/silver/current_order"},
            {"table": "customer_daily", "rows": 3, "path": f"{folder}/gold/customer_daily"},
        ],
    }
    rows = Scan(Address(f"{folder}/silver/current_order")).arrow(["order_id", "customer"]).to_pylist()
    assert sorted(map(str, rows)) == sorted(
        str({"order_id": n, "customer": who}) for n, who in ((1, "joan"), (2, None), (3, "joan"))
    )
    assert "the folder is not empty" in fault(shop, "rebuild", "--all", "--cut", "1", "--to", str(folder))
    assert files(shop.settings) == before
    assert [*tmp_path.iterdir()] == [folder]
