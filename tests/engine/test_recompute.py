"""Recomputation for a changed definition, a damaged table or a time range: plan, deploy, rebuild, backfill, verify."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake.engine.advance import advance_all
from lake.engine.backfill import backfill
from lake.engine.inputs import Inputs
from lake.engine.pending_change import table_change
from lake.engine.plan import plan
from lake.engine.rebuild import rebuild, rebuild_all
from lake.engine.verbs import Advanced
from lake.engine.verify import verify, verify_all
from lake.errors import DeclarationError, QualityError
from lake.ingest.ingest import ingest
from lake.publish import deploy as deploying
from lake.publish.blocked_groups import tables_by_group
from lake.publish.cut import cut, pick_cut
from lake.publish.deploy import deploy
from lake.publish.publish import publish
from lake.publish.retention import retired
from lake.read.sql import reader
from lake.store.ledger.editions import (
    Edition,
    current_edition,
    kept_editions,
    latest_edition,
    pin_edition,
    resume_editions,
)
from lake.store.scan import Scan
from lake.store.table_head import DUCKDB, SPARK, Counts
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.checks import present
from tests.shop import new_shop

JOB = "jobs/silver/current_order.py"


@pytest.fixture
def shop(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Lakehouse:
    """Return the project of `lake init`, run once; with the parameter SPARK, all by Spark."""
    if getattr(request, "param", DUCKDB) == SPARK:
        monkeypatch.setenv("LAKE_IN_PROCESS_ROWS", "0")
    return new_shop(tmp_path).land_samples().run()


def again(shop: Lakehouse) -> Lakehouse:
    """Return the project with its declarations read again."""
    return Lakehouse(shop.settings.project, shop.settings.warehouse_path.parent)


def edit(shop: Lakehouse, old: str, new: str, job: str = JOB) -> Lakehouse:
    file = shop.settings.path(job)
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return again(shop)


def order(number: int, amount: str, day: str = "2024-04-03", **more: Any) -> dict[str, Any]:
    at = dict.fromkeys(("placed_at", "changed_at"), f"{day}T10:00:00Z")
    return {"order_id": number, "customer": "joan", "status": "placed", "amount": amount} | at | more


def log_rows(shop: Lakehouse) -> list[dict[str, Any]]:
    return list(Scan(Warehouse(shop.settings).log("orders").path).arrow().to_pylist())


def states(shop: Lakehouse) -> dict[str, str]:
    return {each.table: each.state for each in plan(shop.project)}


def deployed(shop: Lakehouse, *, yes: bool = False) -> tuple[Edition, dict[str, Advanced]]:
    done: dict[str, Advanced] = {}
    edition = deploy(shop.project, lambda: shop.spark, lambda each: done.update({each.table: each}), print, yes=yes)
    return edition, done


def verdicts(shop: Lakehouse) -> dict[str, str]:
    found = verify_all(lambda: shop.spark, shop.project, on_progress=lambda _: None)
    return {each.table: each.verdict for each in found}


def inputs_of(shop: Lakehouse) -> Inputs:
    return Inputs(lambda: shop.spark, shop.project, pick_cut(shop.project, None))


IDENTICAL = {"current_order": "identical", "customer_daily": "identical"}


@pytest.mark.long
def test_changed_definition_is_planned_deployed_and_rolled_back(shop: Lakehouse) -> None:
    assert states(shop) == {"current_order": "unchanged", "customer_daily": "unchanged"}
    twice = '(orders.amount * 2).cast("decimal(9, 2)").alias("amount"), orders.changed_at.alias("noted"),'
    changed = edit(shop, '"amount",', twice)

    first, second = plan(changed.project)
    assert (first.state, first.changes, first.follows) == ("changed", ("function changed",), ("customer_daily",))
    assert (second.state, second.changes, second.text) == ("follows", ("derived from current_order",), ())
    (gone,) = (line for line in first.text if line.startswith("-") and "---" not in line)
    (come,) = (line for line in first.text if line.startswith("+") and "+++" not in line)
    assert first.text[:2] == ("--- jobs/silver/current_order.py as built", "+++ jobs/silver/current_order.py")
    assert come[1:] == gone[1:].replace('"amount",', twice)
    assert (first.rows, second.rows) == (len(log_rows(shop)), len(shop.table("current_order")))
    assert first.rate is not None
    with pytest.raises(DeclarationError, match="lake deploy"):
        changed.run()
    assert verdicts(changed)["current_order"] == "unknown"

    change = table_change(lambda: changed.spark, changed.project, changed.project.tables["customer_daily"])
    amounts = {each.column: each for each in change.columns}["amount"]
    assert amounts.after == 2 * present(amounts.before)
    assert change.counts == Counts(updated=amounts.rows)

    before = latest_edition(shop.settings)
    with pytest.raises(DeclarationError, match=r"amount decimal\(10,2\) → decimal\(9,2\)") as refused:
        deployed(changed)
    assert refused.value.exit_code == 2
    edition, done = deployed(changed, yes=True)
    assert [edition.number, edition.cut] == [present(before).number + 2, present(before).cut]
    assert {each.verb for each in done.values()} == {"build"}
    assert [each.path for each in edition.tables.values()] == [each.path for each in present(before).tables.values()]
    assert [each.number for each in kept_editions(shop.settings)] == [
        edition.number,
        *range(present(before).number, 0, -1),
    ]
    with pytest.raises(DeclarationError, match="its definition has changed"):
        publish(shop.project, pick_cut(shop.project, present(before).cut), lambda: shop.spark, print)
    changed = again(changed)
    assert verdicts(changed) == IDENTICAL
    changed.land("orders", order(7, "9.00")).run()
    assert changed.table("current_order")[-1]["noted"] == datetime(2024, 4, 3, 10, tzinfo=UTC)
    assert verdicts(changed) == IDENTICAL

    pin_edition(changed.settings, present(before).number)
    assert "noted" not in reader(changed.settings).relation("FROM current_order").columns
    resume_editions(changed.settings)
    assert "noted" in reader(changed.settings).relation("FROM current_order").columns


@pytest.mark.long
def test_deploy_accepts_an_expectation_of_a_new_column(shop: Lakehouse) -> None:
    changed = edit(shop, '"amount",', '"amount", orders.changed_at.alias("noted"),')
    file = changed.settings.path("quality/current_order.json")
    noted = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "noted"}}
    file.write_text(json.dumps({"expectations": [*json.loads(file.read_text())["expectations"], noted]}))
    assert states(changed)["current_order"] == "changed"
    edition, _ = deployed(changed)
    assert edition.number == 3
    file.write_text(file.read_text().replace("noted", "noticed"))
    with pytest.raises(DeclarationError, match="no column 'noticed'"):
        plan(again(changed).project)


@pytest.mark.long
def test_verify_reads_the_version_of_the_cut_when_a_table_has_advanced(shop: Lakehouse) -> None:
    then = Inputs(lambda: shop.spark, shop.project, pick_cut(shop.project, None), recompute=True)
    shop.land("orders", order(7, "9.00")).run()
    found = verify(then, shop.project.tables["customer_daily"])
    assert (found.cut, found.verdict, found.rows) == (1, "identical", 3)


@pytest.mark.long
def test_deploy_follows_an_edition_published_during_its_checks(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = shop.project
    changed = edit(shop, '"amount",', '(-orders.amount).alias("amount"),')

    def meanwhile(*arguments: Any, **options: Any) -> object:
        monkeypatch.undo()
        shop.land("orders", order(7, "9.00"))
        ingest(shop.settings, lambda: shop.spark, live.contracts)
        now = cut(live)
        advance_all(Inputs(lambda: shop.spark, live, now), on_progress=lambda _: None)
        assert publish(live, now, lambda: shop.spark, print)[0].cut == 2
        return tables_by_group(*arguments, **options)

    monkeypatch.setattr(deploying, "tables_by_group", meanwhile)
    edition, _ = deployed(changed)
    assert (edition.number, edition.cut) == (4, 2)


@pytest.mark.long
def test_stopped_deploy_keeps_readers_and_micro_batches(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = edit(shop, '"amount",', '(-orders.amount).alias("amount"),')
    quality = changed.settings.path("quality/current_order.json")
    suite = quality.read_text()
    quality.write_text(suite.replace('"warn"', '"stop"').replace('"max_value": 10000', '"min_value": 0'))
    live = {name: table.version for name, table in present(current_edition(shop.settings)).tables.items()}
    with pytest.raises(QualityError, match="current_order"):
        deployed(changed)
    quality.write_text(suite)

    monkeypatch.setattr(deploying, "tables_by_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deployed(again(changed))
    monkeypatch.undo()
    assert {name: table.version for name, table in present(current_edition(shop.settings)).tables.items()} == live
    original = edit(changed, '(-orders.amount).alias("amount"),', '"amount",')
    original.land("orders", order(7, "9.00")).run()
    assert present(latest_edition(shop.settings)).number == 2

    changed = edit(original, '"amount",', '(-orders.amount).alias("amount"),')
    _, done = deployed(changed)
    assert [done["current_order"].verb, done["current_order"].inserted] == ["advance", 1]
    assert verdicts(again(changed)) == IDENTICAL
    assert states(again(changed)) == {"current_order": "unchanged", "customer_daily": "unchanged"}


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_deploy_retires_a_table_without_a_job_and_adds_a_new_table(shop: Lakehouse) -> None:
    gone, new = (shop.settings.path(f"jobs/gold/{name}.py") for name in ("customer_daily", "daily"))
    new.write_text(gone.read_text().replace("def customer_daily", "def daily").replace('key="customer"', "key=()"))
    gone.unlink()
    shop.settings.path("quality/customer_daily.json").unlink()
    changed = again(shop)
    assert states(changed) == {"current_order": "unchanged", "daily": "new", "customer_daily": "removed"}
    edition, _ = deployed(changed)
    assert sorted(edition.tables) == ["current_order", "daily"]
    assert [str(each.location) for each in retired(changed.project)] == ["table customer_daily"]
    assert states(again(changed)) == {"current_order": "unchanged", "daily": "unchanged"}


@pytest.mark.long
@pytest.mark.parametrize("shop", [DUCKDB, SPARK], indirect=True)
def test_backfill_repairs_tampered_rows_of_its_range(shop: Lakehouse) -> None:
    engine = DUCKDB if shop.settings.in_process_rows else SPARK
    shop.land("orders", order(7, "9.00"), order(8, "5.00", day="2024-05-01")).run()
    orders, daily = (shop.project.tables[name] for name in ("current_order", "customer_daily"))
    path = str(shop.project.table(orders).path)
    DeltaTable(path).update(updates={"amount": "amount + 1"}, predicate="order_id >= 7")
    DeltaTable(path).delete("order_id = 1")
    found = {each.table: each for each in verify_all(lambda: shop.spark, shop.project, on_progress=lambda _: None)}
    assert (found["current_order"].verdict, found["current_order"].differing) == ("differs", 3)
    missing, seven, _ = found["current_order"].differences
    assert (missing["order_id"], missing["change"]) == (1, "missing")
    assert [str(value) for value in seven["columns"]["amount"]] == ["10.00", "9.00"]
    assert found["customer_daily"].verdict == "identical"

    version = DeltaTable(path).version()
    [would] = rebuild_all(inputs_of(shop), ["current_order"], dry_run=True, on_progress=lambda _: None)
    assert (would.verb, would.inserted, would.updated, would.deleted) == ("dry run", 1, 2, 0)
    assert [row["order_id"] for row in would.sample] == [1, 7, 8]
    assert DeltaTable(path).version() == version

    april, may = datetime(2024, 4, 1, tzinfo=UTC), datetime(2024, 5, 1, tzinfo=UTC)
    done = backfill(lambda: shop.spark, shop.project, orders, (april, may), on_progress=lambda _: None)
    assert [each.table for each in done] == ["current_order", "customer_daily"]
    assert (done[0].verb, done[0].inserted, done[0].updated) == ("backfill", 0, 1)
    assert DeltaTable(path).version() == version + 1
    march = datetime(2024, 3, 1, tzinfo=UTC)
    [done_daily] = backfill(
        lambda: shop.spark, shop.project, daily, (march, april), dry_run=True, on_progress=lambda _: None
    )
    assert (done_daily.verb, done_daily.inserted, done_daily.updated) == ("dry run", 0, 0)

    assert {each.engine for each in done} == {engine}
    done_again = rebuild(inputs_of(shop), orders)
    assert (done_again.inserted, done_again.updated, done_again.deleted) == (1, 1, 0)
    assert DeltaTable(path).version() == version + 2
    shop.run()
    assert verdicts(shop) == IDENTICAL


def _as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


LOST: Mapping[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "garbage": lambda file: file.write_bytes(b"\xff\x00garbage" * 100),
    "other bytes": lambda file: file.write_bytes(b"PAR1" + bytes(len(file.read_bytes()) - 8) + b"PAR1"),
    "a folder": _as_folder,
}


@pytest.mark.long
@pytest.mark.parametrize("table", ["current_order", "customer_daily"])
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("shop", [DUCKDB, SPARK], indirect=True)
def test_rebuild_restores_a_table_with_lost_files(shop: Lakehouse, lost: str, table: str) -> None:
    path = shop.project.table(shop.project.tables[table]).path.local
    before = shop.table(table)
    for file in path.glob("*.parquet"):
        LOST[lost](file)
    rebuild_all(inputs_of(shop), [table], on_progress=lambda _: None)
    publish(shop.project, pick_cut(shop.project, None), lambda: shop.spark, print)
    assert shop.table(table) == before
    assert verdicts(shop) == IDENTICAL
    shop.land("orders", order(7, "9.00"), order(1, "5.00")).run()
    assert verdicts(shop) == IDENTICAL
