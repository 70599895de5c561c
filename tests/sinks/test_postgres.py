"""A serving copy in PostgreSQL: whatever happens to editions, its tables are those of one edition, all or nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver, preview
from lake.sinks.kind import DeclaredSink
from lake.sinks.plan import DeliveryPlan
from lake.sinks.sink import SinkDelivery
from lake.sinks.verify import verify_sink
from lake.store.ledger import editions
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.read.things import NAME, Things
from tests.servers.postgres import Postgres
from tests.sinks.killed import POINTS, kill
from tests.sinks.walks import command, edition, every_type, lake, sink

URL = 'kind = "postgres"\nurl = "env:CRM_URL"\n'


@pytest.fixture
def database(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database that sinks called by `URL` fill."""
    dsn = postgres.database()
    monkeypatch.setenv("CRM_URL", dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def identical(settings: Settings, crm: DeclaredSink) -> int:
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
    assert [(t["inserted"], t["updated"], t["deleted"]) for t in second["sinks"][0]["tables"]] == [
        (5, 32, 0),
        (0, 1, 0),
    ]
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


@pytest.mark.parametrize("point", POINTS)
def test_a_deliverer_that_is_killed_leaves_an_edition_and_the_next_goes_on(
    project: Settings, database: psycopg.Connection[Any], point: str
) -> None:
    crm = sink(project, "crm", f"{URL}[tables.one]\n[tables.two]\n")
    words = [f"SELECT range AS id, 'w' || range * {n} AS word FROM range({30 + 3 * n})" for n in range(6)]
    for number, query in enumerate(words, start=1):
        edition(project, number, "id", one=every_type(30 + 5 * number, shift=number), two=query)
        kill(project, "crm", point)
        has = number if point in {"after", "noted"} else number - 1
        if has:
            assert editions_of(database) == {has}
            assert identical(project, crm) == has
        assert deliver(project, crm).edition == number
        assert identical(project, crm) == number


def editions_of(database: psycopg.Connection[Any]) -> set[int]:
    return {row[0] for row in database.execute("SELECT edition FROM lake._headwater").fetchall()}


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


def test_of_two_who_deliver_at_once_one_waits_and_finds_it_done_or_is_refused(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    """By our lease the second waits; by the target's position, where it has another warehouse's lease."""
    edition(project, 1, "id", one=every_type(10))
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    deliver(project, crm)
    edition(project, 2, "id", one=every_type(12))
    with closing(crm.open()) as slow:
        late = DeliveryPlan(project, crm, slow.position(), reader(project).edition).delivery()
        edition(project, 3, "id", one=every_type(14))
        assert deliver(project, crm).edition == 3
        with pytest.raises(Unavailable, match="brought to another position meanwhile: it has edition 3"):
            slow.deliver(late)
    assert identical(project, crm) == 3
    edition(project, 4, "id", one=every_type(16))
    with ThreadPoolExecutor() as pool:
        at_once = [pool.submit(lake, project, ["deliver", "crm"]) for _ in range(3)]
    assert [done.result().returncode for done in at_once] == [0, 0, 0]
    assert identical(project, crm) == 4


TAMPERED = {
    "UPDATE lake.one SET word = 'forged' WHERE id = 7": [(7, "differs")],
    "UPDATE lake.one SET exact = NULL WHERE id IN (0, 3)": [(0, "differs"), (3, "differs")],
    "UPDATE lake.one SET double = double + 1e-301 WHERE id = 2": [(2, "differs")],
    "UPDATE lake.one SET part = '{}' WHERE id = 1": [(1, "differs")],
    "UPDATE lake.one SET words = words || 'x'::text WHERE id = 5": [(5, "differs")],
    "DELETE FROM lake.one WHERE id >= 28": [(28, "missing"), (29, "missing")],
    "INSERT INTO lake.one (id) VALUES (-4)": [(-4, "extra")],
    "UPDATE lake.one SET id = 100 WHERE id = 6": [(6, "missing"), (100, "extra")],
    "ALTER TABLE lake.one DROP CONSTRAINT one_key; INSERT INTO lake.one SELECT * FROM lake.one WHERE id = 9": [
        (9, "repeated")
    ],
}


@pytest.mark.parametrize("forgery", TAMPERED)
def test_a_row_that_was_tampered_with_is_named_and_put_right(
    project: Settings, database: psycopg.Connection[Any], forgery: str
) -> None:
    edition(project, 1, "id", one=every_type(30), two=every_type(3))
    crm = sink(project, "crm", f"{URL}[tables.one]\n[tables.two]\n")
    deliver(project, crm)
    database.execute(forgery.encode())
    said = command(project, "verify", "--sink", "crm", code=1)
    one, two = said["tables"]
    assert [(row["id"], row["change"]) for row in one["differences"]] == TAMPERED[forgery]
    assert (one["verdict"], two["verdict"], one["differing"]) == ("differs", "identical", len(TAMPERED[forgery]))
    assert not deliver(project, crm).changed, "to deliver is to move on, and there is nothing to move on to"
    command(project, "deliver", "crm", "--repair")
    assert identical(project, crm) == 1


def test_what_postgresql_cannot_take_is_told_and_comes_once_it_can(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    bad = "SELECT range AS id, CASE WHEN range % 3 = {} THEN 'a' || chr(0) ELSE 'fine' END AS word FROM range(6)"
    edition(project, 1, "id", one=bad.format(0))
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    assert deliver(project, crm).rejected == 2
    [sink_status] = command(project, "status")["sinks"]
    assert sink_status["rejected"] == [
        {"table": "one", "key": f'{{"id": {key}}}', "reason": "word has the character NUL"} for key in (0, 3)
    ]
    [verdict] = verify_sink(project, crm)[1]
    assert (verdict.verdict, verdict.differing) == ("differs", 0)
    assert verdict.why == "the target cannot take 2 of them: lake status"
    edition(project, 2, "id", one=bad.format(1))
    assert deliver(project, crm).rejected == 2
    assert database.execute("SELECT id FROM lake.one ORDER BY id").fetchall() == [(0,), (2,), (3,), (5,)]
    edition(project, 3, "id", one="SELECT range AS id, 'fine' AS word FROM range(6)")
    assert deliver(project, crm).rejected == 0
    assert identical(project, crm) == 3
    edition(project, 4, "id", one="SELECT range AS id, 'fine' || chr(0) AS word FROM range(1001)")
    with pytest.raises(LakeError, match=r"cannot take more than 1,000 rows of one"):
        deliver(project, crm)
    assert identical(project, crm) == 3


def test_keys_that_no_index_takes_and_keys_with_nul_are_rejected(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    edition(project, 1, "id", one="SELECT id FROM (VALUES ('a'), (repeat('x', 2601)), ('b' || chr(0)), (NULL)) t(id)")
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    assert deliver(project, crm).rejected == 2
    edition(project, 2, "id", one="SELECT id FROM (VALUES ('c'), (NULL)) t(id)")
    assert deliver(project, crm).rejected == 0
    assert identical(project, crm) == 2


def test_a_deploy_with_other_columns_replaces_the_table_and_views_on_it_are_told(
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
    assert database.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'one' ORDER BY 1").fetchall() == [
        ("CREATE INDEX one_1 ON lake.one USING btree (old)",),
        ("CREATE UNIQUE INDEX one_key ON lake.one USING btree (id)",),
    ]


def test_what_is_there_by_another_hand_is_replaced_only_when_asked(
    project: Settings, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE SCHEMA lake; CREATE TABLE lake.one (theirs int)")
    edition(project, 1, "id", one=every_type(3))
    crm = sink(project, "crm", f"{URL}[tables.one]\n")
    with pytest.raises(DeclarationError, match="is there already, and not of this sink"):
        deliver(project, crm)
    deliver(project, crm, resync=True)
    assert identical(project, crm) == 1
    database.execute("ALTER TABLE lake.one DROP COLUMN word")
    edition(project, 2, "id", one=every_type(4))
    with pytest.raises(DeclarationError, match="was altered there"):
        deliver(project, crm)
    deliver(project, crm, resync=True)
    assert identical(project, crm) == 2
    database.execute("DROP TABLE lake.one")
    edition(project, 3, "id", one=every_type(5))
    with pytest.raises(DeclarationError, match="was removed there"):
        deliver(project, crm)
    deliver(project, crm, resync=True)
    assert identical(project, crm) == 3


def test_modes_keep_what_goes_or_every_change_and_begin_anew_only_when_asked(
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


@pytest.mark.parametrize("rest", ["", "repair"])
def test_a_server_that_does_not_answer_is_tried_again_and_a_password_is_never_told(
    project: Settings, monkeypatch: pytest.MonkeyPatch, rest: str, postgres: Postgres
) -> None:
    monkeypatch.setenv("CRM_URL", "postgresql://lake:secret123@127.0.0.1:1/crm")
    edition(project, 1, "id", one=every_type(3))
    sink(project, "crm", f"{URL}[tables.one]\n")
    words = ["deliver", "crm", *([f"--{rest}"] if rest else [])]
    done = lake(project, words)
    assert done.returncode == 75
    assert "PostgreSQL does not answer" in done.stderr
    assert "secret123" not in done.stdout + done.stderr
    [status] = command(project, "status")["sinks"]
    assert "PostgreSQL does not answer" in status["error"]
    assert "secret123" not in json.dumps(status)


def test_the_page_prints_what_it_shows(tmp_path: Path, commands: Commands, postgres: Postgres) -> None:
    dsn = psycopg.conninfo.conninfo_to_dict(postgres.database())
    of_psql = {f"PG{name.upper()}": str(value) for name, value in dsn.items()}
    names = {"PGDBNAME": "PGDATABASE"}
    environment = {names.get(name, name): value for name, value in of_psql.items()}
    try:
        url = " ".join(f"{name}={value}" for name, value in dsn.items())
        play([SHOP, "docs/how-to/sink-postgres.md"], tmp_path, {**commands.environment, **environment, "CRM_URL": url})
    finally:
        postgres.execute("DROP OWNED BY bi; DROP ROLE bi", str(dsn["dbname"]))
