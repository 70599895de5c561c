"""A serving copy in PostgreSQL: whatever happens to editions, its tables are those of one edition, all or nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.declared import Declared
from lake.sinks.deliver import deliver, preview
from lake.sinks.verify import repair, verify_sink
from lake.store.ledger import editions
from tests.read.things import NAME, Things
from tests.servers.postgres import Postgres
from tests.sinks.walks import command, edition, every_type, sink

URL = 'kind = "postgres"\nurl = "env:CRM_URL"\n'


@pytest.fixture
def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database that sinks called by `URL` fill."""
    dsn = postgres.database()
    monkeypatch.setenv("CRM_URL", dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def identical(settings: Settings, crm: Declared) -> int:
    """The edition that the sink has, whose tables have to be identical."""
    number, verdicts = verify_sink(settings, crm)
    assert [verdict.verdict for verdict in verdicts] == ["identical"] * len(crm.tables), verdicts
    return number


@pytest.mark.smoke
def test_an_edition_is_delivered_changed_and_proven(project: Settings, database: psycopg.Connection[Any]) -> None:
    edition(project, 1, "id", one=every_type(40), two="SELECT 1 AS id, 'a' AS word")
    sink(project, "crm", f'{URL}[tables.one]\n[tables.two]\nname = "second"\n')
    first = command(project, "deliver")
    assert [(t["table"], t["whole"], t["inserted"]) for t in first["sinks"][0]["tables"]] == [
        ("one", True, 40),
        ("two", True, 1),
    ]
    assert {row["verdict"] for row in command(project, "verify", "--sink", "crm")["tables"]} == {"identical"}
    edition(project, 2, "id", one=every_type(45, shift=3), two="SELECT 1 AS id, 'b' AS word")
    second = command(project, "deliver", "crm")
    assert [(t["inserted"], t["updated"], t["deleted"]) for t in second["sinks"][0]["tables"]] == [(5, 32, 0), (0, 1, 0)]
    assert {row["verdict"] for row in command(project, "verify", "--sink", "crm")["tables"]} == {"identical"}
    assert database.execute("SELECT edition FROM lake._headwater").fetchall() == [(2,)]
    assert database.execute("SELECT id, word FROM lake.second").fetchall() == [(1, "b")]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_editions_the_copy_is_one_of_them(
    project: Settings, database: psycopg.Connection[Any], seed: int
) -> None:
    chance, things = random.Random(seed), Things(project)
    things.change({1: 1, 2: 2, None: 3})
    crm = sink(project, "crm", f"{URL}[tables.{NAME}]\n")
    for _ in range(25):
        things.step(chance)
        if NAME not in reader(project).edition.tables:
            with pytest.raises(DeclarationError, match="no table 'thing' in edition"):
                deliver(project, crm)
            continue
        if chance.random() < 0.7:
            expected = preview(project, crm)
            done = deliver(project, crm)
            assert [(one.inserted, one.updated, one.deleted) for one in expected.tables] == [
                (one.inserted, one.updated, one.deleted) for one in done.tables
            ]
            assert identical(project, crm) == done.edition == reader(project).edition.number
            assert not deliver(project, crm).changed
            keys = [row[0] for row in database.execute(f"SELECT k FROM lake.{NAME}").fetchall()]
            assert set(keys) == set(things.as_of(done.edition))
            assert len(keys) == len(set(keys))
