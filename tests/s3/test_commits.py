"""Commits of delta-rs to a derived table in a bucket, as to one in a folder. No JVM."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake import cost
from lake.config import Settings
from lake.store import duckdb_tables
from lake.store.commit import commit, describe, replace
from lake.store.locks.lease import lease
from lake.store.rows import Rows
from lake.store.table_head import CHANGE, Counts
from lake.store.tables import Table
from tests.servers.s3 import S3

COMMITS = 26
"""More than from one checkpoint to the next."""


def walk(settings: Settings, seed: int) -> list[Any]:
    """Return the state of a table after each of many commits of all forms."""
    chance, table = random.Random(seed), Table(settings, "silver", "t", "t")
    rows: dict[int, int] = {}
    told = []
    for cut in range(COMMITS):
        with lease(settings, table.lease):
            position = table.position_or_start().next(verb="advance", cut=cut)
            if cut % 13:
                form = chance.choice(["insert", "update", "delete", "nothing"])
                keys = [1000 + cut, 2000 + cut] if form == "insert" else chance.sample(sorted(rows), min(2, len(rows)))
                keys = [] if form == "nothing" else keys
                for key in keys:
                    rows[key] = cut
                    if form == "delete":
                        del rows[key]
                columns = {"k": pa.array(keys, pa.int64()), "v": pa.array([cut] * len(keys), pa.int64())}
                diff = Rows(pa.table({**columns, CHANGE: pa.array([form] * len(keys), pa.string())}))
                counts = {"insert": "inserted", "update": "updated", "delete": "deleted"}
                commit(table, diff, Counts(**({counts[form]: len(keys)} if keys else {})), ["k"], position)
            else:
                rows = dict.fromkeys(range(5), cut)
                whole = Rows(pa.table({"k": [*rows], "v": [*rows.values()]}))
                replace(table, whole, ["k"], position, meanings={})
                describe(table, f"Cut {cut}.", {"k": {"comment": "a key"}})
        stored = duckdb_tables.rows(table.path, "SELECT k, v FROM t ORDER BY k")
        assert {row["k"]: row["v"] for row in stored} == rows
        told.append((table.version(), [head.cut for head in table.heads()], stored))
    return told


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("merged", [cost.MERGED_ROWS, -1])
def test_table_in_a_bucket_equals_one_in_a_folder_after_every_commit(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, merged: int
) -> None:
    monkeypatch.setattr(cost, "MERGED_ROWS", merged)
    there = Settings(project=tmp_path / "there", warehouse=f"{s3.bucket()}/w", storage=s3.storage)
    assert walk(there, seed) == walk(Settings(project=tmp_path / "here"), seed)
