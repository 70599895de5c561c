"""Check of a log: the same faults with all ids at once and in parts, and a digest that is none of this log."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from infra.bench.huge import project
from infra.bench.written import STREAM, Written
from lake.cli import lake
from lake.config import load_settings
from lake.ingest import fsck
from lake.project.project import load
from lake.publish.cut import cut
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.scan import Scan
from tests.checks import fault
from tests.warehouse import published

pytestmark = pytest.mark.slow

DAYS, EVENTS = 3, 60


@pytest.mark.parametrize("seed", [1, 2])
def test_duplicate_rows_are_found_in_parts_too(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, settings = Random(seed), project(tmp_path / "meters")
    Written(settings, EVENTS).days(DAYS)
    log = Log(settings, STREAM)
    assert fsck.check_log(settings, STREAM).faults == []
    rows = Scan(log.path).arrow().sort_by([("_batch", "ascending"), ("_arrival", "ascending")])
    again = sorted(random.sample(range(rows.num_rows), 5))
    write_deltalake(log.path.url, rows.take(again), mode="append")

    faults = fsck.check_log(settings, STREAM).faults
    twice = {f"id {row['_id']} occurs 2 times in bucket {row['_bucket']}" for row in rows.take(again).to_pylist()}
    assert {fault for fault in faults if "occurs" in fault} == twice
    assert any(f" events, {len(rows) // DAYS} arrivals" in fault for fault in faults)
    assert any("offsets from 0 to" in fault for fault in faults)
    monkeypatch.setattr(fsck, "IDS_AT_ONCE", 7)
    assert fsck.check_log(settings, STREAM).faults == faults


@pytest.mark.parametrize("reads", [0, 1, 4, 7])
def test_check_beside_an_append_finds_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
    """Another process appends a batch and makes a cut after some of the check's reads."""
    early = project(tmp_path / "early")
    Written(early, EVENTS).days(DAYS)
    later = load_settings(shutil.copytree(early.project, tmp_path / "later"))
    Written(later, EVENTS).days(1)
    cut(load(later))
    left, rows = iter(range(reads)), duckdb_tables.rows

    def appended(*given: Any, **more: Any) -> list[dict[str, Any]]:
        if next(left, None) is None:
            shutil.copytree(later.warehouse_path, early.warehouse_path, dirs_exist_ok=True)
        return rows(*given, **more)

    monkeypatch.setattr(duckdb_tables, "rows", appended)
    assert fsck.check_log(early, STREAM).faults == []
    assert Log(early, STREAM).head().batch == DAYS + 1


@pytest.mark.parametrize(
    ("since", "what"),
    [
        ("xx", "--since 'xx' is not a digest"),
        ("orders@1", "--since 'orders@1' is not a digest"),
        ("orders@1:abc", "--since 'orders@1:abc' is not a digest"),
        ("@1:{first}", "--since '@1:{first}' is not a digest"),
        ("other@1:{first}", "--since is a digest of other, not of orders"),
        ("orders@2:{first}", "--since names batch 2, but its digest is of batch 1"),
        ("orders@9:{first}", "--since names batch 9, but its digest is of batch 1"),
    ],
)
def test_check_since_rejects_a_text_that_is_no_digest_of_the_log(tmp_path: Path, since: str, what: str) -> None:
    project = published(tmp_path / "shop")
    first = Log(project.settings, "orders").head_at(1).content["digest"]
    words = ["log", "orders", "--check", "--since", since.format(first=first)]
    error = fault(CliRunner().invoke(lake, [*words, "--project", str(tmp_path / "shop")]))
    assert (error.exit_code, error.what) == (2, what.format(first=first))
