"""Warehouses of earlier releases: the current code reads, queries, advances, verifies and purges each unchanged.

The stored formats are: the layout of logs and tables, metadata of commits, the key store and its encryption, the spool
of a source, the order of a log, fingerprints of definitions, and the state of kinds in their tables. All kinds are in a
fixture, over logs and over tables; sealed fields; grown contracts, with an upcast and a nested field; TRUNCATE, full
dumps and Debezium's messages; producers and missing numbers; duplicates, refused records, a void, editions, a deploy, a
compaction. `tests/fixtures/README.md` describes how to make one.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell, lake
from lake.testing import Lakehouse

pytestmark = pytest.mark.slow

FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
RELEASES: Final = ("0.2.0",)
SPOOLED: Final = 2
"""Visits of the delivery that is in the spool and in no log."""
REVISED: Final[set[str]] = set()
"""Tables of which the kind, or a measure, has been revised since: they ask for a deploy.

A table that asks for one for any other reason is a fault: every user would have to build it anew.
"""


def unpacked(release: str, home: Path) -> Lakehouse:
    """Return a copy of the fixture of a release."""
    written = FIXTURES / release
    shutil.copytree(written, home / "shop", ignore=shutil.ignore_patterns("*.gz", "answers.json", "__pycache__"))
    (home / "shop/rows.json").write_text("[]")  # The tap has no more
    with tarfile.open(written / "warehouse.tar.gz") as packed:
        packed.extractall(home, filter="data")
    return Lakehouse(home / "shop", home)


def command(shop: Lakehouse, *words: str) -> Result:
    """Run `lake` in this process, with its session if there is one; it must succeed."""
    shell = Shell(project=shop.source.project)
    if session := SparkSession.getActiveSession():
        shell.__dict__["spark"] = session
    environment = {"LAKE_WAREHOUSE": str(shop.settings.warehouse_path), "LAKE_LANDING": str(shop.settings.landing)}
    done = CliRunner(env=environment).invoke(lake, list(words), obj=shell, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def answered(shop: Lakehouse, *words: str) -> Any:
    return json.loads(command(shop, *words, "--json").stdout)


def order(number: int, customer: str, status: str, **other: Any) -> dict[str, Any]:
    at = f"2024-03-{number % 20 + 6:02}T08:00:00Z"
    record = {"order_id": number, "customer": customer, "status": status, "amount": "5.00", "pieces": 1}
    return {**record, "changed_at": at, **other}


def land_more(shop: Lakehouse) -> None:
    """Land a further batch of every stream: new, late and redelivered."""
    again = {"address": "12 st james's square", "amount": "12.50", "pieces": 2}
    orders = [
        order(3, "joan clarke", "paid", address="bletchley park, hut 8"),
        order(21, "emmy noether", "placed", channel="web"),
        order(2, "grace hopper", "shipped", changed_at="2024-03-02T00:00:00Z"),
        order(1, "ada lovelace", "placed", changed_at="2024-03-01T09:00:00Z", **again),
        order(4, "ada lovelace", "cancelled"),
    ]
    payment = {"payment_id": "p7", "order_id": 21, "paid": "5.00", "paid_at": "2024-03-07T09:00:00Z"}
    late = {"payment_id": "p8", "order_id": 1, "paid": "-1.00", "paid_at": "2024-03-01T09:30:00Z"}
    insert: dict[str, Any] = {"op": "c", "before": None, "after": {"id": 9, "name": "emmy"}, "source": {"lsn": 51}}
    truncate: dict[str, Any] = {"op": "t", "source": {"lsn": 50}}
    bolt = {"item": "bolt", "pieces": 1, "dump": 3, "ended": False}
    ended = {"item": None, "pieces": None, "dump": 3, "ended": True}
    landed: dict[str, list[dict[str, Any]]] = {
        "orders": orders,
        "payments": [payment, late],
        "contacts": [truncate, insert],
        "stock": [bolt, ended],
    }
    for stream, records in landed.items():
        file = shop.settings.path(shop.settings.landing) / stream / "later.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def must_be_right(shop: Lakehouse) -> None:
    """Assert that the tables equal the logs, and that the logs are intact."""
    verdicts = answered(shop, "verify", "--all")["tables"]
    assert {each["verdict"] for each in verdicts} == {"identical"}
    assert {each["table"] for each in verdicts} == set(shop.project.tables)
    for stream in shop.project.contracts:
        command(shop, "log", stream, "--check")


def must_answer(shop: Lakehouse, release: str) -> None:
    """Assert that queries return their former answers, and that no table needs a rebuild."""
    for edition, tables in json.loads((FIXTURES / release / "answers.json").read_text()).items():
        rows = "select '{0}' as name, unnest(list_sort(list({0}::varchar))) as row from {0}"
        answers = answered(shop, "sql", " union all ".join(map(rows.format, tables)), "--edition", edition)
        for name, wanted in tables.items():
            assert [each["row"] for each in answers if each["name"] == name] == wanted, f"{name} of edition {edition}"
    names = set(shop.project.tables)
    assert {each["table"].partition(".")[2] for each in answered(shop, "tables")} == names
    status = answered(shop, "status")
    assert {each["name"] for each in status["tables"]} == names
    plan = {each["table"]: each for each in answered(shop, "plan")["tables"]}
    asked = {name: each["changes"] for name, each in plan.items() if each["state"] not in ("unchanged", "follows")}
    assert set(asked) == REVISED, asked
    for stream in shop.project.contracts:
        command(shop, "log", stream, "--check")


@pytest.mark.parametrize("release", RELEASES)
def test_release_answers_its_former_queries(tmp_path: Path, release: str) -> None:
    must_answer(unpacked(release, tmp_path), release)


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("writer", ["delta-rs", "spark"])
def test_release_advances_with_new_events(
    spark: SparkSession, tmp_path: Path, release: str, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = unpacked(release, tmp_path)
    if writer == "spark":
        monkeypatch.setenv("LAKE_IN_PROCESS_ROWS", "0")

    land_more(shop)
    before = {name: shop.table(name) for name in shop.project.tables}
    command(shop, "run")
    same = {name for name, rows in before.items() if shop.table(name) == rows}
    assert same - {"current_order__parked"} == {"status_first"}, "each status had its first order already"
    assert len(shop.table("visit")) == len(before["visit"]) + SPOOLED
    if writer == "spark":
        must_be_right(shop)

    changes = command(shop, "changes", "customer_rank", "--consumer", "crm", "--json").stdout.splitlines()
    told = [json.loads(line)["change"] for line in changes]
    assert ("snapshot" in told, told[-1]) == (False, "complete"), "the consumer goes on from the edition that it had"
    command(shop, "changes", "customer_rank", "--consumer", "crm", "--forget")  # Otherwise the purge waits for it
    command(shop, "forget", "orders", "subject=joan clarke", "--yes", "--proof")
    assert {row["customer"] for row in shop.table("current_order") if row["order_id"] in (3, 5)} == {None}
    must_be_right(shop)
