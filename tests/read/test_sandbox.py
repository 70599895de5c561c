"""Sandbox of remote readers: allowed queries, recorded reads, grants. No JVM, no server."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lake.cli import lake
from lake.config import Settings
from lake.errors import DeclarationError
from lake.read import reader_grants
from lake.read.sandbox import check_query
from lake.read.sql import EditionReader, reader
from lake.store.ledger import grants
from lake.store.ledger.grants import Grant
from lake.store.ledger.reads import Journal, Read
from tests.read.test_sql import WRITES
from tests.warehouse import published


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Published shop shared by tests that only read."""
    return published(tmp_path_factory.mktemp("shop") / "shop").settings


@pytest.fixture(scope="module")
def edition(shop: Settings) -> EditionReader:
    return reader(shop)


def read_answer(edition: EditionReader, query: str) -> object:
    """Return the answer to a reader. An unknown table passes the check and is not found."""
    check_query(edition, query)
    with edition.connect(query) as con:
        return con.execute(query).fetchall()


@pytest.mark.parametrize("query", WRITES)
def test_query_forbidden_to_the_owner_is_forbidden_to_readers(
    edition: EditionReader, query: str, tmp_path: Path
) -> None:
    query = query.replace("OUT", str(tmp_path)).replace("carrier_daily", "customer_daily")
    with pytest.raises(DeclarationError):
        read_answer(edition, query)


ALLOWED = [
    ("from customer_daily", ["customer_daily"]),
    ("select * from GOLD.Customer_Daily c join current_order o using (customer)", ["customer_daily", "current_order"]),
    ("with x as (from current_order) select count(*) from x, x as y", ["current_order"]),
    ("with recursive r as (select 1 as n union all select n + 1 from r where n < 5) from r", []),
    ("pivot current_order on status in ('paid') using sum(amount)", ["current_order"]),
    ("unpivot customer_daily on orders, cancelled", ["customer_daily"]),
    ("describe customer_daily", ["customer_daily"]),
    ("summarize customer_daily", ["customer_daily"]),
    ("show tables", []),
    ("from information_schema.columns", []),
    ("values (1, 'a')", []),
    ("select unnest([1, 2]), * from range(2), generate_series(1, 2)", []),
    ("select * from log.orders, lake.runs", ["log.orders", "lake.runs"]),
    ('from "log.orders"', ["log.orders"]),
    ("select customer, row_number() over (partition by customer) as n from customer_daily qualify n = 1",
     ["customer_daily"]),
    ("select {'a': [x for x in [1, 2] if x > 1]} as s, 'x'::varchar, interval 3 days", []),
]  # fmt: skip


@pytest.mark.parametrize(("query", "tables"), ALLOWED, ids=[query for query, _ in ALLOWED])
def test_query_of_an_analyst_passes_and_its_tables_are_listed(
    edition: EditionReader, query: str, tables: list[str]
) -> None:
    assert sorted(check_query(edition, query).tables) == sorted(tables)
    edition.relation(query).fetchall()


VALUES = st.one_of(
    st.text(min_size=3).filter(lambda text: "\0" not in text).map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.integers(10_000, 10**15).map(str),
    st.decimals(1000, 10**9, places=3).map(str),
    st.dates().map(lambda day: f"DATE '{day}'"),
)
SHAPES = (
    "select * from customer_daily where customer = {}",
    "select * from customer_daily where customer in ({}) and day > {}",
    "select case when customer = {} then {} end as a from customer_daily limit 3",
    "with x as (select {} as a, [{}] as b, {{'k': {}}} as c) from x",
    "values ({}, {})",
    "select list_filter([{}], x -> x = {}) from customer_daily -- {}",
    "select * from current_order pivot (count(*) for status in ({}))",
    "select customer || {} || /* {} */ {} from customer_daily order by {}",
)


@pytest.mark.slow
@given(st.sampled_from(SHAPES), st.lists(VALUES, min_size=4, max_size=4))
def test_values_of_a_query_are_not_kept(edition: EditionReader, shape: str, values: list[str]) -> None:
    query = shape.format(*values[: shape.count("{}")])
    try:
        text = check_query(edition, query).text
    except DeclarationError:  # a value ended the comment
        return
    for value in values[: shape.count("{}")]:
        plain = value.removeprefix("DATE ").strip("'")
        assert len(plain) < 6 or plain not in text or plain in shape


def test_forbidden_query_is_reported_with_the_forbidden_part(edition: EditionReader) -> None:
    for query, told in (
        ("from '/etc/passwd.csv'", "'/etc/passwd.csv' is not allowed"),
        ("from read_csv('x')", "the function read_csv in a FROM is not allowed"),
        ("from system.main.tables", "the database 'system' is not allowed"),
        ("explain from customer_daily", "EXPLAIN, or PIVOT without its values, is not allowed"),
        ("select current_setting('threads')", "the function current_setting is not allowed"),
        ("with t as (copy (select 1) to 'x') from t", "a COPY_QUERY_NODE is not allowed"),
        ("with t as (delete from current_order) from t", "a DELETE_QUERY_NODE is not allowed"),
        ("select 1" + " + 1" * 600, "nested so deeply"),
    ):
        with pytest.raises(DeclarationError, match=told.replace("(", r"\(")):
            check_query(edition, query)


GRANTED = [
    (["*"], {"silver.a", "gold.b"}),
    (["gold.*"], {"gold.b"}),
    (["a"], {"silver.a"}),
    (["silver.b"], set()),
    (["log.*"], {"log.orders"}),
    (["log.orders", "lake.runs"], {"log.orders", "lake.runs"}),
    (["orders", "runs"], set()),
]


@pytest.mark.parametrize(("tables", "seen"), GRANTED, ids=[" ".join(tables) for tables, _ in GRANTED])
def test_grant_covers_the_tables_it_names(tables: Sequence[str], seen: set[str]) -> None:
    grant = Grant("bi", (*tables,), "", datetime.now(UTC))
    every = ("silver.a", "gold.b", "log.orders", "lake.runs")
    assert {title for title in every if grant.covers(title)} == seen


def test_reader_sees_a_log_or_a_ledger_only_if_granted(edition: EditionReader) -> None:
    grant = Grant("bi", ("lake.runs",), "", datetime.now(UTC))
    theirs = replace(edition, may_read=grant.covers)
    assert theirs.system_tables.titles == ("lake.runs",)
    for title in ("log.orders", "lake.reads"):
        with pytest.raises(DeclarationError):
            theirs.relation(f"from {title}")


def test_token_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    settings = published(tmp_path / "shop").settings
    grant, token = reader_grants.grant(settings, "bi", ["customer_daily"], days=1)
    assert len(token) == 43
    listed = grants.grants(settings)
    assert grants.of_token(listed, token) == grant == listed[0]
    assert grants.of_token(listed, token[:-1]) is None
    assert grants.of_token(listed, "") is None
    assert (grant.is_valid(grant.granted_at), grant.is_valid(grant.granted_at + timedelta(days=1))) == (True, False)
    assert not [
        file for file in settings.path(".lake").rglob("*") if file.is_file() and token.encode() in file.read_bytes()
    ]
    with pytest.raises(DeclarationError, match="there is a reader 'bi'"):
        reader_grants.grant(settings, "bi", ["*"])
    reader_grants.revoke(settings, "bi")
    assert grants.of_token(grants.grants(settings), token) is None


def test_reader_command_grants_lists_and_revokes(tmp_path: Path) -> None:
    project = str(published(tmp_path / "shop").settings.project)

    def run(*words: str) -> str:
        done = CliRunner().invoke(lake, ["reader", *words, "--project", project], catch_exceptions=False)
        return done.stdout

    assert run("list") == "no readers\n"
    said = json.loads(run("add", "bi", "--table", "gold.*", "--days", "2", "--json"))
    assert (said["reader"], said["tables"], len(said["token"])) == ("bi", ["gold.*"], 43)
    profile = json.loads(run("add", "pandas", "--table", "*", "--profile", "--url", "https://lake.example.org/"))
    assert profile["endpoint"] == "https://lake.example.org/delta-sharing/"
    assert "bi      gold.*" in run("list")
    assert run("revoke", "bi") == "bi: revoked\n"
    for words, told in (
        (("revoke", "bi"), "no reader 'bi'"),
        (("add", "x", "--table", "customer"), "no table 'customer' to grant"),
        (("add", "no name", "--table", "*"), "is not a valid name of a reader"),
    ):
        with pytest.raises(DeclarationError, match=told):
            run(*words)


def recorded_reads(settings: Settings) -> list[tuple[object, ...]]:
    query = "SELECT reader, outcome, rows, bytes FROM lake.reads ORDER BY started_at"
    return reader(settings).relation(query).fetchall()


def test_read_is_recorded_at_once_and_moved_to_its_ledger_once(tmp_path: Path) -> None:
    settings = published(tmp_path / "shop").settings
    journal = Journal(settings)
    read = Read("bi", "g1", "table", ("customer_daily",), None, 1, 1, "csv")
    journal.add([read])
    assert recorded_reads(settings) == [("bi", None, None, None)]
    journal.add([read.ended("answered", rows=2, size=90)])
    assert recorded_reads(settings) == [("bi", "answered", 2, 90)]
    [file] = settings.path(".lake/reads").iterdir()
    again = file.read_bytes()
    journal.record()
    assert recorded_reads(settings) == [("bi", "answered", 2, 90)]
    journal.close()
    (settings.path(".lake/reads") / "1-dead.jsonl").write_bytes(again + b'{"id": "torn')  # the file of a killed process
    assert recorded_reads(settings) == [("bi", "answered", 2, 90)]
    other = Journal(settings)
    other.record()
    other.close()
    assert recorded_reads(settings) == [("bi", "answered", 2, 90)]
    assert [path for path in settings.path(".lake/reads").iterdir() if path.stat().st_size] == []


def test_record_of_a_read_leaves_nothing_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = published(tmp_path / "shop").settings
    journal = Journal(settings)
    read = Read("bi", "g1", "sql").ended("answered")
    written = os.write
    monkeypatch.setattr(os, "write", lambda file, lines: written(file, lines[:20]) and _full())
    with pytest.raises(OSError, match="No space"):
        journal.add([read])
    monkeypatch.undo()
    journal.add([read])
    assert recorded_reads(settings) == [("bi", "answered", None, None)]
    journal.close()


@pytest.mark.parametrize("failing", ["os.open", "fcntl.flock"])
def test_reads_stay_in_the_journal_when_no_new_one_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    settings = published(tmp_path / "shop").settings
    journal = Journal(settings)
    journal.add([Read("bi", "g1", "sql").ended("answered")])
    with monkeypatch.context() as patch:
        patch.setattr(failing, lambda *_: _full())
        with pytest.raises(OSError, match="No space"):
            journal.record()
    with (tmp_path / "other").open("wb"):  # it would get a number that the journal had closed
        journal.add([Read("app", "g2", "sql").ended("answered")])
    journal.record()
    journal.close()
    assert (tmp_path / "other").read_bytes() == b""
    assert recorded_reads(settings) == [("bi", "answered", None, None), ("app", "answered", None, None)]


def _full() -> int:
    raise OSError(28, "No space left on device")
