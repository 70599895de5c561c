"""Check: every table is judged at the cut, in order, with one answer for all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake.config import Settings, load_settings
from lake.errors import DeclarationError, QualityError
from lake.ops.scaffold import init
from lake.project.project import load
from lake.publish.check import check, tables_at_cut
from lake.quality.failures import warning_messages
from lake.store import delta
from lake.store.ledger import checks, cuts
from lake.store.ledger.checks import Check, record_checks
from lake.store.tables import Table
from tests.checks import spark_forbidden

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    """Return the project of `lake init` with both tables at cut 1, without a JVM."""
    init(tmp_path / "shop")
    settings = load_settings(tmp_path / "shop")
    cuts.record_cut(settings, {"orders": 1}, 0)
    put(settings, "silver", "current_order", {"order_id": ["a", "b"], "customer": ["ada", "eve"], "amount": [5, 7]})
    put(settings, "gold", "customer_daily", {"customer": ["ada", "eve"], "day": ["2024-03-30"] * 2, "orders": [1, 1]})
    return settings


def put(settings: Settings, layer: str, table: str, rows: dict[str, list[Any]], cut: int = 1) -> None:
    path, app = Table(settings, layer, table, table).path, f"table:{table}"
    counts = {"inserted": len(rows), "updated": 0, "deleted": 0}
    project = load(settings)
    fingerprint = project.fingerprint(project.tables[table], {})
    built = {"verb": "advance", "cut": cut, "counts": counts, "fingerprint": fingerprint}
    position = (delta.head(path, app) or delta.start(app)).next(**built)
    write_deltalake(str(path), pa.table(rows), mode="overwrite", commit_properties=position.commit_properties)


def judge(settings: Settings, **options: Any) -> list[Check]:
    return check(load(settings), spark_forbidden, **options)


def expect(settings: Settings, table: str, kind: str, severity: str = "stop", **kwargs: object) -> None:
    suite = {"expectations": [{"type": kind, "kwargs": kwargs, "severity": severity}]}
    (settings.path("quality") / f"{table}.json").write_text(json.dumps(suite))


def test_check_judges_every_table_without_spark(shop: Settings) -> None:
    assert [(check.table, check.outcome, check.version) for check in judge(shop, strict=True)] == [
        ("current_order", "passed", 0),
        ("customer_daily", "passed", 0),
    ]


def test_check_judges_and_records_all_tables_before_it_stops(shop: Settings) -> None:
    expect(shop, "current_order", "expect_table_row_count_to_be_between", min_value=3)
    expect(shop, "customer_daily", "expect_column_values_to_be_unique", column="day")
    with pytest.raises(QualityError, match=r"current_order: .*found 2(.|\n)*customer_daily: .* failed for 2 of 2 rows"):
        judge(shop)
    assert {table: each.outcome for table, each in checks.last_checks(shop).items()} == {
        "current_order": "stopped",
        "customer_daily": "stopped",
    }


def test_stop_applies_to_its_cut_only(shop: Settings) -> None:
    expect(shop, "current_order", "expect_table_row_count_to_be_between", max_value=2)
    cuts.record_cut(shop, {"orders": 2}, 0)
    put(shop, "silver", "current_order", {"order_id": ["a", "b", "c"], "customer": ["x"] * 3, "amount": [1] * 3}, cut=2)
    put(shop, "gold", "customer_daily", {"customer": ["x"], "day": ["2024-03-30"], "orders": [3]}, cut=2)
    with pytest.raises(QualityError, match="expected max_value 2, found 3"):
        judge(shop)
    assert [check.outcome for check in judge(shop, cut=1)] == ["passed", "passed"]


def test_warnings_are_reported_and_stop_nothing(shop: Settings) -> None:
    expect(shop, "current_order", "expect_table_row_count_to_equal", severity="warn", value=3)
    checks = judge(shop)
    assert [check.outcome for check in checks] == ["warned", "passed"]
    assert [told.partition(" failed")[0] for told in warning_messages(checks)] == [
        "current_order: expect_table_row_count_to_equal"
    ]


def test_strict_check_rejects_a_table_without_a_quality_file(shop: Settings) -> None:
    (shop.path("quality") / "current_order.json").unlink()
    assert [check.table for check in judge(shop)] == ["customer_daily"]
    with pytest.raises(DeclarationError, match=r"current_order: has no expectations \(jobs/silver/current_order.py"):
        judge(shop, strict=True)


def test_check_rejects_a_table_that_is_not_at_the_cut(shop: Settings) -> None:
    cuts.record_cut(shop, {"orders": 2}, 0)
    with pytest.raises(DeclarationError, match=r"(?s)current_order: not at cut 2.*customer_daily: not at cut 2"):
        judge(shop)


def test_table_behind_a_stopped_gate_has_no_fix_by_advance(shop: Settings) -> None:
    cuts.record_cut(shop, {"orders": 2}, 0)
    result: dict[str, Any] = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "customer"},
        "severity": "stop",
    }
    result = result | {
        "success": False,
        "rows": 1,
        "failed": 1,
        "observed": None,
        "examples": [],
        "where": "quality/x.json:1",
    }
    at = datetime(2024, 1, 1, tzinfo=UTC)
    stop = Check(0, "current_order", "current_order", "diff", 2, None, "s", "stopped", [result], at)
    record_checks(shop, [stop])
    with pytest.raises(DeclarationError) as told:
        judge(shop)
    text = str(told.value)
    assert text.count("not at cut 2: the gate stopped current_order at cut 2") == 2
    assert text.count("where the event is wrong, lake void STREAM PLACE") == 2
    assert "lake advance" not in text
    with pytest.raises(DeclarationError) as told:
        tables_at_cut(load(shop), cuts.get_cut(shop, 2))
    assert "lake advance" not in str(told.value)
    put(shop, "silver", "current_order", {"order_id": ["a"], "customer": ["x"], "amount": [1]}, cut=2)
    with pytest.raises(
        DeclarationError, match=r"customer_daily: not at cut 2[\s\S]*lake advance customer_daily --cut 2"
    ):
        judge(shop)


def test_check_reports_faults_of_all_quality_files_at_once(shop: Settings) -> None:
    expect(shop, "current_order", "expect_column_values_to_be_unique", column="order")
    expect(shop, "customer_daily", "expect_column_values_to_be_unik", column="day")
    expect(shop, "customer_dayly", "expect_column_values_to_be_unique", column="day")
    with pytest.raises(DeclarationError) as told:
        judge(shop)
    text = str(told.value)
    assert text.startswith("3 faults:")
    assert "no column 'order' (quality/current_order.json:1)\n  fix: did you mean 'order_id'?" in text
    assert "did you mean 'expect_column_values_to_be_unique'?" in text
    assert "no table 'customer_dayly' (quality/customer_dayly.json)\n  fix: did you mean 'customer_daily'?" in text
