"""Mentions of a person in quarantined records, file names and checks, without a JVM."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

import lake as public
from lake import cli
from lake.config import Settings, load_settings
from lake.contracts.contract import Contract, read_contract
from lake.ingest import landing
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.delivery import ReplayDelivery
from lake.ingest.field_encryption import BLANKED
from lake.ingest.replay import replay
from lake.privacy import audit, forget, search
from lake.privacy.audit import search_files
from lake.quality import gate
from lake.store import delta, duckdb_tables, quarantine
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.checks import no_spark

NOW = datetime(2024, 4, 1, tzinfo=UTC)
SCHEMA = Path(public.__file__).parent / "templates/project/schemas/orders.avsc"


@pytest.fixture
def orders() -> Contract:
    """Return the orders of `lake init`, whose customer was formerly named buyer."""
    text = SCHEMA.read_text("utf-8").replace('"name": "customer",', '"name": "customer", "aliases": ["buyer"],')
    return read_contract(text, file="schemas/orders.avsc")


def quarantine_records(settings: Settings, *records: str, source: str = "orders/1.jsonl") -> None:
    rows = [(1, n, "wrong type", "amount", raw, f"{source}:{n}", NOW) for n, raw in enumerate(records, 1)]
    duckdb_tables.append(Warehouse(settings).quarantine("orders").path, quarantine.SCHEMA, rows)


TOLD = [
    ("Jörg Müller", '{"customer":"Jörg Müller","amount":"x"}'),
    ("Jörg Müller", '{"customer":"J\\u00f6rg M\\u00FCller","amount":"x"}'),
    ("Jörg Müller", '{"payload":"{\\"customer\\":\\"J\\\\u00f6rg M\\\\u00fcller\\"}"}'),
    ("Jörg Müller", '{"note":"as J\\u00f6rg M\\u00fcller said"'),
    ('Jo "Ace" Li', '{"customer":"Jo \\"Ace\\" Li"}'),
    ("Ann/Eve", '{"customer":"Ann\\/Eve"}'),
    ("😀 Bo Ek", '{"customer":"\\ud83d\\ude00 Bo Ek"}'),
    ('Jo "Ace" Li', '7,"Jo ""Ace"" Li",x,y'),
    ('Jo "Ace" Li', '7,"{""customer"": ""Jo \\""Ace\\"" Li""}",x,y'),
    ('Jo "Ace" Li', '{"line":"7,\\"Jo \\"\\"Ace\\"\\" Li\\",x,y"}'),
    ("al", "7,al,x,y"),
    ("al", '"al";7'),
    ("al", '{"customer":"al"}'),
    ("al", '{"BUYER": " al "}'),
    ("al", '{"buyer":"\\u0061l"}'),
    ("al", '{"after":{"customer":"al"},"op":"c"}'),
    ("al", '{"customer":"al", "amount": 1'),
    ("52310.00", '{"note":52310.0}'),
    ("52310.00", '{"note":5.231e4}'),
    ("12345678901234567890123456789012.34", '{"note":12345678901234567890123456789012.3400}'),
    ("1.23456785E7", '{"note":12345678.50}'),
    ("1990-05-01 12:30:00", '{"note":"1990-05-01T12:30:00Z"}'),
]
OTHERS = [
    ("Jörg Müller", '{"customer":"Jörg Müllerin"}'),
    ("al", '{"customer":"ali","note":"al"}'),
    ("None", '{"customer":null}'),
    ("al", '{"note":"7,al,x,y"}'),
    ("al", "7,ali,al x,y"),
    ("7", "al,7,x,y"),
    ("7", '{"customer":"07"}'),
    ("0052310", '{"customer":"52310"}'),
    ("5.00", '{"note":5}'),
]


@pytest.mark.parametrize(("subject", "raw"), TOLD)
def test_quarantined_record_of_a_person_is_found_and_blanked(
    tmp_path: Path, orders: Contract, subject: Any, raw: Any
) -> None:
    settings = Settings(project=tmp_path)
    quarantine_records(settings, '{"customer":"grace"}', raw)
    told = search.quarantined_records(settings, orders, subject, {subject})
    assert told == [{"_batch": 1, "_number": 2, "source": "orders/1.jsonl:2"}]
    forget._blank(settings, "orders", told)
    first, second = quarantine.rejected(settings, "orders", upto=1)
    assert (first.raw, second.raw, second.detail, second.source) == (
        '{"customer":"grace"}',
        "",
        BLANKED,
        "orders/1.jsonl:2",
    )
    assert search.quarantined_records(settings, orders, subject, {subject}) == []


@pytest.mark.parametrize(("subject", "raw"), OTHERS)
def test_quarantined_record_of_another_person_stays(tmp_path: Path, orders: Contract, subject: Any, raw: Any) -> None:
    settings = Settings(project=tmp_path)
    quarantine_records(settings, raw)
    assert search.quarantined_records(settings, orders, subject, {subject}) == []


def test_quarantine_search_matches_a_number_in_any_notation(tmp_path: Path, orders: Contract) -> None:
    [customer] = [field for field in orders.fields if field.name == "customer"]
    numbered = replace(orders, fields=(replace(customer, type="int"),))
    settings = Settings(project=tmp_path)
    others = ('{"customer":71}', '{"customer":true}', '{"customer":"sNaN"}', '{"customer":"NaN"}')
    quarantine_records(settings, '{"customer":7.0}', '{"customer":" 7"}', *others)
    assert [row["_number"] for row in search.quarantined_records(settings, numbered, "7", {"7"})] == [1, 2]


def test_quarantine_search_blanks_the_name_of_a_file_with_the_person(tmp_path: Path, orders: Contract) -> None:
    settings = Settings(project=tmp_path)
    quarantine_records(settings, '{"customer":', source="orders/margaret hamilton.jsonl")
    [told] = search.quarantined_records(settings, orders, "margaret hamilton", {"margaret hamilton"})
    assert not told["source"]


def test_proof_reports_a_file_named_after_the_person(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path)
    landed = [("orders", 1, f"orders/{name}.jsonl", 1, 1, None) for name in ("margaret hamilton", "monday")]
    landing.LANDED.append(settings, landed)
    found = search_files(settings, {"margaret hamilton"})
    assert (found.names_of_files, found.holds) == (("orders/margaret hamilton.jsonl",), False)
    assert search_files(settings, {"margaret"}).names_of_files == ("orders/margaret hamilton.jsonl",)
    assert search_files(settings, {"hamil"}).names_of_files == ()


def test_replay_returns_blank_records_blanked_after_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SCHEMA.parents[1], tmp_path / "shop")
    settings, raw = load_settings(tmp_path / "shop"), '{"customer":"margaret hamilton"}'
    row = (0, 1, "wrong type", "amount", raw, "orders/1.jsonl:1", NOW)
    duckdb_tables.append(Warehouse(settings).quarantine("orders").path, quarantine.SCHEMA, [row])
    come: list[str] = []

    def append(
        _: Settings, __: object, contract: Contract, deliver: Callable[[LogHead], ReplayDelivery], **___: object
    ) -> BatchCounts:
        told = search.quarantined_records(settings, contract, "margaret hamilton", {"margaret hamilton"})
        forget._blank(settings, "orders", told)
        come.extend(row.raw for row in deliver(Log(settings, "orders").head()).rows)
        return BatchCounts(0)

    monkeypatch.setattr("lake.ingest.append.append", append)
    replay(settings, no_spark)
    assert come == [""]
    repair = {"stream": "orders", "batch": 0, "number": 1, "raw": "{}"}
    replay(settings, no_spark, repairs=[repair])
    assert come == ["", "{}"]


def test_quarantined_record_without_text_matches_no_person(tmp_path: Path, orders: Contract) -> None:
    settings = Settings(project=tmp_path)
    duckdb_tables.append(
        Warehouse(settings).quarantine("orders").path, quarantine.SCHEMA, [(1, 1, "oversized", None, None, "f:1", NOW)]
    )
    assert search.quarantined_records(settings, orders, "ada lovelace", {"ada lovelace"}) == []


@pytest.mark.slow
def test_blanking_thousands_of_records_is_one_commit(tmp_path: Path, orders: Contract) -> None:
    settings = Settings(project=tmp_path)
    path = Warehouse(settings).quarantine("orders").path
    duckdb_tables.append(path, quarantine.SCHEMA, [])
    insert = (
        f"SELECT 1, i::INTEGER, 'x', '', '{json.dumps({'customer': 'ada'})}', 'f:' || i, now() FROM range(50000) t(i)"
    )
    with duckdb_tables.connection() as con:
        con.execute(f"CREATE TEMP TABLE t ({quarantine.SCHEMA})")
        con.execute(f"INSERT INTO t {insert}")
        write_deltalake(str(path), con.table("t").to_arrow_table(), mode="append")
    before = delta.version(path)
    forget._blank(settings, "orders", search.quarantined_records(settings, orders, "ada", {"ada"}))
    assert delta.version(path) == before + 1
    assert duckdb_tables.rows(path, "SELECT count(*) AS n FROM t WHERE raw = ''") == [{"n": 50_000}]


@pytest.mark.parametrize(("subject", "raw"), [each for each in TOLD if len(each[0]) >= search.LEAST_LENGTH])
def test_proof_finds_a_quarantined_value_in_any_notation(tmp_path: Path, subject: Any, raw: Any) -> None:
    settings = Settings(project=tmp_path)
    quarantine_records(settings, raw)
    [*_, parquet] = Warehouse(settings).quarantine("orders").path.local.glob("*.parquet")
    assert str(parquet) in search_files(settings, {subject}).found


def test_proof_reports_a_file_that_it_cannot_unpack(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path)
    quarantine_records(settings, "{}")
    [whole] = Warehouse(settings).quarantine("orders").path.local.glob("*.parquet")
    assert search_files(settings, {"margaret"}).holds
    zipped = settings.path("landing/orders/1.jsonl.gz")
    zipped.parent.mkdir(parents=True)
    zipped.write_bytes(gzip.compress(b'{"customer":"margaret"}'))
    assert search_files(settings, {"margaret"}).outside_the_warehouse == (str(zipped),)
    plain = zipped.with_name("2.csv")
    plain.write_bytes(b'customer\n"Jo ""Ace"" Li"\n')
    assert search_files(settings, {'Jo "Ace" Li'}).outside_the_warehouse == (str(plain),)
    zipped.write_bytes(zipped.read_bytes()[:-9])
    assert search_files(settings, {"grace"}).outside_the_warehouse == (str(zipped),)
    half = whole.with_name(f"{whole.name}#1")
    half.write_bytes(whole.read_bytes()[:-20])
    assert search_files(settings, {"margaret"}).found == (str(half),)


LONG = "abcdefghij" * 7
SPELLED = [
    ("DECIMAL(12, 2)", Decimal("52310.00"), "52310.00"),
    ("DECIMAL(12, 2)", Decimal("-52310.50"), "-52310.50"),
    ("DECIMAL(38, 4)", Decimal("12345678901234567890.1234"), "12345678901234567890.1234"),
    ("DECIMAL(38, 6)", Decimal("12345678901234567890123456789012.345600"), "12345678901234567890123456789012.345600"),
    ("DECIMAL(12, 10)", Decimal("0.0000012345"), "0.0000012345"),
    ("DOUBLE", 12345678.5, "1.23456785E7"),
    ("DOUBLE", 1.25e-9, "1.25E-9"),
    ("FLOAT", 123.1, "123.1"),
    ("TIMESTAMP", datetime(1990, 5, 1, 12, 30), "1990-05-01 12:30:00"),
    ("TIMESTAMPTZ", datetime(1990, 5, 1, 12, 30, tzinfo=UTC), "1990-05-01 12:30:00"),
    ("TIMESTAMPTZ", datetime(1990, 5, 1, 12, 30, 0, 123456, tzinfo=UTC), "1990-05-01 12:30:00.123456"),
    ("TIMESTAMPTZ", datetime(1990, 5, 1, 12, 30, 0, 500000, tzinfo=UTC), "1990-05-01 12:30:00.5"),
    ("VARCHAR", LONG, LONG),
    ("VARCHAR", "\u00e4\u00f6\u20ac" * 30, "\u00e4\u00f6\u20ac" * 30),
]
"""Values as their tables have them, and as Spark casts them to text."""


@pytest.mark.parametrize(("kind", "value", "text"), SPELLED, ids=lambda each: ascii(each)[:20])
@pytest.mark.parametrize("column", ["t", "born"])
def test_proof_finds_a_value_in_rows_and_statistics_in_any_notation(
    tmp_path: Path, column: str, kind: Any, value: Any, text: Any
) -> None:
    settings = Settings(project=tmp_path)
    path = Warehouse(settings).table("silver", "guest").path
    duckdb_tables.append(path, f"{column} {kind}, who VARCHAR", [[value, "ada"]])
    found = search_files(settings, {text}).found
    statistics = [] if kind in {"DOUBLE", "FLOAT"} else [".json"]
    assert [Path(file).suffix for file in found] == [*statistics, ".parquet"]


@pytest.mark.parametrize("end", ["", "\ufffd"])
def test_proof_finds_the_truncated_statistics_of_a_long_text(tmp_path: Path, end: str) -> None:
    settings = Settings(project=tmp_path)
    settings.warehouse_path.mkdir(parents=True)
    (settings.warehouse_path / "0.json").write_text(json.dumps({"minValues": {"note": LONG[:32] + end}}))
    assert search_files(settings, {LONG}).found
    assert not search_files(settings, {LONG[1:]}).found


@pytest.mark.parametrize(
    "other", ["52310.01", "5231.0", "152310.00", "1990-05-01 12:30:01", LONG[:32] + "klm", "123.05"]
)
def test_proof_does_not_match_similar_values(tmp_path: Path, other: Any) -> None:
    settings = Settings(project=tmp_path)
    duckdb_tables.append(Warehouse(settings).table("silver", "guest").path, "v VARCHAR", [[other]])
    assert search_files(settings, {"52310.10", "1990-05-01 12:30:00", LONG, "123.1"}).holds


@pytest.mark.parametrize("name", ["copy/gold/guest/0.parquet", "gold/copy/guest/0.parquet", "answer.csv"])
def test_proof_advises_to_delete_a_copy_within_the_warehouse(tmp_path: Path, name: str) -> None:
    settings = Settings(project=tmp_path)
    copy = settings.warehouse_path / name
    copy.parent.mkdir(parents=True)
    copy.write_text("margaret")
    only_copy = search_files(settings, {"margaret"})
    assert (only_copy.of_no_table, only_copy.fix) == ((str(copy),), audit.STRAY)
    duckdb_tables.append(Warehouse(settings).table("silver", "guest").path, "v VARCHAR", [["margaret"]])
    both = search_files(settings, {"margaret"})
    assert (both.of_no_table, both.fix) == ((str(copy),), f"{audit.FORGET}; {audit.STRAY}")


@pytest.mark.parametrize("name", ["locks/1.holder", "staging/ab/1.csv", "cold/orders/1", "gold/.guest.gone/0.parquet"])
def test_proof_advises_to_forget_for_files_of_the_warehouse_itself(tmp_path: Path, name: str) -> None:
    settings = Settings(project=tmp_path)
    file = settings.warehouse_path / name
    file.parent.mkdir(parents=True)
    file.write_text("margaret")
    found = search_files(settings, {"margaret"})
    assert (found.found, found.of_no_table, found.fix) == ((str(file),), (), audit.FORGET)


@pytest.mark.parametrize("name", ["airflow/logs/attempt=1.log", "spark/local/block", "sql_history"])
def test_proof_reports_kept_output_and_history_as_the_owners(tmp_path: Path, name: str) -> None:
    settings = Settings(project=tmp_path)
    kept = settings.path(".lake") / name
    kept.parent.mkdir(parents=True)
    kept.write_text("order: expect_column_values_to_be_positive(amount) failed for 1 of 2 rows: customer=margaret")
    found = search_files(settings, {"margaret"})
    assert (found.found, found.outside_the_warehouse) == ((), (str(kept),))


def test_proof_continues_when_files_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(project=tmp_path)
    settings.warehouse_path.mkdir(parents=True)
    there, then = (settings.warehouse_path / name for name in ("part-1.txt", "part-2.txt"))
    for name in ("other.txt", there.name):
        (settings.warehouse_path / name).write_text("of margaret")
    holds = audit._has_value

    def renaming(file: Address, text: re.Pattern[str], bytes_: re.Pattern[bytes]) -> bool:
        if there.exists():
            there.rename(then)
        return holds(file, text, bytes_)

    monkeypatch.setattr(audit, "_has_value", renaming)
    found = search_files(settings, {"margaret"})
    assert found.found == (str(settings.warehouse_path / "other.txt"), str(then))
    assert (found.files_searched, found.bytes_searched) == (2, 22)


@pytest.mark.parametrize("zipped", [False, True])
def test_proof_finds_a_value_across_chunk_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    monkeypatch.setattr(audit, "CHUNK", 16)
    settings = Settings(project=tmp_path)
    file = settings.warehouse_path / f"left.txt{'.gz' if zipped else ''}"
    file.parent.mkdir(parents=True)
    for before in range(20):
        text = b"-" * before + b" margaret hamilton " + b"-" * 40
        file.write_bytes(gzip.compress(text) if zipped else text)
        assert search_files(settings, {"margaret hamilton"}).found == (str(file),), before


@pytest.mark.parametrize("escaped", [False, True])
def test_proof_finds_a_long_word_across_chunk_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, escaped: bool
) -> None:
    monkeypatch.setattr(audit, "CHUNK", 1000)
    settings, value = Settings(project=tmp_path), "margaret" * 700
    file = settings.warehouse_path / "left.txt"
    file.parent.mkdir(parents=True)
    written = "".join(f"\\u{ord(character):04x}" for character in value) if escaped else value
    file.write_text(f"{'-' * 4000} {written} {'-' * 1000}")
    assert search_files(settings, {value}).found == (str(file),)


def with_customer(contract: Contract, **facts: Any) -> Contract:
    return replace(contract, fields=tuple(replace(f, **facts) if f.name == "customer" else f for f in contract.fields))


def test_searchable_values_names_the_reason_for_an_omission_without_the_value(orders: Contract) -> None:
    assert search.searchable_values(orders, "margaret hamilton", {"0798"}) == ({"margaret hamilton", "0798"}, [])
    assert search.searchable_values(orders, "7", {"0798"}) == (
        {"0798"},
        ["customer of fewer than 4 characters, which match anywhere by chance"],
    )
    short = "2 values of fewer than 4 characters, which match anywhere by chance"
    assert search.searchable_values(orders, "ada", {"5.00", "0798"}) == ({"0798"}, [short])
    clear = "customer, which is not personal by the contract: logs keep it unencrypted"
    assert search.searchable_values(with_customer(orders, personal=False), "margaret", {"0798"}) == ({"0798"}, [clear])
    few = "customer, whose few values are shared by other people"
    for facts in ({"type": "boolean"}, {"symbols": ("male", "female")}):
        assert search.searchable_values(with_customer(orders, **facts), "female", {}) == ({"female"}, [few])


def test_proof_report_lists_values_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(SCHEMA.parents[1], tmp_path / "shop")
    settings = load_settings(tmp_path / "shop")
    quarantine_records(settings, '{"customer":"ada"}')
    monkeypatch.setattr(
        "sys.argv", ["lake", "forget", "orders", "subject=ada", "--proof", "--project", str(tmp_path / "shop")]
    )
    assert cli._run() == 1
    reason = "customer of fewer than 4 characters, which match anywhere by chance"
    assert f"not searched for: {reason}" in capsys.readouterr().out
    [report] = settings.keys_path.parent.glob("forgotten-orders-*.json")
    assert json.loads(report.read_text())["not_searched"] == [reason]


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("expect_table_row_count_to_be_between", 7),
        ("expect_column_unique_value_count_to_be_between", 7),
        ("expect_column_max_to_be_between", None),
        ("expect_column_mean_to_be_between", None),
        ("expect_column_sum_to_be_between", None),
    ],
)
def test_gate_stores_only_counts_for_tables_about_people(kind: str, kept: int | None) -> None:
    seen = {"type": kind, "observed": 7, "examples": [{"customer": "ada"}]}
    assert gate._without_values(seen) == {"type": kind, "observed": kept, "examples": []}
