"""Work gathered in this process up to a limit equals that of Spark beyond it. The same batches go into two lakes,
one with normal limits, one with limits of ten rows. In the second, nearly everything exceeds them: new, changed,
late, repeated and conflicting events, their net changes, the affected keys, and the rows changed by time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.engine import affected_keys, incremental
from lake.engine.verify import verify_all
from lake.ingest.deduplication import RedeliverySearch
from lake.store import duckdb_tables, quarantine
from lake.store.log import Log
from lake.store.tables import Table
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.shop import contract, declare, empty, job

FEW: Final = 10
LIMITS: Final = (
    "SCAN_ROWS",
    "HANDED_ROWS",
    "COMPARE_ROWS",
    "APPENDED_ROWS",
    "DEDUPLICATED_LOG_ROWS",
    "SOUGHT_ROWS",
    "READ_BYTES",
)
BEGAN: Final = datetime(2024, 5, 1, tzinfo=UTC)
ORDER: Final = {"id": "long", "client": "string?", "status": "string", "amount": "decimal(9, 2)", "at": "timestamp"}
CLIENT: Final = {"name": "string", "tier": "string", "since": "timestamp"}
JOBS: Final = {
    "current": job("current", 'Latest("id", sequence="at")', 'log("purchase")'),
    "tiers": job("tiers", 'History("name", sequence="since")', 'log("client")'),
    "gold/per_client": job(
        "per_client",
        'Aggregate("client", {"n": Count(), "total": Sum("amount"), "most": Max("amount"), "kinds": '
        'CountDistinct("status")})',
        "current",
    ),
    "gold/hourly": job(
        "hourly",
        'Aggregate("client", {"n": Count(), "total": Sum("amount")}, window=Tumbling(length=timedelta(hours=1), '
        'on="at"), late="drop", lateness=timedelta(hours=2), is_final=True)',
        'log("purchase")',
    ),
    "gold/priced": job(
        "priced",
        'Enrich(["id", "at"], AsOf("client"), time="at")',
        'log("purchase")',
        "tiers",
        returns='(rows.select("id", "at", "client", "amount"), rows1.withColumnRenamed("name", "client"))',
    ),
    "gold/joined": job(
        "joined",
        'Join("client", left="id", right="valid_from", how="left")',
        "current",
        "tiers",
        returns='(rows.where("id < 25"), rows1.selectExpr("name as client", "tier", "valid_from"))',
    ),
    "gold/view": job(
        "view",
        'View("client")',
        "current",
        returns='rows.groupBy("client").agg({"amount": "sum"}).withColumnRenamed("sum(amount)", "total")',
    ),
}
EVERY: Final = tuple(name.rpartition("/")[2] for name in JOBS)


def batch(chance: random.Random, number: int, size: int, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return new and late orders, some repeated, some with other content."""
    new = []
    for _ in range(size):
        hours = chance.randrange(24 * number) if chance.random() < 0.2 else 24 * number
        at = BEGAN + timedelta(hours=hours, seconds=chance.randrange(86_400))
        client = chance.choice(["ada", "grace", "joan", None])
        amount = f"{chance.randrange(1, 9000) / 100:.2f}"
        status = chance.choice(["new", "paid", "sent"])
        new.append({"id": chance.randrange(60), "client": client, "status": status, "amount": amount, "at": str(at)})
    again = chance.sample(sent, min(len(sent), size // 2))
    other = [{**record, "amount": "0.01"} for record in chance.sample(sent, min(len(sent), size // 3))]
    sent += new
    return new + again + other


def land(lake: Lakehouse, number: int, size: int, chance: random.Random, sent: list[dict[str, Any]]) -> None:
    lake.land("purchase", *batch(chance, number, size, sent), "no order")
    clients = [
        {"name": name, "tier": chance.choice("abc"), "since": str(BEGAN + timedelta(hours=chance.randrange(100)))}
        for name in ("ada", "grace", "joan", *map(str, range(15)))
    ]
    lake.land("client", *(clients if number % 2 else clients[:2]))


@contextmanager
def ten_row_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set limits of ten rows for the block."""
    with monkeypatch.context() as limited:
        for name in LIMITS:
            limited.setattr(cost, name, FEW)
        yield


@pytest.fixture
def exceeded_limits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of times that a limit was exceeded, by place."""
    met: Counter[str] = Counter()

    def counted(owner: Any, name: str, is_beyond: Callable[[Any], bool]) -> None:
        call = getattr(owner, name)

        def instead(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            met[name] += is_beyond(result)
            return result

        monkeypatch.setattr(owner, name, instead)

    counted(Table, "_changes_by_spark", lambda _: True)
    counted(RedeliverySearch, "find", lambda rows: rows.in_memory is None)
    counted(affected_keys, "reached_keys", lambda keys: keys.in_memory is None)
    counted(affected_keys, "_are_many", bool)
    counted(incremental, "_local", lambda rows: rows.in_memory is None)
    counted(incremental, "_at_horizon", lambda rows: rows is None)
    counted(incremental, "_of_many", lambda _: True)
    return met


def new_lake(folder: Path, tables: tuple[str, ...]) -> Lakehouse:
    jobs = {name: text for name, text in JOBS.items() if name.rpartition("/")[2] in tables}
    return declare(
        empty(folder),
        contract("purchase", ORDER, id=["id", "at"], time="at"),
        contract("client", CLIENT, id=["name", "since"], time="since"),
        jobs=jobs,
    )


def system_tables(lake: Lakehouse) -> tuple[Any, ...]:
    """Return the tables beside the log of orders, and their numbers."""
    again = duckdb_tables.rows(Warehouse(lake.settings).redeliveries("purchase").path, "SELECT * FROM t ORDER BY ALL")
    rejected = [replace(row, ingested_at=BEGAN) for row in quarantine.rejected(lake.settings, "purchase", upto=9)]
    return again, rejected, [(head.offsets, head.counts) for head in Log(lake.settings, "purchase").heads()]


@pytest.mark.long
@pytest.mark.parametrize("tables", [("current", "per_client"), EVERY], ids=["two tables", "every kind"])
def test_tables_are_equal_within_and_beyond_the_memory_limits(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exceeded_limits: Counter[str],
    tables: tuple[str, ...],
) -> None:
    lakes = [new_lake(tmp_path / name, tables) for name in ("many", "few")]
    limited = lakes[1]
    limited.settings = replace(limited.settings, in_process_rows=FEW)
    sent = [list[dict[str, Any]]() for _ in lakes]
    for number, size in enumerate([40, 30], 1):
        for lake, so_far in zip(lakes, sent, strict=True):
            land(lake, number, size, random.Random(number), so_far)
        before = exceeded_limits.copy()
        lakes[0].run()
        assert not {where for where in exceeded_limits if exceeded_limits[where] > before[where]} - {"_of_many"}
        with ten_row_limits(monkeypatch):
            limited.run()
        for table in tables:
            assert limited.table(table) == lakes[0].table(table), (number, table)
        assert system_tables(limited) == system_tables(lakes[0])
    verdicts = verify_all(lambda: spark, limited.project, on_progress=lambda _: None)
    assert {verdict.verdict for verdict in verdicts} == {"identical"}
    assert {"find", "_of_many", "_are_many", "_changes_by_spark"} <= set(+exceeded_limits), exceeded_limits
