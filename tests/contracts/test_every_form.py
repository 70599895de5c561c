"""Every member of a contract with every form of JSON: it is read, or reported with its place and a fix."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError
from tests.contracts.test_contracts import ORDER

pytestmark = pytest.mark.slow

FORMS: dict[str, Any] = {
    "null": None,
    "true": True,
    "a number": 5,
    "a fraction": 0.5,
    "a huge number": 10**900,
    "text": "customer",
    "empty text": "",
    "a long duration": "99999999999999999 weeks",
    "a huge duration": f"{'9' * 5000} days",
    "a list": ["customer"],
    "an empty list": [],
    "a nested list": [["customer"], ["customer"]],
    "a list of objects": [{"a": 1}],
    "an object": {"a": [1]},
    "an empty object": {},
}
FULL: dict[str, Any] = {
    "key": ["customer"],
    "id": ["number"],
    "time": "placed_at",
    "buckets": 4,
    "max_ahead": "2 hours",
    "max_refused": {"share": 0.1, "records": 20},
    "broadcast": "pieces = 1",
    "dump": "label",
    "subject": "person",
    "csv": {
        **{"delimiter": ";", "quote": '"', "null": ["NA"], "columns": ["a"], "encoding": "utf-8"},
        **{"skip": 0, "escape": "\\", "trim": True},
    },
    "complete": {"producer": "label", "number": "pieces", "every": "1 day"},
    "clock": {"sent": "sent_at", "received": "received_at"},
    "horizon": {"producer": "label", "punctuation": "pieces = 2", "idle": "1 hour", "limit": 5},
    "unknown": "warn",
    "missing": "report",
    "upcast": {"1": {"note": "upper(note)"}},
}
ENVELOPE = {"key": ["customer"], "envelope": "debezium", "table": "t", "placeholder": "p"}
TIME = {"type": "long", "logicalType": "timestamp-micros"}
FIELDS = [
    *ORDER["fields"][1:],
    {"name": "customer", "type": "string"},
    {"name": "label", "type": "string"},
    {"name": "note", "type": "string"},
    {"name": "person", "type": "string", "personal": True},
    {"name": "sent_at", "type": TIME, "transport": True},
    {"name": "received_at", "type": TIME, "transport": True},
]
ATTRIBUTES = (
    *("name", "type", "doc", "default", "order", "aliases", "unit", "minimum", "maximum", "personal", "transport"),
    *("from", "pattern", "encoding", "text_only", "format", "pivot", "hour24", "decimal", "thousands"),
)
TYPES: dict[str, dict[str, Any]] = {
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "fixed": {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2},
    "enum": {"type": "enum", "name": "E", "symbols": ["a"]},
    "array": {"type": "array", "items": "int"},
    "map": {"type": "map", "values": "int"},
    "record": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    "time": TIME,
    "text": {"type": "string"},
}
MEMBERS = [
    *[(FULL, (name,)) for name in FULL],
    *[(FULL, (name, part)) for name, value in FULL.items() if isinstance(value, dict) for part in value],
    (FULL, ("upcast", "1", "note")),
    *[(ENVELOPE, (name,)) for name in ENVELOPE],
]


def changed(value: Any, path: tuple[str, ...], form: Any) -> Any:
    return {**value, path[0]: changed(value[path[0]], path[1:], form)} if path else form


def faults(project: Settings, **change: Any) -> list[str]:
    project.path("schemas/orders.avsc").write_text(json.dumps(ORDER | {"fields": FIELDS, "lake": FULL} | change))
    try:
        load_contracts(project)
    except DeclarationError as fault:
        return str(fault).splitlines()
    return []


def check(project: Settings, **change: Any) -> None:
    lines = faults(project, **change)
    places = sum("(schemas/orders.avsc:1)" in line for line in lines)
    assert places == sum("fix: " in line for line in lines), lines


def test_contract_with_every_option_is_accepted(project: Settings) -> None:
    assert faults(project) == []
    assert faults(project, lake=ENVELOPE | {"subject": "person"}) == []


@pytest.mark.turns(5)
@pytest.mark.parametrize("form", FORMS)
def test_option_of_any_form_is_read_or_reported(project: Settings, form: str) -> None:
    for lake, path in MEMBERS:
        check(project, lake=changed(lake, path, FORMS[form]))
        check(project, lake={"key": ["customer"]} | changed({path[0]: lake[path[0]]}, path, FORMS[form]))
    check(project, lake=FORMS[form])


def test_pair_of_options_of_any_form_is_read_or_reported(project: Settings) -> None:
    forms = [5, [["number"]], {"a": 1}]
    for (one, first), (other, second) in product(product(("key", "id", "time"), forms), product(FULL, forms)):
        check(project, lake=FULL | {one: first} | {other: second})


@pytest.mark.turns(5)
@pytest.mark.parametrize("form", FORMS)
def test_attribute_of_any_form_is_read_or_reported(project: Settings, form: str) -> None:
    number, plain = {"name": "number", "type": "long"}, {"lake": {"key": ["number"]}}
    for kind, attribute in product(TYPES.values(), ATTRIBUTES):
        check(project, **plain, fields=[number, {"name": "extra", "type": kind, attribute: FORMS[form]}])
    for kind in TYPES.values():
        for member in [*kind, "logicalType"]:
            check(project, **plain, fields=[number, {"name": "extra", "type": kind | {member: FORMS[form]}}])
    for member in ("doc", "aliases", "namespace", "name", "fields", "type"):
        check(project, **{**plain, "fields": [number], member: FORMS[form]})
