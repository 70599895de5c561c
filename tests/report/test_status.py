from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lake.cli import lake
from lake.config import Settings
from lake.engine.content_proof import with_fingerprints
from lake.errors import DeclarationError, LakeError
from lake.ingest import landing
from lake.ops.catalog import catalogue
from lake.ops.render import as_data, as_text, failed_conditions
from lake.ops.status import status as look
from lake.ops.status_records import Status
from lake.project.project import Project, load, sound_project
from lake.quality.failures import stop_messages
from lake.read.edition_check import verify_edition
from lake.store import duckdb_tables, quarantine
from lake.store.delta import Position
from lake.store.ledger import cuts, editions, runs
from lake.store.log import Log
from lake.store.proof.fingerprints import of_version
from lake.store.warehouse import Warehouse
from tests.checks import present
from tests.judgements import record_check
from tests.shop import contract, declare, empty, job
from tests.warehouse import publish

pytestmark = pytest.mark.slow

CONTRACT = contract("flights", {"carrier": "string", "at": "timestamp"}, id="content", time="at")
JOB = '''
from lake import Aggregate, Count, log, table

@table(Aggregate(key="carrier", measures={"flights": Count()}), log("flights"))
def carrier_total(flights):
    """How many flights a carrier had."""
    return flights
'''
LEAGUE = '''
from jobs.gold.carrier_total import carrier_total
from lake import View, table

@table(View(key=(), identity="carrier"), carrier_total)
def league(totals):
    """The carriers by size."""
    return totals
'''


@pytest.fixture(scope="module")
def published_warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of two batches, one table published at the first cut, and one not built."""
    settings = empty(tmp_path_factory.mktemp("flights"))
    declare(settings, CONTRACT, jobs={"gold/carrier_total": JOB, "gold/league": LEAGUE})
    batch(settings, 1, {"0": 2, "1": 1}, "2013-01-01T12:00:00+00:00")
    cuts.record_cut(settings, {"flights": 1}, 0)
    build_table(load(settings), "carrier_total", cut=1, rows=3)
    publish(settings, 1, carrier_total=("gold", 0))
    batch(settings, 2, {"0": 3, "1": 4}, "2013-01-02T15:20:00+00:00")
    cuts.record_cut(settings, {"flights": 2}, 0)
    return settings.project


@pytest.fixture
def flights(published_warehouse: Path, project: Settings) -> Project:
    """Return a copy of `published`."""
    shutil.copytree(published_warehouse, project.project, dirs_exist_ok=True)
    return load(project)


def batch(settings: Settings, number: int, offsets: dict[str, int], watermark: str) -> None:
    position = Position(
        Log(settings, "flights").app,
        number,
        {
            "batch": number,
            "offsets": offsets,
            "watermark": watermark,
            "counts": {"read": 3},
            "files": [],
            "contract": 1,
            "at": "2026-01-01T00:00:00+00:00",
            "content": {},
        },
    )
    duckdb_tables.append(Warehouse(settings).log("flights").path, "carrier VARCHAR", [["AA"]], position)


def build_table(project: Project, name: str, *, cut: int, rows: int) -> None:
    table = project.tables[name]
    data: dict[str, Any] = {"verb": "advance", "cut": cut, "fingerprint": project.fingerprint(table, {})}
    duckdb_tables.append(
        project.table(table).path, "carrier VARCHAR", [["AA"]] * rows, Position(f"table:{name}", cut, data)
    )


def table(status: Status, name: str) -> Any:
    return next(table for table in status.tables if table.name == name)


@pytest.mark.turns
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("options", "late"),
    [
        ('late="drop"', ("drop", 1)),
        ('late="drop", lateness=timedelta(hours=2)', ("drop", 0)),
        ("", None),
        ('late="drop", window=Tumbling(length=timedelta(hours=1), on="at")', ("drop", 1)),
        ('window=Tumbling(length=timedelta(hours=1), on="at")', ("correct", 1)),
    ],
)
def test_status_counts_late_events_of_windows_and_of_tables_that_drop_them(
    project: Settings, options: str, late: tuple[str, int] | None
) -> None:
    kind = f'Aggregate("carrier", {{"flights": Count()}}, {options})'
    shop = declare(project, CONTRACT, jobs={"carrier_total": job("carrier_total", kind, 'log("flights")')})
    for hour in (12, 11):
        shop.land("flights", {"carrier": "AA", "at": f"2024-03-01T{hour}:00:00Z"}).run()
    found = table(look(shop.project), "carrier_total").late
    assert (found and (found.policy, found.events)) == late
    assert sum(row["flights"] for row in shop.table("carrier_total")) == 2 - (late == ("drop", 1))


def test_status_of_an_empty_project_names_the_first_commands(project: Settings) -> None:
    text = "\n".join(as_text(look(load(project))))
    assert "cut      none yet: lake cut" in text
    assert "edition  none yet: lake run" in text


def test_status_shows_batches_events_and_event_time_of_a_stream(flights: Project) -> None:
    [stream] = look(flights).streams
    assert (stream.batch, stream.events) == (2, 7)
    assert stream.event_time == datetime(2013, 1, 2, 15, 20, tzinfo=UTC)


def test_status_shows_pending_and_rejected_records_of_a_stream(
    flights: Project, land: Callable[..., Path], project: Settings
) -> None:
    land("flights", "new.jsonl", {"carrier": "AA"})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    refused = [
        (1, 1, "type", "", "x", "f:1", at),
        (2, 1, "type", "", "x", "f:2", at),
        (2, 2, "key", "", "x", "f:3", at),
    ]
    left_by_a_crash = (3, 1, "type", "", "x", "f:4", at)
    duckdb_tables.append(Warehouse(project).quarantine("flights").path, quarantine.SCHEMA, [*refused, left_by_a_crash])
    [stream] = look(flights).streams
    assert stream.pending == 1
    assert stream.quarantined == {"type": 2, "key": 1}


def test_status_excludes_replayed_records_from_quarantine(flights: Project, project: Settings) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    refused = [(1, 1, "type", "", "x", "f:1", at), (2, 1, "type", "", "x", "f:2", at)]
    duckdb_tables.append(Warehouse(project).quarantine("flights").path, quarantine.SCHEMA, refused)
    landing.LANDED.append(
        project,
        [("flights", 2, quarantine.mark(1, 1), 0, 0, None)],
    )
    [stream] = look(flights).streams
    assert stream.quarantined == {"type": 1}


def test_status_shows_the_lag_of_a_table_in_batches_and_event_time(flights: Project) -> None:
    total = table(look(flights), "carrier_total")
    assert (total.cut, total.behind, total.rows) == (1, 1, 3)
    assert str(total.lag) == "1 day, 3:20:00"


def test_edition_computes_the_content_of_a_table_whose_commits_lack_it(flights: Project) -> None:
    entry = editions.EditionTable("gold", "gold/carrier_total", 0, "f")
    found = with_fingerprints(flights, {"carrier_total": entry})["carrier_total"]
    assert (found.rows, found.content) == (3, str(of_version(Warehouse(flights.settings).root / entry.path, 0)))
    edition = editions.record_edition(flights.settings, 2, {"carrier_total": found})
    assert present(editions.latest_edition(flights.settings)).tables["carrier_total"].content == found.content
    path = flights.settings.warehouse_path / entry.path
    shutil.rmtree(path)
    assert with_fingerprints(flights, {"carrier_total": entry})["carrier_total"].content == found.content, "it is known"
    assert [proof.verdict for proof in verify_edition(flights.settings, edition.number)] == ["differs"]


def test_status_shows_no_lag_for_a_table_at_the_head(flights: Project) -> None:
    build_table(flights, "carrier_total", cut=2, rows=4)
    total = table(look(flights), "carrier_total")
    assert (total.behind, total.lag.total_seconds()) == (0, 0)


def test_status_shows_full_lag_for_a_table_not_built(flights: Project) -> None:
    league = table(look(flights), "league")
    assert (league.cut, league.behind, league.lag, league.rows) == (None, 2, None, None)


def test_status_shows_a_changed_definition(flights: Project, project: Settings) -> None:
    project.path("jobs/gold/carrier_total.py").write_text(JOB.replace("return flights", "return flights.distinct()"))
    status = look(load(project))
    assert table(status, "carrier_total").changed
    assert "its definition has changed since: lake plan, lake deploy" in "\n".join(as_text(status))


def test_status_shows_the_last_run_of_a_table(flights: Project, project: Settings) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    runs.record_run(project, runs.Run("advance", "carrier_total", 1, "done", {}, at, 0.42))
    assert "advance, 2026-01-02 03:04:05Z, 0.4 s" in "\n".join(as_text(look(flights)))


def stop(project: Settings, cut: int) -> None:
    result = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "flights", "min_value": 1},
        "severity": "stop",
        "success": False,
        "failed": 3,
        "rows": 90,
        "observed": None,
        "examples": [{"carrier": "AA"}],
        "where": "quality/carrier_total.json:4",
    }
    record_check(
        project,
        "carrier_total",
        home="carrier_total",
        scope="diff",
        cut=cut,
        version=None,
        suite="s",
        outcome="stopped",
        results=[result],
    )


def test_status_shows_a_stopped_check_with_the_blocked_tables(flights: Project, project: Settings) -> None:
    stop(project, 2)
    [stopper] = look(flights).stoppers
    assert stopper.blocks == ("carrier_total", "league")
    [reason] = stopper.reasons
    assert reason.startswith("expect_column_values_to_be_between(flights) failed for 3 of 90 rows: carrier=AA … (")
    assert [f"carrier_total: {reason}"] == stop_messages([stopper.check]), "as the command that stopped said it"
    text = "\n".join(as_text(look(flights)))
    assert "stopped  carrier_total at cut 2" in text
    assert "blocks carrier_total, league, the next edition" in text


def test_status_ignores_a_stop_before_an_edition_of_its_cut(flights: Project, project: Settings) -> None:
    stop(project, 2)
    publish(project, 2, carrier_total=("gold", 0))
    assert look(flights).stoppers == ()


@pytest.mark.parametrize("spoil", ["log", "rows", "folder"])
def test_status_names_a_damaged_table_and_shows_the_others(flights: Project, project: Settings, spoil: str) -> None:
    build_table(flights, "league", cut=2, rows=3)
    home = project.warehouse_path / "gold/carrier_total"
    if spoil == "log":
        (home / "_delta_log" / f"{0:020}.json").write_bytes(b"\xff{}\n{}")
        (home / "_delta_log" / f"{1:020}.json").write_text("{}\n")
    elif spoil == "rows":
        next(home.glob("*.parquet")).unlink()
    else:
        shutil.rmtree(home)
        home.write_text("no folder")
    for options in ([], ["--json"]):
        told = CliRunner().invoke(lake, ["status", *options, "--project", str(project.project)])
        assert told.exit_code == 0, told.exception
        tables = CliRunner().invoke(lake, ["tables", *options, "--project", str(project.project)])
        assert tables.exit_code == 0, tables.exception
    data = json.loads(told.stdout)
    assert [(damage["what"], str(home) in damage["file"]) for damage in data["damaged"]] == [("carrier_total", True)]
    assert [(table["name"], table["damaged"], table["cut"]) for table in data["tables"]] == [
        ("carrier_total", True, None),
        ("league", False, 2),
    ]
    assert [bool(table["damage"]) for table in json.loads(tables.stdout)] == [True, False]
    assert json.loads(tables.stdout)[1]["rows"] == 3
    text = "\n".join(as_text(look(load(project))))
    assert "damaged  carrier_total: " in text
    failing = CliRunner().invoke(lake, ["status", "--fail-if", "stale", "--project", str(project.project)])
    assert "carrier_total is damaged: " in str(failing.exception)


@pytest.mark.parametrize("book", ["cuts", "editions", "runs", "checks"])
def test_status_names_a_damaged_system_table_and_shows_the_rest(flights: Project, project: Settings, book: str) -> None:
    stop(project, 2)
    runs.record_run(
        project, runs.Run("advance", "carrier_total", 1, "done", {}, datetime(2026, 1, 2, tzinfo=UTC), 0.42)
    )
    look(flights)  # A process that has read the editions knows the paths of tables
    commit = next((Warehouse(project).book(book).path / "_delta_log").local.glob("*.json"))
    commit.write_bytes(b"\xff")
    (commit.with_name(f"{9:020}.json")).write_text("{}\n")
    status = look(flights)
    assert [damage.path.name for damage in status.damaged] == [book]
    [stream] = status.streams
    assert (stream.batch, stream.events) == (2, 7)


@pytest.mark.parametrize(
    ("spoil", "batches", "behind"), [("rows", None, None), ("commit", None, None), ("quarantine", 2, 1)]
)
def test_status_of_a_damaged_stream_has_no_value_for_what_is_unknown(
    flights: Project, land: Callable[..., Path], spoil: str, batches: int | None, behind: int | None
) -> None:
    land("flights", "new.jsonl", {"carrier": "AA"})
    log, refused = Warehouse(flights.settings).log("flights").path, Warehouse(flights.settings).quarantine("flights")
    if spoil == "rows":
        next(log.local.rglob("*.parquet")).unlink()
    elif spoil == "commit":
        (log.local / "_delta_log" / f"{0:020}.json").write_bytes(b"\xff{}\n{}")
        (log.local / "_delta_log" / f"{2:020}.json").write_text("{}\n")
    else:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        duckdb_tables.append(refused.path, quarantine.SCHEMA, [(1, 1, "type", "", "x", "f:1", at)])
        next(refused.path.local.glob("*.parquet")).unlink()
    status = look(flights)
    [stream] = as_data(status)["streams"]
    assert (stream["damaged"], stream["batch"], stream["quarantined"], stream["pending"]) == (True, batches, None, 1)
    assert table(status, "carrier_total").behind == behind
    [line] = [line for line in as_text(status) if line.startswith("flights ")]
    assert " 0" not in line


def test_status_shows_a_failure_with_its_error_until_success(flights: Project, project: Settings) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    runs.record_run(project, runs.Run("advance", "carrier_total", 1, "done", {}, at, 0.42))
    runs.record_run(project, runs.Run("advance", "carrier_total", 2, "failed", {"error": "no\x1b[2J luck"}, at, 0.1))
    runs.record_run(project, runs.Run("publish", "edition", 2, "failed", {"error": "a gate stopped"}, at, 0.1))
    found = look(flights)
    assert table(found, "carrier_total").error == "no\x1b[2J luck"
    text = "\n".join(as_text(found))
    assert re.search(r"^failed   advance of carrier_total, .+ ago: no\\x1b\[2J luck$", text, re.M)
    assert re.search(r"^failed   publish of edition, .+ ago: a gate stopped$", text, re.M)
    assert failed_conditions(found, ["stopped"]) == [
        "stopped: advance of carrier_total failed",
        "stopped: publish of edition failed",
    ]
    assert failed_conditions(found, ["failed"]) == [
        "failed: advance of carrier_total: no\\x1b[2J luck",
        "failed: publish of edition: a gate stopped",
    ]
    runs.record_run(project, runs.Run("advance", "carrier_total", 2, "done", {}, at, 0.1))
    runs.record_run(project, runs.Run("publish", "edition", 2, "done", {}, at, 0.1))
    assert failed_conditions(look(flights), ["stopped", "failed"]) == []


def test_status_shows_ages_and_checks(flights: Project, project: Settings) -> None:
    results = [{"success": number != 2, "severity": "warn", "type": "t"} for number in range(12)]
    told: dict[str, Any] = {"home": "carrier_total", "scope": "table", "version": 0, "suite": "s", "outcome": "warned"}
    record_check(project, "carrier_total", cut=1, results=results, **told)
    found = look(flights)
    text = "\n".join(as_text(found))
    assert "checks   11 of 12 checks passed, at cut 1" in text
    assert re.search(r"^cut      2, \S+ \S+Z \(.+ ago\)$", text, re.M)
    assert re.search(r"^edition  1 of cut 1, \S+ \S+Z \(.+ ago\)$", text, re.M)
    later = replace(found, at=datetime(2026, 1, 3, 4, tzinfo=UTC))
    assert " 2 d 4 h ago " in "\n".join(as_text(later))


def test_status_fails_for_a_requested_condition(flights: Project, project: Settings, land: Callable[..., Path]) -> None:
    def failed(*kinds: str) -> str:
        options = [word for kind in kinds for word in ("--fail-if", kind)]
        done = CliRunner().invoke(lake, ["status", *options, "--project", str(project.project)])
        assert done.exit_code == (1 if done.exception else 0)
        assert done.stdout, "the status is told all the same"
        if not done.exception:
            return ""
        assert isinstance(done.exception, LakeError)
        assert done.exception.fix == "correct that; lake status --json has the details"
        return done.exception.what

    assert failed() == failed("stopped", "quarantine") == ""
    assert failed("behind") == "behind: carrier_total by 1 batch\nbehind: league by 2 batches"
    assert failed("stale", "stopped") == "stale: readers see cut 1, the newest is 2"
    stop(project, 2)
    assert failed("stale", "stopped").splitlines()[0] == "stopped: carrier_total at cut 2"
    land("flights", "new.jsonl", {"carrier": "AA"})
    assert "behind: 1 file of flights wait" in failed("behind")
    refused = [(1, 1, "type", "", "x", "f:1", datetime(2026, 1, 1, tzinfo=UTC))]
    duckdb_tables.append(Warehouse(project).quarantine("flights").path, quarantine.SCHEMA, refused)
    assert failed("quarantine") == "quarantine: 1 record of flights"


def test_status_shows_a_pin(flights: Project, project: Settings) -> None:
    publish(project, 2, carrier_total=("gold", 0))
    editions.pin_edition(project, 1)
    text = "\n".join(as_text(look(flights)))
    assert "edition  1 of cut 1" in text
    assert "pinned   to edition 1; the newest is 2: lake publish --resume" in text


def test_status_is_available_as_json(flights: Project, project: Settings) -> None:
    stop(project, 2)
    data = json.loads(json.dumps(as_data(look(flights))))
    assert data["cut"]["number"] == 2
    assert data["edition"]["number"] == 1
    assert data["tables"][0]["lag"] == 98400.0
    assert data["streams"][0]["event_time"] == "2013-01-02T15:20:00Z"
    assert data["stoppers"][0]["blocks"] == ["carrier_total", "league"]


def test_catalogue_lists_the_path_of_a_published_table(flights: Project) -> None:
    total, league = catalogue(flights)
    assert total == {
        "table": "gold.carrier_total",
        "name": "carrier_total",
        "layer": "gold",
        "kind": "Aggregate",
        "key": ["carrier"],
        "description": "How many flights a carrier had.",
        "columns": [{"name": "carrier", "type": "VARCHAR", "unit": "", "comment": ""}],
        "rows": 3,
        "edition": 1,
        "version": 0,
        "path": ".lake/warehouse/gold/carrier_total",
        "damage": None,
    }
    assert (league["version"], league["path"], league["rows"], league["columns"]) == (None, None, None, [])


@pytest.mark.parametrize("command", ["status", "tables", "graph"])
def test_commands_answer_in_text_and_json(flights: Project, project: Settings, command: str) -> None:
    for option in ([], ["--json"]):
        result = CliRunner().invoke(lake, [command, *option, "--project", str(project.project)])
        assert result.exit_code == 0, result.exception
        assert "carrier_total" in result.stdout
    json.loads(result.stdout)


def test_status_shows_a_faulty_declaration_beside_the_others(flights: Project) -> None:
    settings, table = flights.settings, next(iter(flights.tables))
    jobs = [file for file in settings.path("jobs").rglob("*.py") if file.stem == table]
    jobs[0].write_text(jobs[0].read_text().replace("@table(", "@table(Lates, ", 1))
    project, faults = sound_project(settings)
    state = look(project, faults)
    [fault] = state.faults
    assert "name 'Lates' is not defined (jobs/" in fault
    assert table not in {each.name for each in state.tables}
    assert any(line.startswith(f"faulty   {table}: NameError") for line in as_text(state))
    assert as_data(state)["faults"] == [fault]
    assert [line for line in failed_conditions(state, ["stopped"]) if "declaration is faulty" in line]
    assert {each.name for each in state.streams} == set(flights.contracts)


def test_status_shows_a_source_fault_in_its_line_with_its_fix(project: Settings) -> None:
    project.path("sources").mkdir()
    project.path("sources/till.toml").write_text('kind = "kafkaa"')
    [line] = [line for line in as_text(look(*sound_project(project))) if line.startswith("till ")]
    assert "unknown kind 'kafkaa' (sources/till.toml) fix: did you mean 'kafka'?" in line


def test_status_shows_a_declaration_error_of_a_ledger_reader(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DeclarationError("the alert is faulty", where="alerts/late.toml", fix="correct it")

    monkeypatch.setattr("lake.ops.status.consumer_statuses", fail)
    state = look(*sound_project(project))
    assert state.faults == ("the alert is faulty (alerts/late.toml)",)
    assert not state.damaged
