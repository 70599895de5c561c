"""Flights end to end: this repository's tables from days of real data, ingested slice by slice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from lake.engine import advance as advancing
from lake.engine.incremental import empty_diff
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.rebuild import rebuild
from lake.engine.verify import verify
from lake.engine.write import write
from lake.errors import LawError, Unavailable
from lake.ingest.events import void
from lake.ingest.ingest import ingest
from lake.project.declaration import Declaration
from lake.publish.cut import cut
from lake.store.ledger.editions import latest_edition
from lake.store.rows import Rows
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.checks import present
from tests.engine import reference

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
DAYS = 6
COLUMNS = "{carrier: 'varchar', dep_time: 'int', arr_delay: 'int'}"


@pytest.fixture(scope="module")
def landing_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return landing files of the first days, with redeliveries and broken lines."""
    folder = tmp_path_factory.mktemp("flights")
    command: list[str | Path] = [sys.executable, REPOSITORY / "infra/flights.py", folder, "--days", str(DAYS)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def sliced(spark: SparkSession, landing_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return the tables after three cycles; in the second, a writer dies between two tables."""
    lakehouse = Lakehouse(REPOSITORY, tmp_path_factory.mktemp("sliced"))
    landing = lakehouse.settings.path(lakehouse.settings.landing)
    for stream in landing_files.iterdir():
        if stream.name != "flights":
            shutil.copytree(stream, landing / stream.name)
    (landing / "flights").mkdir()
    files = sorted((landing_files / "flights").iterdir())
    for number, part in enumerate((files[:2], files[2:5], files[5:])):
        for file in part:
            shutil.copy(file, landing / "flights")
        if number == 1:
            dies_after_two_tables(lakehouse)
        lakehouse.run()
    return lakehouse


def dies_after_two_tables(lakehouse: Lakehouse) -> None:
    ingest(lakehouse.settings, lambda: lakehouse.spark, lakehouse.project.contracts)
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, cut(lakehouse.project))
    for name in ("flight", "carrier_daily"):
        advancing.advance(inputs, lakehouse.project.tables[name])


def inputs_of(lakehouse: Lakehouse) -> Inputs:
    return Inputs(lambda: lakehouse.spark, lakehouse.project, cut(lakehouse.project))


def recompute_inputs(lakehouse: Lakehouse) -> Inputs:
    return replace(inputs_of(lakehouse), recompute=True)


def test_flight_tables_equal_their_recomputation_in_any_row_order(sliced: Lakehouse) -> None:
    sliced.check_laws(slices=0)  # It is sliced already


def test_league_equals_a_computation_on_the_source_files(sliced: Lakehouse, landing_files: Path) -> None:
    files = [str(file) for file in (landing_files / "flights").iterdir() if "made" not in file.name]
    with duckdb.connect() as con:
        expected = con.execute(
            f"""with share as (select carrier, count(*) as flights,
                    round(count(*) filter (dep_time is null) / count(*)::decimal(12), 5)::decimal(7, 5) as cancelled,
                    round(count(*) filter (arr_delay > 15) / count(arr_delay)::decimal(12), 5)::decimal(7, 5) as late,
                    round(sum(arr_delay) / count(arr_delay)::decimal(12), 3)::decimal(9, 3) as mean
                    from read_json({files}, columns = {COLUMNS}) group by carrier)
                select row_number() over (order by late, cancelled, carrier), carrier, name, flights, cancelled, late,
                    mean
                from share left join read_csv('{landing_files}/airlines/airlines.csv') using (carrier) order by 1"""
        ).fetchall()
    league = sorted(sliced.table("carrier_league"), key=lambda row: row["rank"])
    columns = ("rank", "carrier", "name", "flights", "share_cancelled", "share_late", "mean_delay")
    assert [tuple(row[c] for c in columns) for row in league] == expected
    assert len(expected) > 10


@pytest.mark.parametrize("name", reference.QUERIES)
def test_flight_table_equals_a_computation_on_the_source_files(
    sliced: Lakehouse, landing_files: Path, name: Any
) -> None:
    expected = reference.computed(landing_files, name)
    found = [{column: naive(row[column]) for column in expected[0]} for row in sliced.table(name)]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def naive(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def test_table_commits_each_cut_once(sliced: Lakehouse) -> None:
    from lake.store.delta import positions

    for declaration in sliced.project.tables.values():
        table = inputs_of(sliced).table(declaration)
        cuts = [position.data["cut"] for position in positions(table.path, table.app)]
        assert cuts == [3, 2, 1], declaration.name


def test_table_of_a_query_in_sql_is_built_and_advanced_by_duckdb(sliced: Lakehouse) -> None:
    from lake.store.delta import positions

    table = sliced.project.table(sliced.project.tables["carrier_league"])
    engines = [position.data.get("engine") for position in positions(table.path, table.app)]
    assert engines == ["duckdb"] * 3


def test_commits_and_edition_record_the_content_of_each_table(sliced: Lakehouse) -> None:
    from lake.store.delta import positions

    edition = latest_edition(sliced.settings)
    for name, declaration in sliced.project.tables.items():
        table = sliced.project.table(declaration)
        for position in positions(table.path, table.app):
            assert position.data["content"] == str(table.content(position.version)), (name, position.data["cut"])
        assert present(edition).tables[name].content == present(table.position()).data["content"]
        assert present(edition).tables[name].rows == table.rows(table.version())


def test_quantiles_of_few_changes_are_computed_by_duckdb(sliced: Lakehouse) -> None:
    table = inputs_of(sliced).table(sliced.project.tables["route_quantiles"])
    assert present(table.head()).engine == "duckdb"


def test_repeated_advance_commits_nothing(sliced: Lakehouse) -> None:
    inputs = inputs_of(sliced)
    for declaration in sliced.project.tables.values():
        version = present(inputs.table(declaration).position()).version
        again = advancing.advance(inputs, declaration)
        assert (again.verb, again.version) == ("none", version)


def test_write_of_a_lost_race_is_unavailable(sliced: Lakehouse) -> None:
    inputs, declaration = inputs_of(sliced), sliced.project.tables["route_first"]
    table = inputs.table(declaration)
    stale = Evaluation(inputs, declaration, table, table.head_at(1))
    with pytest.raises(Unavailable, match="another writer"):
        write(stale, Rows(empty_diff(table)), verb="advance")


def test_verify_finds_tampered_rows_and_rebuild_repairs_them(sliced: Lakehouse) -> None:
    from deltalake import DeltaTable

    inputs, declaration = inputs_of(sliced), sliced.project.tables["carrier_daily"]
    path = str(inputs.table(declaration).path)
    day = "day = DATE '2013-01-02'"
    DeltaTable(path).update(updates={"flights": "flights + 1"}, predicate=f"carrier = 'UA' and {day}")
    DeltaTable(path).delete(f"carrier = 'AA' and {day}")
    verdict = verify(recompute_inputs(sliced), declaration)
    assert (verdict.verdict, verdict.differing) == ("differs", 2)
    missing, differs = verdict.differences
    assert (missing["carrier"], missing["change"]) == ("AA", "missing")
    assert (differs["carrier"], differs["change"], list(differs["columns"])) == ("UA", "differs", ["flights"])
    done = rebuild(inputs, declaration)
    assert (done.inserted, done.updated, done.deleted) == (1, 1, 0)
    assert verify(recompute_inputs(sliced), declaration).verdict == "identical"


def test_voided_event_leaves_every_table(sliced: Lakehouse, tmp_path: Path) -> None:
    shutil.copytree(sliced.home, tmp_path, dirs_exist_ok=True)
    lakehouse = Lakehouse(REPOSITORY, tmp_path)
    before = {row["carrier"]: row["flights"] for row in lakehouse.table("carrier_league")}
    place = one_event(lakehouse)
    void(lakehouse.settings, "flights", [place[0]], reason="never happened")
    lakehouse.run()
    after = {row["carrier"]: row["flights"] for row in lakehouse.table("carrier_league")}
    assert after == before | {place[1]: before[place[1]] - 1}
    for declaration in lakehouse.project.tables.values():
        assert verify(recompute_inputs(lakehouse), declaration).verdict == "identical", declaration.name


def one_event(lakehouse: Lakehouse) -> tuple[str, str]:
    from lake.store.scan import Scan

    rows = Scan(Warehouse(lakehouse.settings).log("flights").path, bounds={"_batch": (2, 2)}).arrow().to_pylist()
    row = next(row for row in rows if row["_refusal"] is None)
    return f"{row['_batch']}:{row['_bucket']}:{row['_offset']}", row["carrier"]


def test_rebuild_of_a_correct_table_changes_nothing(sliced: Lakehouse) -> None:
    inputs = inputs_of(sliced)
    for declaration in sliced.project.tables.values():
        done = rebuild(inputs, declaration)
        assert (done.inserted, done.updated, done.deleted) == (0, 0, 0), declaration.name


def test_check_laws_detects_a_table_that_differs_from_its_log(
    sliced: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Inputs.evaluate

    def evaluate(self: Inputs, declaration: Declaration) -> DataFrame:
        rows = honest(self, declaration)
        return rows.where("origin <> 'JFK'") if declaration.name == "route_first" else rows

    monkeypatch.setattr(Inputs, "evaluate", evaluate)
    with pytest.raises(LawError, match=r"route_first differs.*extra"):
        sliced.check_laws()
