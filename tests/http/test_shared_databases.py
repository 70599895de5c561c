"""Database that a worker keeps for later queries: nothing of a query reaches the next. No server, no JVM."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.config import Settings
from lake.read.locked_database import SharedDatabase
from lake.read.sql import EditionReader, reader
from lake.serve.problems import problem_of
from lake.serve.reading import query_worker
from lake.serve.reading.query_worker import QueryTask, ReaderCache
from lake.store.ledger.grants import Grant
from lake.store.snapshot import Published
from tests.reading import append, publish, small
from tests.servers.http import installed
from tests.warehouse import write

pytestmark = pytest.mark.slow

MEMORY: Final = 64 << 20
LIMITS: Final = f"[tool.lake.serve]\nquery_memory = {MEMORY}\nquery_disk = {256 << 20}\n"
GRANTS: Final = {"all": ["*"], "gold": ["gold.*"], "silver": ["silver.*"], "ledgers": ["types", "lake.editions"]}
QUERIES: Final = (
    "select count(*) as n, max(n) as most from numbers",
    "select * from types order by id",
    "from gold.numbers where n < 3 order by n",
    "select a, b from nothing",
    "select local_time from silver.local",
    "select current_schema() as s, current_date - current_date as d",
    "select count(*) as n from lake.editions",
    "show tables",
    "describe types",
    "from (pivot (select id, flag from types) on flag in (true, false) using count(*)) order by id",
    "select count(*) as n from numbers, types, local",
)
WRONG: Final = (
    "set threads = 1",
    "set memory_limit = '9GB'",
    "set variable secret = 'x'",
    "create temp table left_behind as select 1 as a",
    "create table left_behind as select 1 as a",
    "create view numbers as select 1 as n",
    "create macro count(x) as 0",
    "prepare left_behind as select 1",
    "attach ':memory:' as left_behind",
    "use silver",
    "set schema = 'gold'",
    "create type left_behind as enum ('a')",
    "create sequence left_behind",
    "begin",
    "commit",
    "insert into numbers values (1, 'a')",
    "from left_behind",
    "select getvariable('secret')",
    "select missing from numbers",
    "select 1 / (select 0) + error('failed') from numbers",
    "select 'x'::int from numbers",
    "selec",
    "",
    "from numbers; from types",
    "explain from numbers",
    "pivot types on flag using count(*)",
)
STATE: Final = {
    "settings": """SELECT name, value FROM duckdb_settings()
        WHERE name NOT IN ('temp_directory', 'allowed_directories') ORDER BY ALL""",
    "tables": "SELECT database_name, schema_name, table_name FROM duckdb_tables() ORDER BY ALL",
    "views": "SELECT database_name, schema_name, view_name, sql FROM duckdb_views() ORDER BY ALL",
    "functions": "SELECT database_name, schema_name, function_name FROM duckdb_functions() ORDER BY ALL",
    "types": "SELECT database_name, schema_name, type_name FROM duckdb_types() ORDER BY ALL",
    "sequences": "SELECT schema_name, sequence_name FROM duckdb_sequences() ORDER BY ALL",
    "databases": "SELECT database_name, path FROM duckdb_databases() ORDER BY ALL",
    "statements": "SELECT name FROM duckdb_prepared_statements() ORDER BY ALL",
    "variables": "SELECT name FROM duckdb_variables() ORDER BY ALL",
    "names": "SELECT current_schema(), current_database(), getvariable('secret')",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Published tables shared by tests that only read."""
    installed()
    return small(tmp_path_factory.mktemp("shared") / "shop", LIMITS)


def granted(settings: Settings, name: str, edition: int | None = None) -> EditionReader:
    """Return the reader of one grant, as the server sends it to a worker."""
    grant, whole = Grant(name, (*GRANTS[name],), "", datetime.now(UTC)), reader(settings, edition)
    seen = {table: entry for table, entry in whole.edition.tables.items() if grant.covers(f"{entry.layer}.{table}")}
    sent = replace(whole, edition=replace(whole.edition, tables=seen), may_read=grant.covers, is_limited=True)
    return cast("EditionReader", pickle.loads(pickle.dumps(sent)))


def answer(readers: ReaderCache, asked: EditionReader, query: str, kind: str = "json") -> tuple[Any, ...]:
    """Return all frames of an answer and its rows, or the problem."""
    frames = list[tuple[bytes, bytes]]()
    task = QueryTask(asked, query, kind, checked=True, rows=10_000, size=1 << 20)
    try:
        report = task.run(readers.get(asked), lambda *frame: frames.append(frame))
    except Exception as error:
        problem = problem_of(error)
        return problem.kind, problem.detail, problem.more
    return (b"".join(content for _, content in frames), report)


def shared(readers: ReaderCache, asked: EditionReader) -> SharedDatabase:
    database = readers.get(asked).database
    assert database is not None
    return database


@settings(max_examples=2)
@given(st.lists(st.tuples(st.sampled_from([*GRANTS]), st.sampled_from(QUERIES + WRONG)), min_size=2, max_size=12))
def test_answer_of_a_shared_database_equals_that_of_a_new_one(site: Settings, asked: list[tuple[str, str]]) -> None:
    readers, alone = ReaderCache(), ReaderCache()
    for name, query in asked:
        alone.close(but=0)
        given_reader = granted(site, name)
        assert answer(readers, given_reader, query) == answer(alone, given_reader, query), (name, query)
    readers.close(but=0)


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "parquet"])
def test_answers_of_every_format_are_equal_when_repeated(site: Settings, kind: str) -> None:
    readers, asked = ReaderCache(), granted(site, "all")
    for query in QUERIES:
        first = answer(readers, asked, query, kind)
        assert answer(readers, asked, query, kind) == first != ()


def test_reader_sees_no_table_of_another_in_the_same_worker(site: Settings) -> None:
    readers = ReaderCache()
    for _ in range(2):
        assert answer(readers, granted(site, "all"), "select count(*) as n from numbers")[1] == {"rows": 1}
        kind, detail, _ = answer(readers, granted(site, "silver"), "select count(*) as n from numbers")
        assert (kind, "no table 'numbers'" in detail) == ("bad-query", True)
        assert b"numbers" not in answer(readers, granted(site, "silver"), "show all tables")[0]
        with shared(readers, granted(site, "silver")).cursor([]) as con:
            assert con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == [
                ("local",), ("nothing",), ("local",), ("nothing",)
            ]  # fmt: skip


def test_readers_of_equal_tables_share_a_database(site: Settings) -> None:
    readers, whole = ReaderCache(), reader(site)
    asked = replace(whole, is_limited=True, may_read=str.isupper)
    assert shared(readers, asked) is shared(readers, granted(site, "all"))
    assert shared(readers, asked) is not shared(readers, granted(site, "gold"))
    assert shared(readers, asked) is not shared(readers, replace(asked, is_limited=False))


@pytest.mark.turns(3)
@pytest.mark.turns(9)
@pytest.mark.parametrize("statement", WRONG)
def test_statement_that_passed_every_check_would_leave_nothing_behind(site: Settings, statement: str) -> None:
    """The cursor keeps the state of a query from the next even if the sandbox let a statement pass."""
    database, tables = shared(ReaderCache(), granted(site, "all")), granted(site, "all").tables_in("show tables")
    before = _state(database, tables)
    with suppress(duckdb.Error), database.cursor(tables) as con:
        con.execute(statement)
    assert _state(database, tables) == before


def _state(database: SharedDatabase, tables: Sequence[Published]) -> dict[str, list[Any]]:
    with database.cursor(tables) as con:
        return {name: con.execute(query).fetchall() for name, query in STATE.items()}


def test_query_writes_no_table_within_its_transaction(site: Settings) -> None:
    database = shared(ReaderCache(), granted(site, "all"))
    with pytest.raises(duckdb.TransactionException), database.cursor([]) as con:
        con.execute("CREATE TABLE t AS SELECT 1")


def test_unread_rows_of_a_query_do_not_reach_the_next(site: Settings) -> None:
    database = shared(ReaderCache(), granted(site, "all"))
    tables = granted(site, "all").tables_in("numbers")
    for _ in range(3):
        with database.cursor(tables) as con:
            con.execute("SELECT n FROM numbers, range(100000)")
            assert con.fetchone() is not None


def test_query_over_the_memory_limit_closes_the_database_and_the_next_succeeds(site: Settings) -> None:
    readers, asked = ReaderCache(), granted(site, "all")
    numbers = "select count(*) as n from numbers"
    first = answer(readers, asked, numbers)
    kind, detail, _ = answer(readers, asked, "select repeat('x', 3000000)")
    assert (kind, "query_memory" in detail) == ("too-much", True)
    assert not shared(readers, asked).tables
    assert answer(readers, asked, numbers) == first
    assert shared(readers, asked).tables


def test_disk_of_a_query_is_free_for_the_next(site: Settings) -> None:
    readers, asked = ReaderCache(), granted(site, "all")
    query = "select max(x) as x from (select row_number() over (order by hash(i)) as x from range(3000000) t(i))"
    for _ in range(2):
        assert answer(readers, asked, query)[0] == answer(readers, asked, query)[0]
        assert sum(file.stat().st_size for file in site.path(".lake/sql").rglob("*") if file.is_file()) == 0
    readers.close(but=0)
    assert not [*site.path(".lake/sql").glob(f"headwater-{os.getpid()}-*")]


def test_answer_over_a_limit_leaves_the_database_usable(site: Settings) -> None:
    readers, asked = ReaderCache(), granted(site, "all")
    first = answer(readers, asked, "select count(*) as n from numbers")
    for query, kind in (("from range(20000)", "json"), ("select repeat('x', 1500000)", "csv"),
                        ("select repeat('x', 1500000)", "json")):  # fmt: skip
        assert answer(readers, asked, query, kind)[0] == "too-large"
        assert answer(readers, asked, "select count(*) as n from numbers") == first


def test_new_edition_is_read_at_once_and_the_old_one_on_request(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    readers, query = ReaderCache(), "select count(*) as n from numbers"
    for number, rows in ((1, 1000), (2, 1005), (3, 1010)):
        assert answer(readers, granted(project, "all"), query)[0].endswith(b'[\n{"n":%d}\n]\n' % rows)
        assert answer(readers, granted(project, "all", 1), query)[0].endswith(b'[\n{"n":1000}\n]\n')
        assert append(project, rows, 5).number == number + 1


def test_table_of_a_new_edition_has_its_new_column(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    readers, query = ReaderCache(), "select * from numbers order by all limit 1"
    assert b'{"n":0,"text":"row 0"}' in answer(readers, granted(project, "all"), query)[0]
    publish(
        project, numbers=write(project, "gold", "numbers", "SELECT -1::BIGINT AS n, 'x' AS text, 7 AS more", merge=True)
    )
    assert b'{"n":-1,"text":"x","more":7}' in answer(readers, granted(project, "all"), query)[0]


def test_ledgers_are_current_within_an_edition(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    readers, asked = ReaderCache(), granted(project, "ledgers")
    query = "select count(distinct number) as n from lake.editions"
    assert b'{"n":1}' in answer(readers, asked, query)[0]
    append(project, 1000, 5)
    assert b'{"n":2}' in answer(readers, asked, query)[0]


def test_table_damaged_later_stops_only_queries_that_name_it(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    readers, asked = ReaderCache(), granted(project, "all")
    answer(readers, asked, "from numbers")
    for file in asked.table("numbers").files:
        Path(file).unlink()
    assert answer(readers, asked, "from nothing")[1] == {"rows": 0}
    assert answer(readers, asked, "from numbers")[0] == "unreadable"
    assert answer(readers, asked, "from nothing")[1] == {"rows": 0}


def test_worker_keeps_the_readers_used_last(site: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = ReaderCache()
    databases = [shared(readers, granted(site, name)) for name in GRANTS]
    for name in GRANTS:
        answer(readers, granted(site, name), "select 1 as a from types, local" if name == "all" else "select 1 as a")
    readers.close(but=2)
    assert [bool(database.tables) for database in databases] == [False, False, True, True]
    monkeypatch.setattr(query_worker, "OPEN", 1)
    answer(readers, granted(site, "all"), "select 1 as a")
    assert [bool(database.tables) for database in databases] == [False] * 4


def test_idle_worker_closes_its_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    readers, closed = ReaderCache(), list[int]()

    def close(*, but: int) -> None:
        closed.append(but)
        os.close(write_end)

    monkeypatch.setattr(readers, "close", close)
    monkeypatch.setattr(query_worker, "UNUSED_SECONDS", 0.01)
    with open(read_end, "rb") as source:
        assert query_worker._next(source, readers) is None
    assert closed == [0]


def test_interrupted_query_closes_the_database(site: Settings) -> None:
    database, tables = shared(ReaderCache(), granted(site, "all")), granted(site, "all").tables_in("numbers")

    def interrupt(con: duckdb.DuckDBPyConnection) -> None:
        con.execute("SELECT n FROM numbers")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), database.cursor(tables) as con:
        interrupt(con)
    assert not database.tables
    with database.cursor(tables) as con:
        assert con.execute("SELECT count(*) FROM numbers").fetchall() == [(1000,)]


def test_database_of_a_new_edition_opens_with_the_tables_of_the_old_one(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    readers = ReaderCache()
    answer(readers, granted(project, "all"), "select count(*) from numbers, types")
    append(project, 1000, 5)
    asked = granted(project, "all")
    answer(readers, asked, "select count(*) from types")
    assert shared(readers, asked).tables.keys() == {"numbers", "types"}
    answer(readers, granted(project, "silver"), "select 1 from local")
    assert shared(readers, granted(project, "silver")).tables.keys() == {"local"}
