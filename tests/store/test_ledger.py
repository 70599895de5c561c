from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from deltalake import write_deltalake

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.store import delta, delta_writer, erasures, ledger_table
from lake.store.ledger import checks, cuts, editions, runs
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.judgements import record_check

TABLES = {"carrier_daily": editions.EditionTable("gold", "gold/carrier_daily", 3, "f1")}
LATER = {"carrier_daily": editions.EditionTable("gold", "gold/carrier_daily", 4, "f1")}


def test_ledgers_of_an_empty_project_have_no_entry(project: Settings) -> None:
    assert cuts.latest_cut(project) is None
    assert editions.current_edition(project) is None
    assert editions.pinned(project) is None
    assert editions.resume_editions(project) is None
    assert runs.last_runs(project) == {}
    assert checks.last_checks(project) == {}


def test_cut_is_numbered_recorded_and_found_again(project: Settings) -> None:
    first = cuts.record_cut(project, {"flights": 1}, 0)
    second = cuts.record_cut(project, {"flights": 2, "airlines": 1}, 0)
    assert (first.number, second.number) == (1, 2)
    assert cuts.latest_cut(project) == second
    assert cuts.get_cut(project, 1) == first
    assert first.made_at.tzinfo == UTC


def test_cut_without_new_batches_is_the_latest_one(project: Settings) -> None:
    first = cuts.record_cut(project, {"flights": 1, "airlines": 2}, 0)
    assert cuts.record_cut(project, {"airlines": 2, "flights": 1}, 0) == first
    assert cuts.record_cut(project, {"airlines": 2, "flights": 1}, 1).number == 2


def test_unknown_cut_is_reported_with_existing_cuts(project: Settings) -> None:
    with pytest.raises(DeclarationError, match="there is no cut yet"):
        cuts.get_cut(project, 1)
    cuts.record_cut(project, {"flights": 1}, 0)
    with pytest.raises(DeclarationError, match="no cut 7: only cut 1 exists"):
        cuts.get_cut(project, 7)


def test_edition_keeps_the_exact_version_of_each_table(project: Settings) -> None:
    edition = editions.record_edition(project, 1, TABLES)
    assert editions.current_edition(project) == edition
    assert editions.get_edition(project, 1).tables == TABLES


def test_edition_is_reused_for_the_same_tables_at_the_same_cut(project: Settings) -> None:
    assert editions.record_edition(project, 1, TABLES) == editions.record_edition(project, 1, TABLES)
    assert editions.record_edition(project, 2, TABLES).number == 2


def test_edition_of_an_earlier_cut_is_rejected(project: Settings) -> None:
    newest = editions.record_edition(project, 2, LATER)
    with pytest.raises(Unavailable, match="edition 1 of cut 2 was published meanwhile"):
        editions.record_edition(project, 1, TABLES)
    assert editions.latest_edition(project) == newest


@pytest.mark.parametrize("settled", [False, True])
def test_edition_with_old_definitions_is_rejected_after_a_deploy(project: Settings, settled: bool) -> None:
    seen = editions.record_edition(project, 1, TABLES)
    deployed = {"carrier_daily": editions.EditionTable("gold", "gold/carrier_daily@c9", 1, "f2")}
    newest = editions.record_edition(project, 1, deployed, seen=seen)
    if settled:
        back = {"carrier_daily": editions.EditionTable("gold", "gold/carrier_daily", 5, "f2")}
        newest = editions.record_edition(project, 1, back, seen=newest)
    with pytest.raises(Unavailable, match="deployed meanwhile"):
        editions.record_edition(project, 1, LATER, seen=seen)
    assert editions.latest_edition(project) == newest
    assert editions.record_edition(project, 2, newest.tables, seen=seen).tables == newest.tables


def test_pin_keeps_readers_at_an_old_edition_until_resume(project: Settings) -> None:
    old = editions.record_edition(project, 1, TABLES)
    new = editions.record_edition(project, 2, LATER)
    editions.pin_edition(project, 1)
    editions.pin_edition(project, 1)
    assert (editions.current_edition(project), editions.pinned(project)) == (old, 1)
    newest = editions.record_edition(project, 3, LATER)
    assert (editions.current_edition(project), editions.latest_edition(project)) == (old, newest)
    assert editions.get_edition(project, 2) == new
    assert editions.resume_editions(project) == newest
    assert (editions.current_edition(project), editions.pinned(project)) == (newest, None)


def test_unknown_edition_cannot_be_pinned(project: Settings) -> None:
    editions.record_edition(project, 1, TABLES)
    with pytest.raises(DeclarationError, match="no edition 2: only edition 1 exists"):
        editions.pin_edition(project, 2)


def test_last_runs_are_the_newest_run_of_each_subject(project: Settings) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    for cut in (1, 2):
        runs.record_run(project, runs.Run("advance", "flight", cut, "done", {"inserted": cut}, at, 0.25))
    runs.record_run(project, runs.Run("ingest", "flights", None, "failed", {}, at, 1.5))
    newest = runs.last_runs(project)
    assert newest["flight"] == runs.Run("advance", "flight", 2, "done", {"inserted": 2}, at, 0.25, number=2)
    assert newest["flights"].cut is None


def test_last_checks_are_the_newest_check_of_each_table(project: Settings) -> None:
    results = [{"type": "expect_x", "success": False, "examples": [{"carrier": "AA", "day": None}]}]
    outcomes: tuple[tuple[int, checks.Outcome], ...] = ((1, "passed"), (2, "stopped"))
    for cut, outcome in outcomes:
        made = record_check(
            project,
            "flight",
            home="flight",
            scope="diff",
            cut=cut,
            version=None,
            suite="s",
            outcome=outcome,
            results=results,
        )
    assert checks.last_checks(project) == {"flight": made}
    assert checks.last_checks(project, "table") == {}


def test_last_checks_are_those_of_a_warehouse_restored_at_the_same_version(project: Settings, tmp_path: Path) -> None:
    def record(outcome: checks.Outcome) -> checks.Check:
        of: dict[str, Any] = {"home": "flight", "scope": "table", "cut": 1, "version": 1, "suite": "s", "results": []}
        return record_check(project, "flight", outcome=outcome, **of)

    first = record("passed")
    copytree(project.warehouse_path, tmp_path / "backup")
    before = record("stopped")
    assert checks.last_checks(project) == {"flight": before}
    rmtree(project.warehouse_path)
    copytree(tmp_path / "backup", project.warehouse_path)
    assert checks.last_checks(project) == {"flight": first}
    after = record("warned")
    assert (after.number, checks.last_checks(project)) == (before.number, {"flight": after})


@pytest.mark.parametrize("again", [False, True])
def test_erasure_is_recorded_of_any_collection_of_tokens(project: Settings, *, again: bool) -> None:
    def record(*tokens: str) -> int:
        return erasures.record(project, "people", (token for token in tokens), at=datetime.now(UTC), again=again)

    assert (record(), erasures.entries(project)) == (0, [])
    assert [record("a", "b"), record("b", "a")] == ([1, 2] if again else [1, 1])
    assert record() == (2 if again else 1)
    assert erasures.subjects(project, "people") == {"a", "b"}


def test_checks_recorded_together_share_a_number(project: Settings) -> None:
    def check(table: str, cut: int, scope: checks.Scope = "table") -> checks.Check:
        return checks.Check(0, table, table, scope, cut, cut, "s", "passed", [], datetime(2026, 1, 2, tzinfo=UTC))

    assert checks.record_checks(project, []) == []
    first = checks.record_checks(project, [check("flight", 1), check("weather", 1), check("route", 1, "diff")])
    [second] = checks.record_checks(project, [check("flight", 2)])
    assert [one.number for one in (*first, second)] == [1, 1, 1, 2]
    assert checks.last_checks(project) == {"flight": second, "weather": first[1], "route": first[2]}
    assert checks.last_checks(project, "table") == {"flight": second, "weather": first[1]}


@pytest.mark.parametrize("others", [0, 1])
def test_run_is_recorded_once_when_its_commit_and_the_read_back_get_no_answer(
    project: Settings, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    def run(verb: str) -> runs.Run:
        return runs.Run(verb, "flight", 1, "done", {}, datetime(2026, 1, 2, tzinfo=UTC), 0.25)

    def write(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        write_deltalake(*arguments, **options)
        for _ in range(others):
            runs.record_run(project, run("other"))
        monkeypatch.setattr(delta_writer, "commits", no_answer)
        raise OSError("no answer")

    def no_answer(path: Address) -> Iterator[dict[str, Any]]:
        monkeypatch.undo()
        raise OSError("no answer")

    runs.record_run(project, run("first"))
    monkeypatch.setattr(delta_writer, "write_deltalake", write)
    runs.record_run(project, run("own"))
    recorded = runs.RUNS.rows(project, "SELECT number, verb FROM t ORDER BY number")
    assert [row["verb"] for row in recorded] == ["first", "own", "other"][: 2 + others]
    assert [row["number"] for row in recorded] == [*range(1, 3 + others)]


def test_long_ledger_is_kept_in_few_files_and_loses_no_entry(
    project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_table, "COMPACT_EVERY", 4)
    for batch in range(1, 11):
        cuts.record_cut(project, {"flights": batch}, 0)
    table = delta.open_table(Warehouse(project).book("cuts").path)
    assert table is not None
    assert len(table.file_uris()) < 5
    assert [cuts.get_cut(project, n).batches["flights"] for n in range(1, 11)] == list(range(1, 11))
