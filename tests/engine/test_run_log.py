"""Times of `lake.runs` of work on tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lake.config import Settings
from lake.store import delta
from lake.store.table_log import metadata_of
from lake.store.warehouse import Warehouse
from tests.checks import answer
from tests.shop import contract, declare, empty, job

pytestmark = pytest.mark.slow

THING = contract("thing", {"id": "int", "size": "int?", "at": "timestamp"}, id=["id", "at"], time="at")
NEWEST = job("newest", 'Latest("id", sequence="at")', 'log("thing")')
WIDER = job("newest", 'Latest("id", sequence="at")', 'log("thing")', returns='rows.selectExpr("*", "1 as one")')


def commit_times(settings: Settings) -> list[float]:
    """Return the times of the table's commits with a position, the oldest first, in seconds."""
    path = Warehouse(settings).table("silver", "newest").path
    times = [commit["timestamp"] / 1000 for commit in delta.commits(path) if metadata_of(commit)]
    return times[::-1]


def test_run_of_a_table_begins_before_its_commit(tmp_path: Path) -> None:
    settings = empty(tmp_path / "shop")
    declare(settings, THING, jobs={"newest": NEWEST})
    folder = settings.path("landing/thing")
    folder.mkdir()
    for number in (1, 2):
        thing = {"id": 1, "size": number, "at": f"2024-01-0{number}T00:00:00Z"}
        (folder / f"{number}.jsonl").write_text(json.dumps(thing))
        answer(settings.project, "run")
    answer(settings.project, "backfill", "newest", "--from", "2024-01-01", "--to", "2024-01-03")
    declare(settings, jobs={"newest": WIDER})
    answer(settings.project, "rebuild", "newest")
    query = "select verb, epoch(started_at) as began from lake.runs where subject = 'newest' order by number"
    runs = answer(settings.project, "sql", query)
    assert [run["verb"] for run in runs] == ["build", "advance", "backfill", "rebuild"]
    commits = commit_times(settings)
    assert [run["began"] <= commit for run, commit in zip(runs, commits, strict=True)] == [True] * len(runs)
