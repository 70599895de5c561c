"""History writes the versions that have ended into files of their own, which later batches do not write again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.engine.verify import verify_all
from lake.ops import pipeline
from lake.project.project import load
from lake.store import delta
from lake.store.table_log import delta_table
from lake.store.tables import Table
from tests.shop import contract, declare, empty, job

KEYS = 30


def test_batches_leave_the_files_of_ended_versions(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "MERGED_ROWS", -1)
    settings = empty(tmp_path / "project")
    moves = contract("moves", {"id": "int", "at": "int", "place": ["null", "string"]})
    history = 'History("id", sequence="at", deletes="place is null")'
    declare(settings, moves, jobs={"stays": job("stays", history, 'log("moves")')})
    table = load(settings).table(load(settings).tables["stays"])
    landing = settings.path(settings.landing) / "moves"
    landing.mkdir()
    ended = set[str]()
    for batch in range(5):
        events = [move(number, batch) for number in range(KEYS) if batch == 0 or number % 3 != batch % 3]
        late = [{"id": 1, "at": 5, "place": "late"}] if batch == 4 else []
        lines = "\n".join(map(json.dumps, [*events, *late]))
        (landing / f"{batch}.jsonl").write_text(lines)
        pipeline.run(settings, lambda: spark, print)
        found = values(table)
        now = {file for file, flags in found.items() if flags == {False}}
        assert {*map(frozenset, found.values())} == {frozenset({True}), *([frozenset({False})] if batch else [])}
        assert len(ended - now) == len(late)  # the late event ends a version earlier
        ended = now
    assert {each.verdict for each in verify_all(lambda: spark, load(settings), on_progress=print)} == {"identical"}


def move(number: int, batch: int) -> dict[str, Any]:
    return {"id": number, "at": 10 * batch, "place": None if number % 7 == batch else f"place {batch}"}


def values(table: Table) -> dict[str, set[bool]]:
    """Return the values of `is_current` in each file."""
    found = dict[str, set[bool]]()
    for file in delta.files(delta_table(table.path)):
        with table.path.at(file).open() as content:
            found[file] = {*pq.read_table(content, columns=["is_current"]).column("is_current").to_pylist()}
    return found
