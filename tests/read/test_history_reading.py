"""Reading of a History: versions valid at a time, as known at a cut, and its invariants."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError, QualityError
from lake.kinds.history import CLOSED
from lake.project.project import load
from lake.publish.check import check
from lake.read.sql import EditionReader, reader
from lake.store import delta
from lake.store.ledger import checks, cuts
from lake.store.tables import Table
from lake.testing import Lakehouse
from tests.checks import spark_forbidden
from tests.shop import contract, declare
from tests.warehouse import publish, write

CONTRACT = contract("moves", {"flat": "long", "tenant": "string?", "since": "date"}, id=["flat", "since"])
JOB = '''
from lake import History, log, table


@table(History("flat", sequence="_since", deletes="tenant is null"), log("moves"))
def tenancy(moves):
    """Who lived in a flat, and when."""
    return moves.selectExpr("flat", "tenant", "since as _since")
'''
VERSIONS = """
    SELECT * FROM (VALUES
      (1, 'ada', DATE '2024-01-01', DATE '2024-03-01', false, 'x'),
      (1, 'eve', DATE '2024-03-01', NULL,              true,  'y')
    ) t(flat, tenant, valid_from, valid_to, is_current, version_id)"""


@pytest.fixture
def flats(project: Settings) -> Settings:
    declare(project, CONTRACT, jobs={"tenancy": JOB})
    return project


def move(flat: int, tenant: str | None, since: str) -> dict[str, Any]:
    return {"flat": flat, "tenant": tenant, "since": since}


def tenants(found: EditionReader, moment: str) -> list[str]:
    return [name for (name,) in found.relation(f"SELECT tenant FROM tenancy_at({moment}) ORDER BY flat").fetchall()]


@pytest.mark.long
def test_history_at_a_time_differs_between_cuts_and_editions(
    spark: SparkSession, flats: Settings, tmp_path: Path
) -> None:
    house = Lakehouse(flats.project, tmp_path / "home")
    house.land("moves", move(1, "ada", "2024-01-01"), move(2, "bob", "2024-01-01")).run()
    house.land("moves", move(1, "eve", "2024-02-01"), move(2, None, "2024-05-01")).run()
    assert tenants(reader(house.settings), "DATE '2024-03-15'") == ["eve", "bob"]
    assert tenants(reader(house.settings, 1), "DATE '2024-03-15'") == ["ada", "bob"]
    assert tenants(reader(house.settings, cut=1), "'2024-03-15'") == ["ada", "bob"]
    assert tenants(reader(house.settings, cut=9), "DATE '2024-05-01'") == ["eve"]
    with pytest.raises(DeclarationError, match="no edition had been published by cut 0"):
        reader(house.settings, cut=0)
    house.check_laws()


def run_sql(settings: Settings, *args: str) -> Any:
    return CliRunner().invoke(lake, ["sql", *args, "--format", "csv", "--project", str(settings.project)])


def test_command_reads_a_history_at_a_time_and_a_cut(project: Settings) -> None:
    write(project, "silver", "tenancy", VERSIONS)
    publish(project, cut=3, tenancy=("silver", 0))
    query = "SELECT tenant FROM tenancy_at('2024-02-29')"
    assert run_sql(project, query, "--cut", "4").stdout == "tenant\nada\n"
    assert "by cut 2" in str(run_sql(project, query, "--cut", "2").exception)
    assert "use only one of them" in str(run_sql(project, query, "--cut", "4", "--edition", "1").exception)


def test_query_of_a_history_at_a_time_opens_no_other_file(project: Settings) -> None:
    write(project, "silver", "tenancy", VERSIONS)
    publish(project, tenancy=("silver", 0))
    for query in ("FROM tenancy_at((SELECT max(content) FROM read_text('/etc/hostname')))", "DROP MACRO tenancy_at"):
        with pytest.raises(DeclarationError):
            reader(project).relation(query).fetchall()


def put(settings: Settings, *versions: tuple[Any, ...]) -> None:
    names = ("flat", "tenant", "valid_from", "valid_to", "is_current", "version_id", CLOSED)
    rows = pa.Table.from_pylist([dict(zip(names, version, strict=True)) for version in versions])
    position = delta.start("table:tenancy").next(verb="build", cut=1, counts={"inserted": len(versions)})
    path = Table(settings, "silver", "tenancy", "tenancy").path
    cuts.record_cut(settings, {"moves": 1}, 0)
    write_deltalake(str(path), rows, commit_properties=position.commit_properties)


MAY, JUNE, JULY, AUGUST = (date(2024, month, 1) for month in (5, 6, 7, 8))
OPEN = (1, "eve", JUNE, None, True, "b", False)


@pytest.mark.parametrize(
    ("invariant", "first", "second"),
    [
        ("versions_do_not_overlap", (1, "ada", MAY, JULY, False, "a", False), OPEN),
        ("versions_have_length", (1, "ada", JUNE, MAY, False, "a", True), OPEN),
        ("no_gap_unless_deleted", (1, "ada", MAY, JUNE, False, "a", False), (1, "eve", JULY, AUGUST, False, "b", True)),
        ("at_most_one_current_version", (1, "ada", MAY, None, True, "a", False), OPEN),
        ("current_versions_are_open", (1, "ada", MAY, JUNE, True, "a", True), (2, "eve", MAY, JUNE, False, "b", True)),
    ],
)
def test_history_with_a_broken_invariant_is_not_published(
    flats: Settings, invariant: str, first: Any, second: Any
) -> None:
    put(flats, first, second)
    with pytest.raises(QualityError, match=rf"(?s)tenancy: {invariant} failed for \d of 2 rows: .*flat=1 valid_from"):
        check(load(flats), spark_forbidden)
    assert checks.last_checks(flats)["tenancy"].outcome == "stopped"


def test_gap_of_a_history_after_a_delete_is_no_fault(flats: Settings) -> None:
    put(flats, (1, "ada", MAY, JUNE, False, "a", True), (1, "eve", JULY, None, True, "b", False))
    assert [each.outcome for each in check(load(flats), spark_forbidden)] == ["passed"]
