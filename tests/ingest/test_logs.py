"""Commands about events: ingest, append, log, quarantine, void."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell, lake
from lake.config import Settings
from lake.contracts.reasons import Reason
from lake.errors import ContractError, DeclarationError
from lake.ingest.replay import FIXES
from lake.store import duckdb_tables
from lake.store.warehouse import Warehouse
from tests.store.events import Land, declare, fields, reading

Run = Callable[..., Result]
NO_JVM = """
import sys
from lake.cli import lake
for command in (["schemas"], ["log", "readings"], ["log", "readings", "--check"], ["quarantine", "list"],
                ["quarantine"], ["void", "readings", "1:%d:0", "--reason", "a test"]):
    lake.main([*command, "--project", sys.argv[1]], standalone_mode=False)
assert "pyspark" not in sys.modules
"""


@pytest.fixture
def run(project: Settings, spark: SparkSession) -> Run:
    """Runner of commands in this process, with its session."""

    def command(*words: str, stdin: str = "") -> Result:
        fresh = Shell(project=project.project)
        fresh.__dict__["spark"] = spark
        return CliRunner().invoke(lake, list(words), input=stdin, obj=fresh, standalone_mode=False)

    return command


def test_rejection_has_a_fix_for_every_reason() -> None:
    assert set(Reason) == FIXES.keys()


@pytest.mark.long
def test_commands_ingest_list_and_replay_in_a_session(project: Settings, run: Run, land: Land, tmp_path: Path) -> None:
    declare(project)
    assert "not written" in run("schemas").output
    assert "no batch yet" in run("log", "readings").output
    land("readings", "1.jsonl", reading("a"), reading("b", count="x"))
    counts = {
        "token": "readings@1",
        "batch": 1,
        "read": 2,
        "accepted": 1,
        "duplicates": 0,
        "quarantined": 1,
        "control": 0,
        "engine": "duckdb",
        "not_by_duckdb": None,
    }
    assert json.loads(run("ingest", "--json").stdout) == {"streams": {"readings": counts}}
    assert run("append", "readings", "-", stdin=json.dumps(reading("c"))).stdout == "readings@2\n"
    listed = run("quarantine", "list", "--json").stdout
    [waiting] = json.loads(listed)
    assert (waiting["reason"], waiting["detail"]) == ("wrong type", "count: x is not int")
    assert "wrong type" in run("quarantine").stdout
    repair = tmp_path / "repair.json"
    repair.write_text(listed.replace('\\"x\\"', "3"))
    assert "readings@3     1         1" in run("quarantine", "replay", "readings", str(repair)).stdout
    assert run("quarantine", "list", "--json").stdout == "[]\n"
    first = json.loads(run("log", "readings", "--json").stdout)["batches"][-1]
    assert first["files"][0]["path"] == "readings/1.jsonl"

    [row] = duckdb_tables.rows(
        Warehouse(project).log("readings").path, "SELECT _bucket AS bucket FROM t WHERE _batch = 1 AND _bucket >= 0"
    )
    script = NO_JVM % row["bucket"]
    shown = subprocess.run(
        [sys.executable, "-c", script, str(project.project)], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "the log is consistent" in shown.stdout
    assert f"void 1: readings 1:{row['bucket']}:0" in shown.stdout
    assert "a test" in run("log", "readings").stdout


@pytest.mark.long
def test_replay_reports_records_rejected_again_with_the_new_reason(
    project: Settings, run: Run, land: Land, tmp_path: Path
) -> None:
    declare(project)
    land("readings", "1.jsonl", reading("a"), reading("b", count="x"), reading("c", count="y"))
    run("ingest")
    mended = run("quarantine", "list", "--json").stdout.replace('\\"x\\"', '\\"z\\"').replace('\\"y\\"', "3")
    repair = tmp_path / "repair.json"
    repair.write_text(mended)
    told = run("quarantine", "replay", "readings", str(repair))
    assert "readings@2     1         1" in told.stdout
    still = "still refused: record 1 of batch 1 of readings: wrong type: count: z is not int (readings/1.jsonl:2)"
    assert told.stderr.splitlines()[1:] == [still], "after the line that says what is loaded"

    again = json.loads(run("quarantine", "replay", "--json").stdout)
    [row] = again["failed"]
    assert (row["batch"], row["number"], row["reason"], row["detail"]) == (1, 1, "wrong type", "count: x is not int")
    assert [each["number"] for each in json.loads(run("quarantine", "list", "--json").stdout)] == [1]


@pytest.mark.long
@pytest.mark.parametrize("mended", [False, True], ids=["as they are", "mended"])
def test_quarantine_of_many_parts_is_replayed_part_by_part(
    project: Settings, run: Run, land: Land, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mended: bool
) -> None:
    """Three files have eleven rejected records each: one is rejected again, another was ingested before."""
    monkeypatch.setattr("lake.store.quarantine.PART_ROWS", 4)
    monkeypatch.setattr("lake.ingest.replay.REPLAY_ROWS", 5)
    declare(project)
    for number in range(3):
        refused = [reading(f"m{number}-{n}", count="x" if n == 7 else 200) for n in range(11)]
        land("readings", f"{number}.jsonl", *refused)
        land("readings", f"{number}.parquet", "no parquet")
        run("ingest")
    listed = json.loads(run("quarantine", "list", "--json").stdout)
    places = [(row["batch"], row["number"]) for row in listed]
    assert (len(places), places) == (36, sorted(places))
    counted = {row["reason"]: row["records"] for row in json.loads(run("quarantine", "--json").stdout)}
    assert counted == {"wrong type": 3, "out of bounds": 30, "file": 3}

    repairs = [row | {"raw": row["raw"].replace("200", "2")} for row in listed if row["reason"] != "file"]
    first = tmp_path / "first.json"
    first.write_text(json.dumps([row for row in repairs if '-3"' in row["raw"]]))
    assert json.loads(run("quarantine", "replay", "readings", str(first), "--json").stdout)["failed"] == []
    if mended:
        every = tmp_path / "every.json"
        every.write_text(json.dumps([row for row in reversed(repairs) if '-3"' not in row["raw"]]))
        told = json.loads(run("quarantine", "replay", "readings", str(every), "--json").stdout)
    else:
        declare(project, fields=fields({"name": "count", "type": ["null", "int"], "default": None}))
        told = json.loads(run("quarantine", "replay", "--json").stdout)
    assert told["streams"]["readings"]["accepted"] == 27
    failed = [(row["batch"], row["number"]) for row in told["failed"]]
    assert failed == [(row["batch"], row["number"]) for row in listed if '"x"' in row["raw"]]
    left = json.loads(run("quarantine", "list", "--json").stdout)
    assert left == [row for row in listed if row["reason"] == "file" or '"x"' in row["raw"]]
    assert "the log is consistent" in run("log", "readings", "--check").stdout
    meters = duckdb_tables.rows(
        Warehouse(project).log("readings").path, "SELECT meter, count FROM t WHERE meter IS NOT NULL ORDER BY ALL"
    )
    assert [row["meter"] for row in meters] == sorted(f"m{i}-{n}" for i in range(3) for n in range(11) if n != 7)
    assert [row["count"] for row in meters] == [2 if row["meter"][2:] == "-3" or mended else 200 for row in meters]


def test_mistakes_in_commands_are_reported(project: Settings, run: Run, tmp_path: Path) -> None:
    declare(project)
    for words, told in (
        (["ingest", "reading"], "did you mean 'readings'"),
        (["log", "x"], "no stream 'x'"),
        (["append", "readings", "nowhere.jsonl"], "no such file"),
        (["void", "readings", "1:2:3", "--reason", " "], "a void needs a reason"),
        (["void", "readings", "1:2:3", "--reason", "r"], "has no event at 1:2:3"),
    ):
        error = run(*words).exception
        assert isinstance(error, DeclarationError), words
        assert told in str(error)
    broken = tmp_path / "repair.json"
    broken.write_text('{"stream": "readings"}')
    assert "lacks batch, number, raw" in str(run("quarantine", "replay", "readings", str(broken)).exception)


def test_inconsistent_log_exits_1(project: Settings, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(project)
    monkeypatch.setattr("lake.ingest.fsck._row_faults", lambda *_: ["bucket 0: a hole"])
    result = run("log", "readings", "--check")
    assert "bucket 0: a hole" in result.stdout
    assert isinstance(result.exception, ContractError)
