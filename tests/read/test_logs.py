"""Queries of logs and ledgers by `lake sql`, and their limits."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from pyspark.sql import SparkSession

from lake.cli import Shell
from lake.cli import lake as command_line
from lake.config import Settings
from lake.errors import DeclarationError, StorageError
from lake.ingest.events import void
from lake.ops.maintenance import Policy, maintain
from lake.read.relation import stored_files
from lake.read.shell import Conversation, SqlCompleter
from lake.read.sql import reader
from lake.store.ledger import runs
from lake.store.ledger.cuts import get_cut
from lake.store.log import Log
from lake.store.scan import to_arrow
from lake.store.upkeep import compaction
from lake.testing import Lakehouse
from lake.text import quoted
from tests.judgements import record_check
from tests.shop import contract, declare, job, new_shop, order
from tests.warehouse import EVENTS, commit, fall_behind, published

pytestmark = pytest.mark.slow

PLACES = "select order_id, _place from log.orders order by _batch, order_id"
LEDGERS = [f"lake.{name}" for name in ("checks", "cuts", "editions", "quarantine", "reads", "runs", "undelivered")]
RESULT = {
    "type": "expect_column_values_to_not_be_null", "kwargs": {"column": "customer"}, "severity": "stop",
    "where": "quality/customer_daily.json:2", "success": False, "rows": 3, "failed": 1, "observed": "ada lovelace",
    "examples": [{"customer": "ada lovelace"}],
}  # fmt: skip


def invoke(settings: Settings, *words: str) -> Result:
    shell = Shell(project=settings.project)
    shell.__dict__ |= {"settings": settings}
    return CliRunner().invoke(command_line, list(words), obj=shell, standalone_mode=False)


def answer(settings: Settings, query: str, *words: str) -> Any:
    """Return the rows that `lake sql --json` prints."""
    done = invoke(settings, "sql", query, "--json", *words)
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def rejection(settings: Settings, query: str, *words: str) -> str:
    done = invoke(settings, "sql", query, *words)
    assert isinstance(done.exception, DeclarationError | StorageError), done.output
    return str(done.exception)


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    """Shop of `lake init` with three orders, written without Spark, and a run and a check in its ledgers."""
    settings = published(tmp_path / "shop").settings
    with pytest.raises(ValueError, match="secret"), runs.failing(settings, "advance", "current_order", 1):
        raise ValueError("no such column 'secret'")
    record_check(
        settings, "customer_daily", home="customer_daily", scope="table", cut=1, version=0, suite="s",
        outcome="stopped", results=[RESULT],
    )  # fmt: skip
    return settings


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Shop with two orders, each in its edition, and a rejected one."""
    lakehouse = new_shop(tmp_path_factory.mktemp("orders"))
    lakehouse.land("orders", order(1), order(9, "margaret hamilton") | {"amount": "a lot"}).run()
    return lakehouse.land("orders", order(2, "margaret hamilton")).run()


def test_log_has_the_events_of_the_cut_of_an_edition_without_void_ones(orders: Lakehouse) -> None:
    settings = orders.settings
    first, second = answer(settings, "select * from log.orders order by order_id")
    assert (first["order_id"], first["amount"], first["status"]) == (1, "9.00", "placed")
    assert first["_source"].endswith("000001.jsonl:1")
    assert answer(settings, "select order_id from log.orders", "--edition", "1") == [{"order_id": 1}]
    done = invoke(settings, "void", "orders", second["_place"], "--reason", "a test")
    assert done.exception is None, done.exception
    assert len(answer(settings, "from log.orders")) == 2, "the edition's cut knows no void"
    orders.run()
    both = "select (select count(*) from log.orders) as events, (select count(*) from current_order) as orders"
    assert answer(settings, both) == [{"events": 1, "orders": 1}]
    assert answer(settings, both, "--edition", "2") == [{"events": 2, "orders": 2}]
    assert answer(settings, both, "--cut", "1", "--recompute") == [{"events": 1, "orders": 1}]


def test_personal_fields_of_logs_are_null_without_a_key_store(orders: Lakehouse, tmp_path: Path) -> None:
    settings = replace(orders.settings, keys=tmp_path / "nowhere.sqlite")
    assert answer(settings, "select distinct customer from log.orders") == [{"customer": None}]
    [comment] = answer(
        settings, "select comment from duckdb_columns() where schema_name = 'log' and column_name = 'customer'"
    )
    assert "personal, so always null here" in comment["comment"]
    [refusal] = answer(settings, "select stream, batch, reason, detail, is_waiting from lake.quarantine")
    assert refusal == {"stream": "orders", "batch": 1, "reason": "wrong type", "detail": None, "is_waiting": True}
    assert answer(settings, "from lake.quarantine", "--cut", "1") == answer(settings, "from lake.quarantine")
    everything = "".join(json.dumps(answer(settings, f"from {name}")) for name in ["log.orders", *LEDGERS])
    assert "margaret" not in everything
    assert "a lot" not in everything


KINDS: dict[str, Any] = {
    "whole": "int?",
    "long": "long?",
    "amount": "decimal(9, 2)?",
    "ratio": "double?",
    "yes": "boolean?",
    "note": ("string", {"default": "none"}),
    "day": ({"type": "int", "logicalType": "date"}, {"default": "2024-01-01"}),
    "at": "timestamp?",
    "bytes": "bytes?",
    "tags": ({"type": "array", "items": "string"}, {"default": ["a"]}),
}
CARRIED: list[dict[str, Any]] = [
    {},
    dict.fromkeys(KINDS),
    {"whole": 5, "long": "5.0", "amount": "1.50", "ratio": 1e3, "yes": "Y", "note": 7, "day": "2024-02-29", "at": 1},
    {"whole": 5.5, "long": 1 << 62, "amount": 12.25, "ratio": "NaN", "yes": "maybe", "note": True, "day": 3},
    {"whole": "1e2", "long": 1 << 63, "amount": "1.005", "ratio": "x", "day": "2024-02-30", "bytes": "YWI="},
    {"whole": "seven", "amount": "1e1", "at": "2024-03-30T10:40:00+02:00", "note": "ü", "day": "soon", "bytes": "?"},
    {"whole": 1 << 31, "amount": "12345678.90", "at": "2024-03-30T10:40:00.1234567Z", "yes": 1, "ratio": "1e999"},
    {"amount": "-.5", "at": "2024-03-30", "ratio": "Infinity", "yes": "F", "at2": 1, "day": "0000-01-01"},
    {"amount": "100e-2", "at": "then", "whole": " 7 ", "long": "+7"},
]


def widened(spark: SparkSession, project: Settings, **more: Any) -> Lakehouse:
    """Make a log of an older contract and of one with `more` fields, wider ones and a renamed one."""
    old = contract("things", {"id": "long", "small": "int", "share": "float", "name": "string"})
    records = [{"id": n, "small": n, "share": 0.1 * n, "name": f"n{n}", **extra} for n, extra in enumerate(CARRIED)]
    lakehouse = declare(
        project, old, jobs={"thing": job("thing", 'Latest("id")', 'log("things")', returns='rows.select("id")')}
    )
    lakehouse.land("things", *records).run()
    wider = {"id": "long", "small": "long", "share": "double", "title": ("string", {"aliases": ["name"]}), **more}
    declare(project, contract("things", wider))
    again = Lakehouse(project.project, lakehouse.home)
    return again.land("things", {"id": 99, "small": 1 << 40, "share": 0.3, "title": "t", "day": "2024-05-05"})


@pytest.mark.long
def test_older_events_of_a_log_are_read_as_by_spark(spark: SparkSession, project: Settings) -> None:
    lakehouse = widened(spark, project, **KINDS)
    lakehouse.run()
    edition = reader(lakehouse.settings)
    fields = ["id", "small", "share", "title", *KINDS]
    query = f"select {', '.join(map(quoted, fields))} from log.things order by id"
    rows = edition.relation(query).to_arrow_table().to_pylist()
    cut = get_cut(lakehouse.settings, edition.edition.cut)
    log = Log(lakehouse.settings, "things")
    stored = log.read(spark, lakehouse.project.contracts["things"], upto=cut.batches["things"])
    by_spark = to_arrow(stored.select(*fields).orderBy("id")).to_pylist()
    assert [plain(row) for row in rows] == [plain(row) for row in by_spark]
    assert len(rows) == len(CARRIED) + 1


def plain(row: dict[str, Any]) -> dict[str, str]:
    """Return the values as texts, so that no number equals one of another type."""
    moments = {name: value.isoformat() for name, value in row.items() if isinstance(value, datetime)}
    return {name: repr(value) for name, value in (row | moments).items()}


def test_list_ingested_before_its_contract_field_is_read(shop: Settings) -> None:
    file = shop.path("schemas/orders.avsc")
    schema = json.loads(file.read_text())
    added = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["none"], "doc": "Tags."}
    file.write_text(json.dumps({**schema, "fields": [*schema["fields"], added]}))
    assert answer(shop, "select distinct tags from log.orders") == [{"tags": ["none"]}]
    log = Log(shop, "orders")
    carried = 'SELECT * EXCLUDE (changed) REPLACE (\'{"tags": ["gift"]}\' AS _extra, 2 AS _batch, 7 AS _offset)'
    position = log.head().position.again()
    commit(log.path, f"{carried} FROM ({EVENTS}) WHERE _batch = 2", position, partition_by=["_bucket"])
    assert answer(shop, "select distinct tags from log.orders order by 1") == [{"tags": ["gift"]}, {"tags": ["none"]}]
    assert answer(shop, "select count(*) as events from log.orders") == [{"events": 4}]


def test_events_keep_their_places_whichever_engine_wrote_their_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXCESS_FILES", 1)
    shop = new_shop(tmp_path)
    for number in range(4):
        shop.land("orders", *(order(10 * number + each, f"customer {each}") for each in range(4))).run()
    before = answer(shop.settings, PLACES)
    log, files = Log(shop.settings, "orders"), len(stored_files(Log(shop.settings, "orders").path))
    maintain(shop.project, lambda: spark, Policy(editions=9, days=9, size=1 << 30), print)
    assert len(stored_files(log.path)) < files
    assert answer(shop.settings, PLACES) == before
    shop.land("orders", *(order(40 + each, f"customer {each}") for each in range(4))).run()
    after = answer(shop.settings, PLACES)
    assert len({row["_place"].split(":")[1] for row in before}) > 1
    assert {row["order_id"] for row in after} == {row["order_id"] for row in before} | {40, 41, 42, 43}
    for row in (before[0], after[-1]):
        void(shop.settings, "orders", [row["_place"]], reason="twice")
    shop.run()
    voided = {before[0]["order_id"], after[-1]["order_id"]}
    left = [row for row in after if row["order_id"] not in voided]
    assert answer(shop.settings, PLACES) == left
    assert {row["order_id"] for row in shop.table("current_order")} == {row["order_id"] for row in left}


def test_ledgers_are_flat_and_typed(shop: Settings) -> None:
    [run] = answer(shop, "select verb, subject, cut, outcome, error from lake.runs")
    failed = {"verb": "advance", "subject": "current_order", "cut": 1, "outcome": "failed"}
    assert run == failed | {"error": "no such column …"}
    [check] = answer(shop, "select * exclude (checked_at, arguments) from lake.checks")
    assert check == {
        "number": 1, "table_name": "customer_daily", "scope": "table", "cut": 1, "version": 0, "outcome": "stopped",
        "expectation": "expect_column_values_to_not_be_null", "column_name": "customer", "severity": "stop",
        "success": False, "rows": 3, "failed": 1, "declared_in": "quality/customer_daily.json:2",
    }  # fmt: skip
    assert answer(shop, "select number, stream, batch, voids from lake.cuts") == [
        {"number": 1, "stream": "orders", "batch": 2, "voids": 0}
    ]
    editions = answer(shop, "select number, cut, is_current, is_kept, layer, table_name, version from lake.editions")
    assert [row["table_name"] for row in editions] == ["current_order", "customer_daily"]
    same = {"number": 1, "cut": 1, "is_current": True, "is_kept": True, "table_name": "current_order", "version": 0}
    assert editions[0] == same | {"layer": "silver"}
    assert answer(shop, "from lake.quarantine") == []
    for name in LEDGERS:
        kinds = {row["column_name"]: row["column_type"] for row in answer(shop, f"describe {name}")}
        assert not {"JSON", "NULL"} & {*kinds.values()}, name


def test_values_that_failed_an_expectation_are_not_in_the_ledgers(shop: Settings) -> None:
    assert "lovelace" not in "".join(json.dumps(answer(shop, f"from {name}")) for name in LEDGERS)


def test_listings_show_logs_and_ledgers_and_their_column_comments(shop: Settings) -> None:
    names = [row["name"] for row in answer(shop, "show tables")]
    assert names == ["current_order", "customer_daily", *LEDGERS, "log.orders"]
    described = {row["column_name"]: row["column_type"] for row in answer(shop, "describe log.orders")}
    assert described == {
        "order_id": "BIGINT", "customer": "VARCHAR", "status": "VARCHAR", "amount": "DECIMAL(10,2)",
        "placed_at": "TIMESTAMP WITH TIME ZONE", "changed_at": "TIMESTAMP WITH TIME ZONE", "_place": "VARCHAR",
        "_batch": "BIGINT", "_time": "TIMESTAMP WITH TIME ZONE", "_ingested_at": "TIMESTAMP WITH TIME ZONE",
        "_source": "VARCHAR",
    }  # fmt: skip
    comments = "select comment from duckdb_columns() where schema_name = 'log' and column_name = 'amount'"
    assert answer(shop, comments) == [{"comment": "What it costs. [GBP]"}]
    every = "select distinct table_schema as name from information_schema.tables order by all"
    assert [row["name"] for row in answer(shop, every)] == ["gold", "lake", "log", "main", "silver"]
    assert answer(shop, 'select count(*) as n from "LOG"."Orders"') == [{"n": 3}]


def test_shell_shows_and_completes_logs_and_ledgers(shop: Settings) -> None:
    talk = Conversation(reader(shop))
    assert any(line.split()[:1] == ["log.orders"] for line in talk.answer("\\d"))
    lines = [*talk.answer("\\d log.orders")]
    assert lines[0] == "log.orders: An order, as it was after one change."
    assert [line for line in lines if line.split()[:3] == ["amount", "DECIMAL(10,2)", "GBP"]]
    assert next(iter(talk.answer("\\d lake.runs"))).startswith("lake.runs: One row per ")

    def completed(text: str) -> list[str]:
        offered = SqlCompleter(talk).get_completions(Document(text), CompleteEvent(completion_requested=True))
        return [completion.text for completion in offered]

    assert completed("from log.or") == ["orders"]
    assert completed("from lake.r") == ["runs", "reads"]
    assert completed("from lake.runs where subj") == ["subject"]
    assert completed("select * from log.orders where _pl") == ["_place"]
    assert completed("\\d lake.ed") == ["editions"]
    assert "log.orders" in completed("from lo")


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("from log.ordrs", "no stream 'ordrs' (line 1, column 6)\n  fix: did you mean 'log.orders'?"),
        ("select * from log.orders join log.nothing on true", "no stream 'nothing' (line 1, column 31)"),
        ("from lake.run", "no ledger 'run' (line 1, column 6)\n  fix: did you mean 'lake.runs'?"),
        ("from orders", "no table 'orders' in edition 1 (line 1, column 6)\n  fix: did you mean 'log.orders'?"),
        ("select amont from log.orders", "no column 'amont' (line 1, column 8)\n  fix: did you mean 'amount'?"),
        ("select errors from lake.runs", "no column 'errors' (line 1, column 8)\n  fix: did you mean 'error'?"),
    ],
)
def test_mistyped_name_of_a_log_or_a_ledger_has_a_hint(shop: Settings, query: str, fault: str) -> None:
    assert fault in rejection(shop, query)


def test_verified_query_rejects_logs(shop: Settings) -> None:
    assert "log.orders is no table of the edition" in rejection(shop, "from log.orders", "--verified")


def files(settings: Settings, folder: str) -> list[Path]:
    return [*settings.warehouse_path.glob(f"{folder}/**/*.parquet")]


def test_damaged_log_stops_no_query_of_tables_and_no_listing(shop: Settings) -> None:
    table = answer(shop, "from customer_daily order by all")
    [file, *_] = sorted(files(shop, "logs/orders"))
    for damage in (lambda: file.write_bytes(b"PAR1 nothing"), file.unlink):
        damage()
        assert answer(shop, "from customer_daily order by all") == table
        assert len(answer(shop, "select log(orders) as tenth from customer_daily")) == len(table), "no log is named"
        assert [row["name"] for row in answer(shop, "show tables")] == ["current_order", "customer_daily", *LEDGERS]
        assert f"log.orders cannot be read: a file is {'damaged' if file.exists() else 'gone'} ({file})" in rejection(
            shop, "from log.orders"
        )
    shop.path("schemas/orders.avsc").write_text("{")
    assert answer(shop, "from customer_daily order by all") == table
    assert "schemas/orders.avsc" in rejection(shop, "from log.orders")
    assert any("cannot be read" in line for line in Conversation(reader(shop)).answer("\\d"))


OUTSIDE = [
    "select * from log.orders, read_text('/etc/passwd')",
    "select * from lake.runs, read_csv('/etc/passwd')",
    "select * from log.orders, glob('FOLDER/*')",
    "select * from log.orders, read_parquet('FOLDER/logs/orders/**/*.parquet')",
    "select * from log.orders, read_parquet('LATER')",
    "select * from lake.checks, read_parquet('CHECKS')",
    "select * from lake.runs, read_parquet('FOLDER/meta/runs/*.parquet')",
    "copy log.orders to 'FOLDER/out.csv'",
    "copy lake.runs to 'FOLDER/out.csv'",
    "copy (from log.orders) to 'LATER' (format csv, use_tmp_file false)",
    "insert into lake.runs (number) values (1)",
    "update lake.editions set is_current = true",
    "delete from log.orders",
    "drop view log.orders",
    "drop table lake.runs",
    "create table lake.mine as select 1",
    "create or replace view log.orders as select 1",
    "comment on table lake.runs is 'x'",
    "explain analyze delete from lake.runs",
    "explain analyze copy (from log.orders) to 'FOLDER/out.csv'",
    "set schema = 'log'",
]


@pytest.mark.turns(3)
@pytest.mark.turns(8)
@pytest.mark.parametrize("query", OUTSIDE)
def test_query_reads_and_changes_only_public_rows_of_logs_and_ledgers(shop: Settings, query: str) -> None:
    """Files of a ledger have more columns than it shows, and newer files of a log belong to later cuts."""
    edition = reader(shop)
    fall_behind(shop)
    later = max(files(shop, "logs/orders"), key=lambda file: file.stat().st_mtime_ns)
    before = {file: file.read_bytes() for file in shop.warehouse_path.rglob("*") if file.is_file()}
    [book] = files(shop, "meta/checks")
    for word, path in (("FOLDER", shop.warehouse_path), ("LATER", later), ("CHECKS", book)):
        query = query.replace(word, str(path))
    if "read_parquet" not in query:
        rejection(shop, query)
    with pytest.raises(DeclarationError):
        edition.relation(query).fetchall()
    assert before == {file: file.read_bytes() for file in shop.warehouse_path.rglob("*") if file.is_file()}


def test_ledger_is_not_changed_by_a_query(shop: Settings) -> None:
    runs_before = answer(shop, "from lake.runs")
    refused = invoke(shop, "sql", "with gone as (delete from lake.runs returning *) from gone").exception
    assert "DELETE in a WITH is not allowed" in str(refused)
    assert answer(shop, "from lake.runs") == runs_before


def test_exported_database_has_only_the_tables_of_the_edition(shop: Settings, tmp_path: Path) -> None:
    assert invoke(shop, "export", "duckdb", str(tmp_path / "shop.duckdb")).exception is None
    with duckdb.connect(str(tmp_path / "shop.duckdb"), read_only=True) as con:
        names = con.execute("SELECT table_schema, table_name FROM information_schema.tables ORDER BY ALL").fetchall()
    assert names == [
        ("gold", "customer_daily"), ("lake", "edition"), ("main", "current_order"), ("main", "customer_daily"),
        ("silver", "current_order"),
    ]  # fmt: skip
    assert "no table 'log.orders'" in str(invoke(shop, "export", "duckdb", "x.duckdb", "log.orders").exception)
