"""Tables whose input no longer has the commits since they read it: all their keys are evaluated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lake.config import Settings
from lake.store import delta, table_logs
from lake.store.warehouse import Warehouse
from tests.checks import answer
from tests.shop import contract, declare, empty, job

pytestmark = pytest.mark.slow

SALE = contract("sale", {"id": "int", "shop": "string", "pieces": "int", "at": "timestamp"}, id=["id"], time="at")
LATEST = 'Latest("id", sequence="at")'
WIDER = job("newest", LATEST, 'log("sale")', returns='rows.selectExpr("*", "1 as one")')
TOTAL = job("total", 'Aggregate("shop", {"pieces": Sum("pieces")})', "newest", returns='rows.select("shop", "pieces")')


def land(settings: Settings, number: int) -> None:
    sale = {"id": number, "shop": "a", "pieces": number, "at": "2024-01-01T00:00:00Z"}
    settings.path("landing/sale").mkdir(exist_ok=True)
    settings.path(f"landing/sale/{number}.jsonl").write_text(json.dumps(sale))


def forget_earlier_commits(settings: Settings, layer: str, name: str) -> None:
    """Delete the commits below the newest one of a table, as Delta does, and the counts of that one, as Spark does."""
    path = Warehouse(settings).table(layer, name).path
    newest = path.local / "_delta_log" / f"{delta.version(path):020}.json"
    newest.write_text(re.sub(r'(inserted|updated|deleted)(\\+":)\d+', r"\1\g<2>0", newest.read_text()))
    DeltaTable(str(path)).create_checkpoint()
    for commit in newest.parent.glob("*.json"):
        if commit.name < newest.name:
            commit.unlink()
    table_logs.invalidate(path)


def test_table_is_evaluated_whole_if_its_input_was_overwritten_and_lost_commits(tmp_path: Path) -> None:
    settings = empty(tmp_path / "shop")
    jobs = {"newest": job("newest", LATEST, 'log("sale")'), "gold/total": TOTAL}
    declare(settings, SALE, jobs=jobs)
    land(settings, 1)
    answer(settings.project, "run")
    declare(settings, jobs={"newest": WIDER})
    answer(settings.project, "rebuild", "newest")
    forget_earlier_commits(settings, "silver", "newest")
    land(settings, 2)
    answer(settings.project, "run")
    assert answer(settings.project, "sql", "select shop, pieces from total") == [{"shop": "a", "pieces": 3}]
