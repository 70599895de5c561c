"""A run looks a table up in the storage once a step, not once a question."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lake import pipeline
from lake.config import Settings
from lake.store.table_log import TableLog
from tests.shop import contract, declare, job

MOST = 20


def test_run_of_one_late_event_looks_tables_up_few_times(
    spark: SparkSession, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = contract(
        "orders",
        {"customer": "string", "number": "long", "at": "timestamp"},
        key=["customer"],
        id=["number"],
        time="at",
    )
    shop = declare(project, orders, jobs={"latest_order": job("latest_order", 'Latest("customer")', 'log("orders")')})
    for number in (5, 7):
        shop.land("orders", {"customer": "joan", "number": number, "at": f"2026-01-0{number}T00:00:00Z"}).run()
    looked_up = list[str]()
    newest = TableLog.newest

    def counting(self: TableLog) -> int | None:
        before = self.lookups
        version = newest(self)
        looked_up.extend([self.path.url] * (self.lookups - before))
        return version

    monkeypatch.setattr(TableLog, "newest", counting)
    shop.land("orders", {"customer": "joan", "number": 6, "at": "2026-01-06T00:00:00Z"})
    pipeline.run(shop.settings, lambda: spark, lambda _: None)
    assert len(looked_up) <= MOST, looked_up
