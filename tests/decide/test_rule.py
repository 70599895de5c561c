"""Invalid deciders are rejected when loaded, with a fix. No JVM, no server."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake.errors import DeclarationError
from lake.kinds.reducer import arrow_type
from lake.project.project import load
from lake.serve.decide.rule import CommandRule, compared_fields, content, rules
from lake.serve.describe import is_idempotent
from lake.serve.source import find_declaration
from lake.session.in_process.mode import Unsupported
from lake.session.in_process.types import parsed_type
from lake.sources.declared import decided_by
from tests.decide.accounts import ACCOUNT, ENTRIES, accounts
from tests.shop import contract, declare, job

ONLY = 'decide.entries = "account"\n'
SQL = (
    "Fold('account', state='balance decimal(18, 2)', step={'balance': 'event.amount'}, refuse=\"if(false, '', null)\")"
)
NUMBER = ("int", {"from": "file.time"})


def loaded(
    folder: Path, *, job: str = ACCOUNT, options: str = ONLY, file: str = "", **about: Any
) -> dict[str, CommandRule]:
    fields = about.pop("fields", {})
    settings = accounts(folder / "bank", options)
    declare(settings, contract("entries", {**ENTRIES, **fields}, **{"id": ["request"], **about}), jobs={"account": job})
    if file:
        name, _, text = file.partition(":")
        settings.path(name).parent.mkdir(parents=True, exist_ok=True)
        settings.path(name).write_text(text)
    project = load(settings)
    return rules(project, find_declaration(settings, project.contracts, "web"))


def test_fold_decides_on_a_stream_with_one_source(tmp_path: Path) -> None:
    rule = loaded(tmp_path)["entries"]
    assert rule.columns == ("account", "amount")
    assert rule.folding.types.names == ["balance", "entries", "last", "refused"]
    assert decided_by(rule.project.settings, "entries") == "web"
    assert decided_by(rule.project.settings, "notes") is None


def test_rule_has_values_of_every_type_as_a_log_has_them(tmp_path: Path) -> None:
    millis = {"type": "long", "logicalType": "local-timestamp-millis"}
    place = {"type": "record", "name": "place", "fields": [{"name": "zip", "type": "string"}]}
    fields = {
        "tags": ({"type": "array", "items": "int"}, {}),
        "share": "float",
        "price": ("decimal(9, 2)", {"decimal": ","}),
        "day": ("date", {"format": "d/M/yyyy"}),
        "blob": "bytes",
        "local": millis,
        "place": (place, {}),
        "words": ({"type": "map", "values": "string"}, {}),
        "code": ({"type": "string", "logicalType": "uuid"}, {}),
    }
    rule = loaded(tmp_path, fields=fields)["entries"]
    record = """{"account": 7.0, "amount": 1e1, "tags": ["1", 2], "share": "0.1", "price": "1234,50",
        "day": "31/3/2024", "blob": "/wA=", "local": 86400000, "place": {"zip": "8010", "floor": 2},
        "words": {"b": "2", "a": "1"}, "code": "x", "z": 1}"""
    values = rule.values(record.encode(), {"http.id": "a"}, now=datetime.now(UTC))
    assert values == {
        "account": 7,
        "amount": Decimal("10.00"),
        "note": None,
        "request": "a",
        "tags": [1, 2],
        "share": pytest.approx(0.1),
        "price": Decimal("1234.50"),
        "day": date(2024, 3, 31),
        "blob": b"\xff\x00",
        "local": datetime(1970, 1, 2),
        "place": {"zip": "8010"},
        "words": [("b", "2"), ("a", "1")],
        "code": "x",
        "_extra": '{"place":{"floor":2},"z":1}',
    }
    turned, names = values | {"words": [("a", "1"), ("b", "2")]}, compared_fields(rule.contract)
    assert content(values, names) == content(turned, names) != content(values | {"_extra": None}, names)


def test_time_of_receipt_is_not_compared(tmp_path: Path) -> None:
    at = ({"type": "long", "logicalType": "timestamp-micros"}, {"from": "http.received"})
    rule = loaded(tmp_path, fields={"at": at}, time="at")["entries"]
    record, days = b'{"account": 1, "amount": 1}', ("2024-03-30", "2024-03-31")
    facts = [{"http.id": "a", "http.received": f"{day}T00:00:00.000000Z"} for day in days]
    values = [rule.values(record, each, now=datetime.now(UTC)) for each in facts]
    assert values[0]["at"] != values[1]["at"]
    assert len({content(each, compared_fields(rule.contract)) for each in values}) == 1
    assert not is_idempotent(rule.contract)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"options": 'decide.entries = "acount"\n'}, "no table 'acount'.*did you mean 'account'"),
        ({"options": 'decide.entris = "account"\n'}, "decide of 'entris'.*did you mean 'entries'"),
        ({"options": 'decide = "account"\n'}, "invalid decide.*decide.orders ="),
        ({"options": 'decide.entries = "order"\n'}, r"order: is not derived from log\('entries'\)"),
        (
            {"job": ACCOUNT.replace('"account",\n', '"account",\n        sequence="amount",\n', 1)},
            "orders events by amount",
        ),
        (
            {"job": ACCOUNT.replace('Fold(\n        "account"', 'Fold(\n        "amount"')},
            "its key is amount, and that.*account",
        ),
        ({"job": ACCOUNT.replace('.select("account", "amount")', "")}, "does more than select fields"),
        ({"job": ACCOUNT.replace('"amount")', '"amount").where("amount > 0")')}, "does more than select fields"),
        ({"job": ACCOUNT.replace('"account", "amount")', '"amount")')}, "returns no column 'account'"),
        (
            {"job": job("account", SQL, "log('entries')", returns="rows.select('account', 'amount')")},
            "SQL.*as a Python",
        ),
        ({"job": job("account", "Latest('account')", "log('entries')")}, "account: is not the state of a Fold"),
        ({"job": ACCOUNT.replace("entries int", "entries interval")}, "entries: 'interval' is not a type"),
        (
            {"fields": {"request": ("string", {"from": "http.id", "default": ""})}},
            "no request id that is always there",
        ),
        ({"id": "content"}, "its `id` includes no request id.*http.id"),
        ({"fields": {"x": "double"}, "key": ["account", "x"]}, "field x of the key is of type double"),
        ({"fields": {"x": NUMBER}}, "field x is taken from file.time"),
        ({"fields": {"x": ("string", {"personal": True})}, "subject": "note"}, "personal fields"),
        ({"fields": {"at": "timestamp"}, "time": "at + interval 1 hour"}, "its time.*is not a field"),
        ({"broadcast": "note = 'all'"}, "it has broadcasts"),
        ({"fields": {"at": "timestamp"}, "time": "at", "horizon": {"producer": "account"}}, "it declares `horizon`"),
        ({"file": 'landing/entries/a.jsonl:{"account": 1}'}, "1 landing files of entries.*--decide"),
        ({"file": 'sources/other.toml:kind = "http"\nstreams = ["entries"]'}, "also a stream of other"),
    ],
)
def test_invalid_decider_is_reported(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError) as fault:
        loaded(tmp_path, **given)
    assert re.search(f"(?s){told}", str(fault.value)), fault.value
    assert fault.value.fix or fault.value.lists_faults


def test_decider_reports_all_faults_at_once(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"(?s)faults.*orders events by.*no request id"):
        loaded(
            tmp_path, job=ACCOUNT.replace('"account",\n', '"account",\n        sequence="amount",\n', 1), id="content"
        )


@pytest.mark.parametrize(
    ("sql", "arrow"),
    [
        ("Decimal(9, 2)", "decimal128(9, 2)"),
        ("array<struct<a: int, `b c`: array<string>>>", "list<element: struct<a: int32, b c: list<element: string>>>"),
        ("TIMESTAMP", "timestamp[us, tz=UTC]"),
    ],
)
def test_state_type_maps_to_its_arrow_type(sql: str, arrow: str) -> None:
    assert str(arrow_type(sql)) == arrow


@pytest.mark.parametrize(
    "sql",
    ["decimal()", "decimal<9>", "decimal(1, 2, 3)", "array(int)", "array<>", "struct<>", "int()", "int<>", "array<int"],
)
def test_state_type_with_wrong_brackets_is_refused(sql: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        arrow_type(sql)
    with pytest.raises(Unsupported):
        parsed_type(sql)
