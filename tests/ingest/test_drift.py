"""Drift of fields, unknown to the contract or vanished: reported or rejected."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.contracts.contract import load_contract
from lake.ingest.drift import Drift
from lake.records.single_reader import RecordRejected, SingleReader
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Commands, Lakehouse
from tests.shop import contract, declare, empty

FIELDS = {"id": "int", "size": "int?", "note": ("string", {"default": "none"}), "at": "timestamp?"}


def project(folder: Path, **about: Any) -> Lakehouse:
    return declare(empty(folder), contract("thing", FIELDS, **{"id": ["id"]} | about))


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "size": 1, "note": "x", "at": None} | more


def without(number: int, name: str) -> dict[str, Any]:
    return {field: value for field, value in record(number).items() if field != name}


def drift_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("drift ")]


def test_run_and_status_report_unknown_fields(tmp_path: Path, commands: Commands) -> None:
    lakehouse = project(tmp_path)
    lakehouse.land("thing", record(1), record(2, colour="red"), record(3, colour="blue", weight=2))
    first = commands.lake("ingest", at=lakehouse)
    found = "2 records since batch 1 had fields that the contract does not know: colour (2), weight (1)"
    assert (first.code, f"thing: {found}: lake schemas" in first.err) == (0, True), first.err
    lakehouse.land("thing", record(4, colour="red"), record(5))
    assert "does not know" not in commands.lake("ingest", at=lakehouse).err, "it is not new"
    lakehouse.land("thing", record(6, shape="round"))
    assert "colour (3), shape (1), weight (1)" in commands.lake("run", at=lakehouse).err
    status = commands.lake("status", "--fail-if", "drift", at=lakehouse)
    line = "4 records since batch 1 had fields that the contract does not know: colour (3), shape (1), weight (1)"
    assert (status.code, drift_lines(status.out)) == (1, [f"drift    thing: {line}: lake schemas"])
    [stream] = json.loads(commands.lake("status", "--json", at=lakehouse).out)["streams"]
    assert stream["drift"]["unknown"] == {"colour": 3, "shape": 1, "weight": 1}
    more = dict.fromkeys(("colour", "shape", "weight"), "string?")
    declare(lakehouse.source, contract("thing", FIELDS | more, id=["id"]))
    assert commands.lake("status", "--fail-if", "drift", at=lakehouse).code == 0


@pytest.mark.long
def test_run_and_status_report_vanished_fields(tmp_path: Path, commands: Commands) -> None:
    lakehouse = project(tmp_path)
    folder = lakehouse.settings.path(lakehouse.settings.landing) / "thing"
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,size,note\n1,5,a\n2,6,b\n")
    assert commands.lake("ingest", at=lakehouse).code == 0
    (folder / "2.csv").write_text("id,note\n3,c\n4,d\n")
    done = commands.lake("run", at=lakehouse)
    line = "no record since batch 2 has size, which all records just before had"
    assert f"thing: {line}" in done.err, done.err
    (folder / "3.csv").write_text("id,note\n5,c\n")
    assert "no record" not in commands.lake("run", at=lakehouse).err, "it is not new"
    status = commands.lake("status", "--fail-if", "drift", at=lakehouse)
    assert (status.code, drift_lines(status.out)) == (1, [f"drift    thing: {line}: lake schemas"])
    (folder / "4.csv").write_text("id,size,note\n6,7,c\n")
    commands.lake("run", at=lakehouse)
    assert commands.lake("status", "--fail-if", "drift", at=lakehouse).code == 0


def test_contract_rejects_unknown_and_missing_fields(tmp_path: Path, commands: Commands) -> None:
    lakehouse = project(tmp_path, unknown="refuse", missing="refuse")
    lakehouse.land("thing", record(1), record(2, b=1, a=2), without(3, "note"), without(4, "size") | {"z": 1})
    folder = lakehouse.settings.path(lakehouse.settings.landing) / "thing"
    (folder / "2.csv").write_text("id,size,note,at\n5,,,\n")
    (folder / "3.csv").write_text("id,note,at\n6,x,\n")
    pq.write_table(pa.table({"id": [7]}), folder / "4.parquet")
    done = commands.lake("ingest", at=lakehouse)
    assert done.code == 0, done.err
    rows = json.loads(commands.lake("quarantine", "list", "--json", at=lakehouse).out)
    assert {(row["source"], row["reason"], row["detail"]) for row in rows} == {
        ("thing/000001.jsonl:2", "unknown field", "a, b"),
        ("thing/000001.jsonl:3", "missing field", "note"),
        ("thing/000001.jsonl:4", "unknown field", "z"),
        ("thing/3.csv", "file", "it has no column size"),
        ("thing/4.parquet", "file", "it has no column size, note, at"),
    }
    ids = duckdb_tables.rows(Log(lakehouse.settings, "thing").path, "SELECT id FROM t WHERE id IS NOT NULL ORDER BY id")
    assert [row["id"] for row in ids] == [1, 5]

    single = SingleReader(load_contract(lakehouse.settings, "thing"), 1000)
    for row in rows:
        if row["raw"]:
            with pytest.raises(RecordRejected) as refused:
                single.values(row["raw"].encode(), {})
            assert (refused.value.reason, refused.value.detail) == (row["reason"], row["detail"])
    assert single.values(json.dumps(record(1)).encode(), {})["id"] == 1


@pytest.mark.long
def test_contract_reports_unknown_fields_never_or_each_time(tmp_path: Path, commands: Commands) -> None:
    for about, told in (("keep", [False, False]), ("warn", [True, True])):
        lakehouse = project(tmp_path / about, unknown=about)
        for number, is_told in enumerate(told):
            lakehouse.land("thing", record(number, colour="red"))
            assert ("does not know" in commands.lake("ingest", at=lakehouse).err) == is_told
        assert commands.lake("status", "--fail-if", "drift", at=lakehouse).code == any(told)


def test_vanished_fields_follow_from_all_batches() -> None:
    """Compare with a model that has all records."""
    chance = random.Random(5)
    for _ in range(300):
        batches = [
            [{name for name in "ab" if chance.random() < likely} for _ in range(chance.randint(1, 3))]
            for likely in chance.choices((0, 0.7, 1), k=chance.randint(1, 6))
        ]
        drift = Drift()
        for number, records in enumerate(batches, 1):
            every = {name for name in "ab" if not any(name in record for record in records)}
            some = {name for name in "ab" if not all(name in record for record in records)}
            drift = drift.with_missing(number, "ab", some, every)
        assert drift.vanished == vanished(batches)
        for name, batch in drift.vanished.items():
            assert all(name in record for record in batches[batch - 2]), "the line says that these had it"


def vanished(batches: list[list[set[str]]]) -> dict[str, int]:
    """Return vanished fields, each with the first batch that lacks it. Earlier batches must agree about the field."""
    found = {}
    for name in "ab":
        has = [{name in record for record in records} for records in batches]
        first = next((n for n, batch in enumerate(has) if True in batch), len(has))
        since = next((n for n in range(len(has), 0, -1) if True in has[n - 1]), 0)
        if first < since < len(has) and all(len(batch) == 1 for batch in has[first:]):
            found[name] = since + 1
    return found
