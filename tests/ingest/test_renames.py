"""Renamed fields on the command line: tables, `lake sql`, redeliveries, forgotten people."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake import cli
from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.ingest.gap_detection import find_gaps
from lake.testing import Lakehouse
from tests import shop
from tests.contracts import histories
from tests.contracts.histories import History

B: Final = (["null", "int"], {"default": None, "aliases": ["a"]})


def lake(settings: Settings, *words: str) -> str:
    """Return the output of a command. Raise its error."""
    shell = cli.Shell(project=settings.project)
    shell.__dict__ |= {"settings": settings}
    done = CliRunner().invoke(cli.lake, list(words), obj=shell, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert not done.return_value
    return done.stdout


def things(fields: dict[str, Any], **about: Any) -> dict[str, Any]:
    return shop.contract("things", {"id": "long", **fields}, **{"id": ["id"], "buckets": 1} | about)


def newest(*names: str) -> dict[str, str]:
    chosen = ", ".join(f'"{name}"' for name in ("id", *names))
    return {"thing": shop.job("thing", 'Latest("id")', 'log("things")', returns=f"rows.select({chosen})")}


def in_log(settings: Settings, *names: str) -> list[dict[str, Any]]:
    """Return the events as `lake sql` reads them."""
    query = f"select {', '.join(('id', *names))} from log.things order by id"
    rows: list[dict[str, Any]] = json.loads(lake(settings, "sql", query, "--json"))
    return rows


@pytest.mark.long
def test_deploy_adds_values_ingested_under_a_name_before_its_alias(spark: SparkSession, project: Settings) -> None:
    lakehouse = shop.declare(project, things({"b": "int?"}), jobs=newest("b"))
    records = [{"id": 1, "a": 11}, {"id": 2, "b": 22}, {"id": 3, "a": 31, "b": 33}, {"id": 4}]
    lakehouse.land("things", *records).run()
    assert [row["b"] for row in lakehouse.table("thing")] == [None, 22, 33, None]

    lakehouse = shop.declare(project, things({"b": B}))
    lakehouse.land("things", *records, {"id": 5, "a": 55})  # redelivers all older records
    settings = lakehouse.settings
    with pytest.raises(DeclarationError, match="thing: its definition has changed"):
        lake(settings, "run")
    assert "contract field things.b: int → int under b, a in version 1" in lake(settings, "plan")
    lake(settings, "deploy")
    rows = [{"id": n, "b": value} for n, value in enumerate([11, 22, 33, None, 55], 1)]
    assert Lakehouse(project.project, lakehouse.home).table("thing") == rows
    assert in_log(settings, "b") == rows
    rejected = json.loads(lake(settings, "sql", "select detail from lake.quarantine", "--json"))
    assert rejected == [{"detail": "b is there under two names"}]  # redelivered under a contract that knows both names
    lake(settings, "verify")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_history_of_contracts_is_in_tables_and_lake_sql_like_the_model(
    spark: SparkSession, project: Settings, seed: int
) -> None:
    dice = Random(seed)
    history: History = ((),)
    while not history[-1]:
        history = histories.some_history(dice, dice.randint(3, 6))
    expected: list[dict[str, Any]] = []
    for version in range(len(history)):
        lakehouse = shop.declare(project, histories.contract(history[version]))
        some = [*enumerate(dice.sample(histories.records("abc"), 12), 100 * version)]
        lakehouse.land("things", *({"id": n, **record} for n, record in some))
        lake(lakehouse.settings, "ingest")
        taken = ((n, histories.taken(history, version, record)) for n, record in some)
        expected += [{"id": n, **histories.read(history, event)} for n, event in taken if event]
    names = [field.name for field in history[-1]]
    lakehouse = shop.declare(project, jobs=newest(*names)).run()
    for rows in (sorted(lakehouse.table("thing"), key=itemgetter("id")), in_log(lakehouse.settings, *names)):
        assert [{name: histories.plain(value) for name, value in row.items()} for row in rows] == expected
    lake(lakehouse.settings, "verify")


PEOPLE: Final = {"key": ["id"], "subject": "who"}
SEALED: Final = (["null", "string"], {"default": None, "personal": True})


@pytest.mark.long
def test_sealed_value_of_another_name_is_read_until_its_person_is_forgotten(
    spark: SparkSession, project: Settings, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"who": "string", "phone": SEALED}
    lakehouse = shop.declare(project, things(fields | {"mail": SEALED}, **PEOPLE))
    records = [{"id": n, "who": who, "email": f"{who}@x.org"} for n, who in enumerate(("ada", "joan"))]
    lakehouse.land("things", *records)
    lake(lakehouse.settings, "ingest")
    renamed = (["null", "string"], {"default": None, "personal": True, "aliases": ["mail"]})
    lakehouse = shop.declare(project, things(fields | {"email": renamed}, **PEOPLE), jobs=newest("email")).run()
    assert [row["email"] for row in lakehouse.table("thing")] == ["ada@x.org", "joan@x.org"]
    assert [row["email"] for row in in_log(lakehouse.settings, "email")] == [None, None]
    lake(lakehouse.settings, "forget", "things", "subject=ada", "--yes")
    lakehouse.run()
    assert [row["email"] for row in lakehouse.table("thing")] == [None, "joan@x.org"]


@pytest.mark.long
def test_number_of_another_name_is_not_missing(spark: SparkSession, project: Settings) -> None:
    counted = {"complete": {"number": "seq"}}
    lakehouse = shop.declare(project, things({"seq": "long?"}, **counted))
    lakehouse.land("things", {"id": 1, "seq": 1}, {"id": 2, "number": 2}, {"id": 3, "seq": 3})
    lake(lakehouse.settings, "ingest")
    assert find_gaps(lakehouse.settings, load_contract(lakehouse.settings, "things")).summary == "1 number"
    shop.declare(project, things({"seq": (["null", "long"], {"default": None, "aliases": ["number"]})}, **counted))
    assert find_gaps(lakehouse.settings, load_contract(lakehouse.settings, "things")).summary == ""
