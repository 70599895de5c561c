"""What happens to the shop of `lake init` between two runs, so that the second one has work."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.store.ledger import runs
from lake.store.ledger.editions import pin_edition
from tests.checks import spark_forbidden
from tests.shop import order


def job_file(settings: Settings) -> Path:
    return settings.path("jobs/silver/current_order.py")


def _land(settings: Settings) -> None:
    (settings.path(settings.landing) / "orders/new.jsonl").write_text(json.dumps(order(9)) + "\n")


def _ingest_elsewhere(settings: Settings) -> None:
    _land(settings)
    ingest(settings, spark_forbidden, load_contracts(settings))


def _change_job(settings: Settings) -> None:
    file = job_file(settings)
    file.write_text(file.read_text() + "\nMORE = 1\n")


def _add_expectation(settings: Settings) -> None:
    there = {"type": "expect_column_to_exist", "kwargs": {"column": "amount"}, "severity": "stop", "doc": "an amount"}
    settings.path("quality/current_order.json").write_text(json.dumps({"expectations": [there]}))


def _truncate_commit(settings: Settings) -> None:
    commits = sorted((settings.warehouse_path / "silver/current_order/_delta_log").glob("*.json"))
    commits[-1].write_text("")


def _fail_elsewhere(settings: Settings) -> None:
    runs.record_outcome(settings, "rebuild", "current_order", 1, datetime.now(UTC), error="no Java")


NEWS: dict[str, Callable[[Settings], object]] = {
    "a landed file": _land,
    "a batch of another process": _ingest_elsewhere,
    "a changed job": _change_job,
    "an expectation": _add_expectation,
    "a truncated commit": _truncate_commit,
    "a failure of another command": _fail_elsewhere,
    "readers that are pinned": lambda settings: pin_edition(settings, 1),
}
