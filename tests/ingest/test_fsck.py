"""Check of a log's rows: the same faults with all ids at once and in parts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from deltalake import write_deltalake

from infra.bench.huge import project
from infra.bench.written import STREAM, Written
from lake.ingest import fsck
from lake.store.log import Log
from lake.store.scan import Scan

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
