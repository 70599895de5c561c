"""Cycles of a project in publish groups: after any failures and repairs, each group equals its recorded cut."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.errors import LakeError, QualityError
from lake.ingest.replay import accept
from lake.ops.pipeline import run
from lake.privacy.command import forget_person
from lake.project.groups import held_by
from lake.publish.deploy import deploy
from lake.read.edition_check import verify_edition
from lake.read.sql import reader
from lake.store.ledger import cuts, editions
from lake.testing import Lakehouse
from tests.checks import present
from tests.publish.test_groups import CONTRACTS, GROUPS, JOBS, TABLES, allow, at, setting, stop
from tests.shop import contract, declare, empty, field

Rows = list[tuple[Any, ...]]

CONTENT: Final = {
    "sale": "SELECT sale, customer, amount FROM sale ORDER BY ALL",
    "customer_total": "SELECT customer, sales, amount::BIGINT FROM customer_total ORDER BY ALL",
    "visit": "SELECT visit, page FROM visit ORDER BY ALL",
    "overview": "SELECT what, n FROM overview ORDER BY ALL",
}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Lakehouse:
    """Return a project in groups, run once."""
    return shop_after_run(tmp_path, setting(GROUPS))


def shop_after_run(
    folder: Path, groups: str, jobs: Mapping[str, str] = JOBS, contracts: Iterable[Mapping[str, Any]] = CONTRACTS
) -> Lakehouse:
    shop = declare(empty(folder / "project", groups), *contracts, jobs=jobs)
    return shop.land("sales", sale(1)).land("visits", visit(1)).run()


def sale(number: int, customer: str = "ada", amount: object = 5) -> dict[str, Any]:
    return {"sale": number, "customer": customer, "amount": amount}


def visit(number: int, page: str = "/") -> dict[str, Any]:
    return {"visit": number, "page": page}


def again(shop: Lakehouse) -> Lakehouse:
    """Return the project with its declarations read again."""
    return Lakehouse(shop.settings.project, shop.home)


def edit(shop: Lakehouse, name: str, old: str, new: str) -> Lakehouse:
    job = next(job for job in JOBS if job.endswith(f"/{name}"))
    shop.settings.path(f"jobs/{job}.py").write_text(JOBS[job].replace(old, new))
    return again(shop)


class World:
    """Model of the shop: landed records, failures, and the rows that readers see of each table."""

    def __init__(self, shop: Lakehouse) -> None:
        self.shop = shop
        self.sales: dict[int, tuple[str, int]] = {1: ("ada", 5)}
        self.visits: dict[int, str] = {1: "/"}
        self.broken: set[str] = set()
        self.seen: dict[str, tuple[int, Rows]] = {}
        self.show(set())

    def rows(self, table: str) -> Rows:
        """Return the rows of a table for all landed records."""
        if table == "sale":
            return sorted((number, *values) for number, values in self.sales.items())
        if table == "visit":
            return sorted(self.visits.items())
        totals: dict[str, list[int]] = {}
        for customer, amount in self.sales.values():
            totals.setdefault(customer, []).append(amount)
        if table == "overview":
            return [("customers", len(totals)), ("visits", len(self.visits))]
        return sorted((customer, len(amounts), sum(amounts)) for customer, amounts in totals.items())

    def show(self, held: set[str]) -> None:
        """Publish all groups except the `held` ones."""
        cut = present(cuts.latest_cut(self.shop.settings)).number
        for group, members in self.shop.project.groups.items():
            self.seen |= {table.name: (cut, self.rows(table.name)) for table in members if group not in held}

    def land(self, choice: random.Random) -> None:
        """Land some events of each stream, of new and existing keys."""
        sales = {
            choice.randint(1, 9): (choice.choice("abc"), choice.randint(0, 9)) for _ in range(choice.randint(0, 3))
        }
        visits = {choice.randint(1, 9): choice.choice("/xyz") for _ in range(choice.randint(0, 2))}
        self.sales |= sales
        self.visits |= visits
        if sales:
            self.shop.land("sales", *(sale(number, *values) for number, values in sales.items()))
        if visits:
            self.shop.land("visits", *(visit(number, page) for number, page in visits.items()))

    def break_(self, table: str, how: str) -> None:
        self.broken.add(table)
        if how == "gate":
            stop(self.shop.settings, table)
        else:
            self.shop = edit(self.shop, table, "return ", "other = 1\n    return ")

    def mend(self, table: str) -> None:
        self.broken.remove(table)
        allow(self.shop.settings, table)
        self.shop = edit(self.shop, table, "", "")

    def cycle(self) -> None:
        """Run one cycle, and return the blocked groups of the model."""
        groups = self.shop.project.groups
        held = {group for table in self.broken for group in held_by(groups, table)}
        before = present(editions.latest_edition(self.shop.settings)).tables
        with pytest.raises(LakeError) if held else nullcontext():
            self.shop.run()
        self.show(held)
        after = present(editions.latest_edition(self.shop.settings)).tables
        for table in (table.name for group in held for table in groups[group]):
            assert (before[table].path, before[table].version) == (after[table].path, after[table].version), table

    def check(self) -> None:
        """Assert that readers see the rows of the model in each table, as published."""
        edition = present(editions.latest_edition(self.shop.settings))
        assert at(edition) == {name: cut for name, (cut, _) in self.seen.items()}
        shown = reader(self.shop.settings)
        found = {name: shown.relation(query).fetchall() for name, query in CONTENT.items()}
        assert found == {name: rows for name, (_, rows) in self.seen.items()}
        assert {each.verdict for each in verify_edition(self.shop.settings, edition.number)} == {"identical"}


@pytest.mark.long
@pytest.mark.parametrize(("seed", "groups"), [(2, GROUPS), (3, GROUPS), (4, GROUPS), (5, {})])
def test_groups_equal_their_cut_after_any_failures_and_repairs(
    spark: SparkSession, tmp_path: Path, seed: int, groups: dict[str, list[str]]
) -> None:
    choice = random.Random(seed)
    world = World(shop_after_run(tmp_path, setting(groups) if groups else ""))
    for _ in range(6):
        world.land(choice)
        table = choice.choice([*TABLES])
        if table in world.broken:
            world.mend(table)
        elif choice.random() < 0.6:
            world.break_(table, choice.choice(["gate", "job"]))
        world.cycle()
        world.check()
    for table in [*world.broken]:
        world.mend(table)
    world.cycle()
    world.check()
    world.shop.check_laws(slices=0)


@pytest.mark.long
def test_rejected_records_block_derived_tables_until_acceptance(shop: Lakehouse) -> None:
    shop.land("sales", sale(2, amount="many")).land("visits", visit(2))
    with pytest.raises(QualityError, match="sales: 1 of 1 records of batch 2 were refused"):
        shop.run()
    held = {"sale": 1, "customer_total": 1, "visit": 2, "overview": 1}
    assert at(editions.latest_edition(shop.settings)) == held
    shop.land("visits", visit(3))
    with pytest.raises(QualityError):
        shop.run()
    assert at(editions.latest_edition(shop.settings)) == held | {"visit": 3}
    accept(shop.settings, lambda: shop.spark, "sales", reason="lost")
    shop.run()
    assert at(editions.latest_edition(shop.settings)) == dict.fromkeys(TABLES, 4)


@pytest.mark.long
def test_failing_job_blocks_its_group_and_fails_the_cycle(spark: SparkSession, tmp_path: Path) -> None:
    dividing = (
        JOBS["silver/sale"].replace("select(", "selectExpr(").replace('"amount")', '"100 div (13 - amount) as amount")')
    )
    shop = shop_after_run(tmp_path, setting(GROUPS), {**JOBS, "silver/sale": dividing})
    shop.land("sales", sale(2, amount=13)).land("visits", visit(2))
    done = run(shop.settings, lambda: shop.spark, lambda _: None)
    held = present(done.held)
    assert held.others == ("traffic",)
    assert "sale: not at cut 2" in held.groups["sales"]
    assert "by zero" in str(held.error)
    assert [(table.table, table.cut) for table in done.tables] == [("visit", 2)]
    assert at(done.edition) == {"sale": 1, "customer_total": 1, "visit": 2, "overview": 1}


@pytest.mark.long
def test_deploy_publishes_groups_if_no_blocked_group_has_a_changed_table(spark: SparkSession, tmp_path: Path) -> None:
    jobs = {name: text for name, text in JOBS.items() if name != "gold/overview"}
    shop = shop_after_run(tmp_path, setting(GROUPS), jobs)
    stop(shop.settings, "sale")
    shop.land("sales", sale(2)).land("visits", visit(2))
    with pytest.raises(QualityError):
        shop.run()
    lines: list[str] = []
    shop = edit(shop, "visit", '"visit", "page"', '"page", "visit"')
    edition = deploy(shop.project, lambda: shop.spark, lambda _: None, lines.append)
    assert at(edition) == {"sale": 1, "customer_total": 1, "visit": 2}
    assert edition.tables["visit"].home != "visit"
    assert lines[0].startswith("publish sales is held at cut 1: ")

    shop = edit(again(shop), "sale", '"sale", "customer"', '"customer", "sale"')
    with pytest.raises(QualityError, match="sale"):
        deploy(shop.project, lambda: shop.spark, lambda _: None, lambda _: None)
    assert present(editions.latest_edition(shop.settings)).number == edition.number

    allow(shop.settings, "sale")
    edition = deploy(again(shop).project, lambda: shop.spark, lambda _: None, lambda _: None)
    assert at(edition) == {"sale": 2, "customer_total": 2, "visit": 2}
    assert {name: entry.home for name, entry in edition.tables.items()} == {name: name for name in edition.tables}
    again(shop).check_laws(slices=0)


@pytest.mark.long
def test_purge_completes_when_every_group_is_published_without_the_person(spark: SparkSession, tmp_path: Path) -> None:
    people = contract("visits", {"visit": "int", "page": "string?"}, subject="page")
    people["fields"].append(field("who", "string?") | {"personal": True})
    shop = shop_after_run(tmp_path, setting(GROUPS), JOBS, (CONTRACTS[0], people))
    shop.land("visits", {**visit(2, "/ada"), "who": "ada"}).run()
    stop(shop.settings, "sale")
    shop.land("sales", sale(2)).land("visits", visit(3))
    with pytest.raises(QualityError):
        forget_person(shop.project, lambda: shop.spark, "visits", "/ada", lambda _: None)
    assert len(editions.kept_editions(shop.settings)) > 1
    allow(shop.settings, "sale")
    shop.run()
    assert len(editions.kept_editions(shop.settings)) == 1
    assert at(editions.latest_edition(shop.settings)).keys() == TABLES.keys()
