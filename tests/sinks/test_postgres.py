"""Serving copy in PostgreSQL: all its tables belong to one edition, also after a failed delivery."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lake.config import Settings
from lake.errors import DeclarationError, StartOver
from lake.sinks.deliver import deliver
from lake.sinks.sink import SinkDelivery
from lake.sinks.verify import verify_sink
from lake.store.ledger import editions
from tests.servers.postgres import Postgres
from tests.sinks.targets import DROPPED_KEY
from tests.sinks.walks import command, edition, every_type, identical, sink

URL = 'kind = "postgres"\nurl = "env:CRM_URL"\n'


@pytest.fixture
def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database that sinks called by `URL` fill."""
    dsn = postgres.database()
    monkeypatch.setenv("CRM_URL", dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def test_readers_see_one_edition_whole_while_it_is_delivered(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    crm = sink(project, "crm", f"{URL}[tables.one]\n[tables.two]\n")
    query = "SELECT range AS id, {} AS said FROM range(20000)"
    seen = set()

    def look(position: Any) -> Any:
        seen.add(
            database.execute(
                "SELECT (SELECT min(said) || max(said) FROM lake.one), (SELECT min(said) || max(said) FROM lake.two),"
                " (SELECT edition FROM lake._headwater)"
            ).fetchone()
        )
        return position

    for number in range(1, 4):
        edition(project, number, "id", one=query.format(f"'{number}'"), two=query.format(f"'{number}'"))
        if number > 1:
            monkey = pytest.MonkeyPatch()
            position = SinkDelivery.position
            monkey.setattr(SinkDelivery, "position", lambda delivery: look(position(delivery)))  # noqa: B023 - at once
            deliver(project, crm)
            monkey.undo()
        else:
            deliver(project, crm)
        look(None)
    assert seen == {(f"{n}{n}", f"{n}{n}", n) for n in (1, 2, 3)}


def test_keys_too_long_for_an_index_and_keys_with_nul_are_rejected(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    edition(project, 1, "id", one="SELECT id FROM (VALUES ('a'), (repeat('x', 2601)), ('b' || chr(0)), (NULL)) t(id)")
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    assert deliver(project, crm).rejected == 2
    edition(project, 2, "id", one="SELECT id FROM (VALUES ('c'), (NULL)) t(id)")
    assert deliver(project, crm).rejected == 0
    assert identical(project, crm) == 2


def test_deploy_with_other_columns_replaces_the_table_unless_a_view_uses_it(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    edition(project, 1, "id", one="SELECT 1 AS id, 2 AS old")
    crm = sink(project, "crm", f"{URL}[tables.one]\nindexes = [['old']]\n")
    with pytest.raises(DeclarationError, match="indexes: 'old' is no list"):
        deliver(project, sink(project, "crm", f"{URL}[tables.one]\nindexes = ['old']\n"))
    deliver(project, crm)
    database.execute("CREATE VIEW lake.theirs AS SELECT * FROM lake.one")
    edition(project, 2, "id", one="SELECT 1 AS id, 2::BIGINT AS old, 'x' AS new")
    with pytest.raises(DeclarationError, match=r"cannot be replaced.*lake\.theirs"):
        deliver(project, crm)
    assert identical(project, crm) == 1
    database.execute("DROP VIEW lake.theirs")
    [sent] = deliver(project, crm).tables
    assert sent.whole
    assert identical(project, crm) == 2
    found = database.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'one' ORDER BY 1").fetchall()
    assert [re.sub("_[0-9a-f]{8} ", " ", index) for (index,) in found] == [
        "CREATE INDEX one_1 ON lake.one USING btree (old)",
        "CREATE UNIQUE INDEX one_key ON lake.one USING btree (id)",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("orders", "orders_key"),
        ("orders_key", "orders"),
        ("orders", "orders_1"),
        ("orders", "_new_orders"),
        ("o" * 60 + "a", "o" * 60 + "b"),
        ("é" * 31, "é" * 30 + "e"),
    ],
)
def test_tables_with_similar_names_are_delivered_and_replaced(
    project: Settings, database: psycopg.Connection[Any], first: str, second: str
) -> None:
    tables = "".join(
        f"[tables.{table}]\nname = '{name}'\nindexes = [['said']]\n"
        for table, name in (("one", first), ("two", second))
    )
    crm = sink(project, "crm", f"{URL}{tables}")
    for number, more in enumerate(("", ", 3 AS more"), start=1):
        queries = {name: f"SELECT {id} AS id, {number} AS said{more}" for name, id in (("one", 1), ("two", 2))}
        edition(project, number, "id", **queries)
        deliver(project, crm)
        assert identical(project, crm) == number


REPEATED = f"{DROPPED_KEY}; INSERT INTO lake.one SELECT * FROM lake.one"


@pytest.mark.parametrize("altered", ["ALTER TABLE lake.one DROP COLUMN word", REPEATED], ids=["column", "key"])
def test_table_that_was_altered_is_replaced_only_when_asked(
    project: Settings, database: psycopg.Connection[Any], altered: str
) -> None:
    edition(project, 1, "id", one=every_type(3))
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    deliver(project, crm)
    database.execute(altered)
    edition(project, 2, "id", one=every_type(4))
    with pytest.raises(DeclarationError, match="was altered there"):
        deliver(project, crm)
    deliver(project, crm, resync=True)
    assert identical(project, crm) == 2
    keys = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'lake.one'::regclass AND contype = 'p'"
    assert database.execute(keys).fetchall() == [(1,)]


def test_modes_keep_removed_rows_or_every_change_and_start_over_only_when_asked(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    text = f'{URL}[tables.one]\nmode = "upsert"\n[tables.two]\nmode = "append"\ncolumns = ["id", "word"]\n'
    crm = sink(project, "crm", text)

    def publish(cut: int, **words: str) -> None:
        listed = ", ".join(f"({n[1:]}, '{word}', {cut})" for n, word in words.items())
        rows = f"SELECT * FROM (VALUES {listed}) t(id, word, other)"
        edition(project, cut, "id", one=rows, two=rows)
        deliver(project, crm)

    publish(1, _1="a", _2="b")
    publish(2, _1="a", _3="c")
    publish(3, _1="z", _3="c")
    publish(4, _1="z", _2="back", _3="c")
    assert database.execute("SELECT id, word FROM lake.one ORDER BY id").fetchall() == [(1, "z"), (2, "back"), (3, "c")]
    assert database.execute("SELECT * FROM lake.two ORDER BY _edition, id").fetchall() == [
        (1, "a", 1, "insert"),
        (2, "b", 1, "insert"),
        (2, "b", 2, "delete"),
        (3, "c", 2, "insert"),
        (1, "z", 3, "update"),
        (2, "back", 4, "insert"),
    ]
    verdicts = {verdict.table: verdict.verdict for verdict in verify_sink(project, crm)[1]}
    assert verdicts == {"one": "identical", "two": "unproven"}
    nine = "SELECT 9 AS id, 'w' AS word, 1 AS other"
    edition(project, 5, "id", one=f"{nine}, 'm' AS more", two=nine)
    with pytest.raises(StartOver, match="must begin anew with one, of mode upsert: what is there has other columns"):
        deliver(project, crm)
    edition(project, 6, "id", one="SELECT 9 AS id, 'w' AS word, 1 AS other", two=nine)
    editions.expire_editions(project, [4])
    with pytest.raises(StartOver, match="edition 4, which it has, has expired"):
        deliver(project, crm)
    deliver(project, crm, resync=True)
    assert database.execute("SELECT * FROM lake.two").fetchall() == [(9, "w", 6, "insert")]


def test_readers_may_read_and_nothing_else(project: Settings, database: psycopg.Connection[Any]) -> None:
    edition(project, 1, "id", one=every_type(3))
    crm = sink(project, "crm", f'{URL}readers = ["bi_reader"]\n[tables.one]\n')
    with pytest.raises(DeclarationError, match="there is no role 'bi_reader'"):
        deliver(project, crm)
    database.execute("CREATE ROLE bi_reader")
    try:
        deliver(project, crm)
        database.execute("SET ROLE bi_reader")
        assert database.execute("SELECT count(*) FROM lake.one").fetchall() == [(3,)]
        for forbidden in ("DELETE FROM lake.one", "CREATE TABLE lake.x ()", "UPDATE lake._headwater SET edition = 9"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                database.execute(forbidden.encode())
    finally:
        database.execute("RESET ROLE; DROP OWNED BY bi_reader; DROP ROLE bi_reader")


@pytest.mark.parametrize("words", [["deliver"], ["deliver", "crm", "--repair"]])
def test_reader_added_later_may_read_tables_that_are_there(
    project: Settings, database: psycopg.Connection[Any], words: list[str]
) -> None:
    edition(project, 1, "id", one=every_type(3))
    deliver(project, sink(project, "crm", f"{URL}[tables.one]\n"))
    if "--repair" not in words:
        edition(project, 2, "id", one=every_type(4))
    database.execute("CREATE ROLE later_reader")
    try:
        sink(project, "crm", f'{URL}readers = ["later_reader"]\n[tables.one]\n')
        command(project, *words)
        assert database.execute("SELECT has_table_privilege('later_reader', 'lake.one', 'SELECT')").fetchall() == [
            (True,)
        ]
    finally:
        database.execute("DROP OWNED BY later_reader; DROP ROLE later_reader")
