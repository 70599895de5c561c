"""Contracts: reading of an .avsc, its faults, and compatible changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream, load_contracts, read_contract, sound_contracts
from lake.contracts.evolution import append_version, incompatibilities, with_current
from lake.contracts.origins import columns
from lake.errors import DeclarationError
from lake.store.ledger.contract_versions import register, versions
from lake.text import duration

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "orders",
    "doc": "One order.",
    "lake": {"key": ["customer"], "id": ["number"], "time": "placed_at", "buckets": 4, "max_ahead": "2 hours"},
    "fields": [
        {"name": "customer", "type": "string", "personal": True},
        {"name": "number", "type": "long"},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "pieces", "type": "int", "unit": "pieces", "minimum": 1, "maximum": 99},
        {
            "name": "amount",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
            "default": None,
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "default": "NEW"},
    ],
}


def contract(schema: dict[str, Any] = ORDER, **changes: Any) -> Contract:
    return read_contract(json.dumps(schema | changes, indent=1), file=f"schemas/{schema['name']}.avsc")


def fields(*replaced: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of ORDER; those of the same name are replaced, others added."""
    new = {field["name"]: field for field in replaced}
    return [new.pop(field["name"], field) for field in ORDER["fields"]] + list(new.values())


def record(more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Parts", "fields": [{"name": "part", "type": "int", **more}]}


def test_contract_defines_fields_key_id_and_time() -> None:
    orders = contract()
    assert {field.name: field.type for field in orders.fields} == {
        "customer": "string",
        "number": "bigint",
        "placed_at": "timestamp",
        "pieces": "int",
        "amount": "decimal(10,2)",
        "state": "string",
    }
    assert (orders.key, orders.id, orders.identity, orders.time) == (("customer",), ("number",), "id", "placed_at")
    assert (orders.buckets, orders.max_ahead, orders.personal) == (4, timedelta(hours=2), ("customer",))
    assert orders.field("amount").nullable
    assert orders.field("state").symbols == ("NEW", "PAID")
    assert (orders.field("pieces").minimum, orders.field("pieces").unit) == ("1", "pieces")
    assert orders.text.splitlines()[orders.field("pieces").line - 1].strip() == '"name": "pieces",'


@pytest.mark.parametrize(
    ("given", "ahead"),
    [({}, timedelta(days=1)), ({"max_ahead": "0 days"}, timedelta()), ({"max_ahead": "2 days"}, timedelta(days=2))],
)
def test_contract_bounds_how_far_events_are_ahead(given: dict[str, str], ahead: timedelta) -> None:
    assert contract(lake={"key": ["customer"], "time": "placed_at", **given}).max_ahead == ahead


EXACT = "12345678901234567.89"
WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}


@pytest.mark.parametrize(
    ("kind", "attribute", "written"),
    [
        (WIDE, "maximum", EXACT),
        (WIDE, "minimum", f"-{EXACT}"),
        (WIDE, "default", EXACT),
        ({"type": "array", "items": WIDE}, "default", f"[1, {EXACT}]"),
        ({"type": "map", "values": WIDE}, "default", f'{{"a": {EXACT}}}'),
    ],
)
def test_bound_or_default_keeps_the_digits_of_a_number(kind: Any, attribute: str, written: str) -> None:
    text = json.dumps(ORDER | {"fields": fields({"name": "x", "type": kind, attribute: "DIGITS"})})
    read = read_contract(text.replace('"DIGITS"', written), file="schemas/orders.avsc")
    assert getattr(read.field("x"), attribute) == written


def test_contracts_that_differ_in_a_late_digit_are_two_versions() -> None:
    texts = (json.dumps(ORDER | {"fields": fields({"name": "x", "type": WIDE, "maximum": "DIGITS"})}),) * 2
    first, second = (
        read_contract(text.replace('"DIGITS"', f"{EXACT[:-1]}{digit}"), file="schemas/orders.avsc")
        for text, digit in zip(texts, "78", strict=True)
    )
    assert len(append_version((first,), second)) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lake": {"id": ["number"]}}, "no key declared"),
        ({"lake": {"key": ["custmer"]}}, "did you mean 'customer'"),
        ({"lake": {"key": ["customer"], "tim": "placed_at"}}, "did you mean 'time'"),
        ({"lake": {"key": ["customer"], "time": "pieces"}}, "time field 'pieces' is of type int"),
        ({"lake": {"key": ["customer"], "time": "date '2024-03-31'"}}, "uses no field"),
        ({"lake": {"key": ["customer"], "time": "current_date()"}}, "is not deterministic"),
        *(
            ({"lake": {"key": ["customer"], "broadcast": sql}}, f"broadcast '{sql}' is not deterministic: {function}")
            for sql, function in {
                "pieces > 99 * RAND()": "RAND",
                "uuid( ) > customer": "uuid",
                "monotonically_increasing_id() = number": "monotonically_increasing_id",
                "placed_at < Current_Timestamp": "Current_Timestamp",
                "customer = current_user": "current_user",
                "unix_timestamp() > number": "unix_timestamp",
            }.items()
        ),
        ({"lake": {"key": ["customer"], "buckets": 0}}, "invalid buckets: 0"),
        ({"lake": {"key": ["customer"], "max_ahead": "soon"}}, "invalid max_ahead: 'soon'"),
        ({"fields": fields({"name": "_hidden", "type": "int"})}, "begins with '_'"),
        ({"fields": fields({"name": "Customer", "type": "int"})}, "names two fields"),
        ({"fields": fields({"name": "x", "type": "int", "aliases": ["y", "X"]})}, "'X' names the field 'x' twice"),
        ({"fields": fields({"name": "x", "type": ["int", "string"]})}, "a union of 2 types"),
        ({"fields": fields({"name": "x", "type": "int", "uint": "m"})}, "did you mean 'unit'"),
        ({"fields": fields({"name": "x", "type": "string", "minimum": 1})}, "cannot have a minimum"),
        (
            {"fields": fields({"name": "x", "type": {"type": "int", "logicalType": "time-millis"}})},
            "logical type 'time-millis'",
        ),
        ({"fields": fields({"name": "x", "type": "text"})}, "unknown type 'text'"),
    ],
)
def test_faulty_contract_is_rejected_with_its_line(change: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=r"schemas/orders\.avsc:\d+") as raised:
        contract(**change)
    assert told in str(raised.value)


@pytest.mark.parametrize("sql", ["unix_timestamp(customer) > 1", "current_power > 1", "now = 'yes'", "rand > 1"])
def test_expression_over_fields_is_accepted_whatever_their_names(sql: str) -> None:
    names = [{"name": name, "type": "int"} for name in ("current_power", "now", "rand")]
    lake = {"key": ["customer"], "time": sql, "broadcast": sql}
    assert contract(fields=fields(*names), lake=lake).broadcast == sql


def test_contracts_report_all_faults_at_once(project: Settings) -> None:
    schemas = project.path("schemas")
    (schemas / "a.avsc").write_text("{")
    (schemas / "b.avsc").write_text(json.dumps(ORDER))
    (schemas / "orders.avsc").write_text(json.dumps(ORDER | {"lake": {"key": ["nobody"], "buckets": -1}}))
    with pytest.raises(DeclarationError) as raised:
        load_contracts(project)
    said = str(raised.value)
    for fault in ("a.avsc:1", 'name it "b"', "'nobody', which is not a field", "invalid buckets: -1"):
        assert fault in said


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"lakes": {}},
            "unknown attribute 'lakes' of the record (schemas/orders.avsc:{line})\n  fix: did you mean 'lake'?",
        ),
        (
            {"docs": "x"},
            "unknown attribute 'docs' of the record (schemas/orders.avsc:{line})\n  fix: did you mean 'doc'?",
        ),
        ({"buckets": 2}, "'buckets' has no effect next to \"lake\" (schemas/orders.avsc:{line})"),
        ({"lake": {"keys": ["id"]}}, "fix: write 'key' instead of 'keys'"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scal": 2}}, "did you mean 'scale'?"),
        ({"type": {"type": "bytes", "logicalType": "decimal", "precison": 9}}, "did you mean 'precision'?"),
        ({"type": {"type": "long", "logicaltype": "timestamp-micros"}}, "did you mean 'logicalType'?"),
        (
            {"type": {"type": "string", "personal": True}},
            "'personal' has no effect in the type of field 'extra'",
        ),
        ({"type": ["null", {"type": "int", "unit": "m"}]}, "fix: move it out, beside the \"type\" of 'extra'"),
        ({"type": record({"minimum": 1})}, "'minimum' has no effect on 'part', a part of field 'extra'"),
        ({"type": {"type": "array", "items": record({"docs": "x"})}}, "did you mean 'doc'?"),
    ],
)
def test_attribute_without_effect_is_reported(project: Settings, change: dict[str, Any], told: str) -> None:
    if "type" in change:
        change = {"fields": [*ORDER["fields"], {"name": "extra", "default": None, **change}]}
    text = json.dumps({**ORDER, **change}, indent=1)
    project.path("schemas/orders.avsc").write_text(text)
    line = next((n for n, said in enumerate(text.splitlines(), 1) if f'"{next(iter(change))}"' in said), 0)
    with pytest.raises(DeclarationError) as raised:
        load_contracts(project)
    assert told.format(line=line) in str(raised.value)
    assert "schemas/orders.avsc:" in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"connect.name": "orders", "connect.version": 1, "namespace": "shop", "aliases": ["order"], "zzz": 1},
        {"type": {"type": "string", "avro.java.string": "String", "connect.default": "x", "sqlType": "12"}},
        {"type": record({"unit": "m", "doc": "x", "order": "ascending", "connect.doc": "y"})},
    ],
)
def test_attributes_of_other_tools_are_accepted(project: Settings, change: dict[str, Any]) -> None:
    if "type" in change:
        change = {"fields": [*ORDER["fields"], {"name": "extra", **change}]}
    own = {"lake": {**ORDER["lake"], "subject": "customer"}}
    project.path("schemas/orders.avsc").write_text(json.dumps({**ORDER, **own, **change}, indent=1))
    assert [*load_contracts(project)] == ["orders"]


def test_contract_of_a_log_stays_readable_with_unknown_attributes() -> None:
    assert contract(docs="x", buckets=2).name == "orders"


OF_PEOPLE = ORDER | {"lake": ORDER["lake"] | {"subject": "customer"}}
NESTINGS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda kind: kind,
    "null or": lambda kind: ["null", kind],
    "in an array": lambda kind: {"type": "array", "items": kind},
    "in a map": lambda kind: {"type": "map", "values": kind},
    "in a record": lambda kind: {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": kind}]},
}
FAULTY: dict[str, tuple[Any, str]] = {
    "its own event": ("orders", "contains itself"),
    "its own record": (record({"type": {"type": "array", "items": "Parts"}}), "record 'Parts' contains itself"),
    "an array without items": ({"type": "array"}, "field 'x': a type is missing"),
    "a map without values": ({"type": "map"}, "field 'x': a type is missing"),
    "symbols in a text": ({"type": "enum", "name": "E", "symbols": "abc"}, "'x' has an enum without a list"),
    "no symbols": ({"type": "enum", "name": "E", "symbols": []}, "'x' has an enum without a list"),
    "no fields": ({"type": "record", "name": "R", "fields": []}, "field 'x' has a record without fields"),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("faulty", FAULTY)
def test_faulty_type_concerns_its_contract_alone(project: Settings, faulty: str, nesting: str) -> None:
    kind, told = FAULTY[faulty]
    extra = {"name": "x", "type": NESTINGS[nesting](kind)}
    project.path("schemas/orders.avsc").write_text(json.dumps(OF_PEOPLE | {"fields": [*ORDER["fields"], extra]}))
    project.path("schemas/sales.avsc").write_text(json.dumps(OF_PEOPLE | {"name": "sales"}))
    sound, faults = sound_contracts(project)
    assert ([*sound], [*faults]) == (["sales"], ["orders"])
    assert told in str(faults["orders"])
    assert faults["orders"].fix


def test_record_may_be_used_twice() -> None:
    parts = [{"name": "x", "type": record({})}, {"name": "y", "type": {"type": "array", "items": "Parts"}}]
    assert contract(fields=[*ORDER["fields"], *parts]).field("y").type == "array<struct<part:int>>"


@pytest.mark.parametrize(
    ("kind", "default", "told"),
    [
        ({"type": "array", "items": "int"}, ["a"], '"a", which is not a valid int'),
        ({"type": "array", "items": "int"}, [1, None, 2.5], "2.5, which is not a valid int"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], 2], "2, which is not a valid array<int>"),
        ({"type": "map", "values": "boolean"}, {"a": True, "b": 7}, "7, which is not a valid boolean"),
        (record({"type": "long"}), {"part": "x"}, '"x", which is not a valid bigint'),
        ({"type": "array", "items": record({})}, [{"part": 1}, {"part": "x"}], '"x", which is not a valid int'),
        ({"type": "array", "items": "int"}, [1, None], ""),
        ({"type": "map", "values": WIDE}, {"a": "1.50"}, ""),
        (record({}), {}, ""),
    ],
    ids=str,
)
def test_default_is_checked_value_by_value(project: Settings, kind: Any, default: Any, told: str) -> None:
    extra = {"name": "x", "type": kind, "default": default}
    text = json.dumps(OF_PEOPLE | {"fields": [*ORDER["fields"], extra]})
    project.path("schemas/orders.avsc").write_text(text)
    _, faults = sound_contracts(project)
    assert [fault.what for fault in faults.values()] == ([f"the default of field 'x' has {told}"] if told else [])
    assert read_contract(text, file="schemas/orders.avsc").field("x").has_default


def test_unknown_stream_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(DeclarationError, match="did you mean 'orders'"):
        known_stream({"orders": contract()}, "order")


def test_unknown_stream_without_a_near_name_may_be_added() -> None:
    fixes = []
    for contracts in ({}, {"orders": contract()}):
        with pytest.raises(DeclarationError) as raised:
            known_stream(contracts, "parcels")
        fixes.append(raised.value.fix)
    assert fixes == ["add schemas/parcels.avsc", "known: orders, or add schemas/parcels.avsc"]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1 day", timedelta(days=1)),
        ("90 minutes", timedelta(minutes=90)),
        ("10min", timedelta(minutes=10)),
        ("0.5 s", timedelta(milliseconds=500)),
        ("1.5 hours", timedelta(minutes=90)),
        ("2000000 days", timedelta(days=2_000_000)),
        *dict.fromkeys(("2000001 days", "x", "10", "-5s", "1e3s", "٣ days", "1 fortnight", 3)).items(),
    ],
)
def test_duration_is_parsed_or_rejected(text: Any, length: timedelta | None) -> None:
    assert duration(text) == length


COMPATIBLE = {
    "a field with a default": fields({"name": "note", "type": ["null", "string"], "default": None}),
    "a wider integer": fields({"name": "pieces", "type": "long"}),
    "a wider decimal": fields(
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 14, "scale": 4}]}
    ),
    "null becomes possible": fields({"name": "pieces", "type": ["null", "int"]}),
    "one more symbol": fields(
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID", "SENT"]}}
    ),
    "a new name": [
        {**field, "name": "items", "aliases": ["pieces"]} if field["name"] == "pieces" else field
        for field in ORDER["fields"]
    ],
    "a field less": [field for field in ORDER["fields"] if field["name"] != "amount"],
}
INCOMPATIBLE = {
    "'note' is new": {"fields": fields({"name": "note", "type": "string"})},
    "'pieces' was int": {"fields": fields({"name": "pieces", "type": "string"})},
    "'number' was bigint": {"fields": fields({"name": "number", "type": "double"})},
    "'amount' could be null": {
        "fields": fields(
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}
        )
    },
    "'amount' was decimal(10,2)": {
        "fields": fields(
            {
                "name": "amount",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
            }
        )
    },
    "'Pieces' was 'pieces'": {
        "fields": [{**each, "name": "Pieces"} if each["name"] == "pieces" else each for each in ORDER["fields"]]
    },
    "lost the symbols PAID": {
        "fields": fields({"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW"]}})
    },
    "key of orders was customer": {"lake": ORDER["lake"] | {"key": ["number"]}},
    "time of orders was placed_at": {"lake": ORDER["lake"] | {"time": "date_trunc('DAY', placed_at)"}},
    "buckets of orders was 4": {"lake": ORDER["lake"] | {"buckets": 8}},
    "id of orders was number": {"lake": ORDER["lake"] | {"id": "content"}},
}


@pytest.mark.parametrize("change", COMPATIBLE)
def test_compatible_change_is_accepted(change: str) -> None:
    assert not list(incompatibilities(contract(fields=COMPATIBLE[change]), contract()))


@pytest.mark.parametrize("told", INCOMPATIBLE)
def test_incompatible_change_is_rejected_with_field_and_line(told: str) -> None:
    faults = [str(fault) for fault in incompatibilities(contract(**INCOMPATIBLE[told]), contract())]
    assert len(faults) == 1
    assert told in faults[0]
    assert "(schemas/orders.avsc:" in faults[0]
    assert "fix:" in faults[0]


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("before", "now", "taken"),
    [
        ("int", "long", True),
        ("int", "double", False),
        ("float", "double", False),
        (decimal(5, 0), decimal(9, 2), False),
        (decimal(5, 0), decimal(9, 0), False),
    ],
)
def test_subject_type_change_is_rejected_if_its_text_would_change(before: Any, now: Any, taken: bool) -> None:
    old, new = (
        contract(
            lake={"key": ["number"], "id": ["number"], "subject": "who"},
            fields=fields({"name": "who", "type": kind, "personal": True}),
        )
        for kind in (before, now)
    )
    faults = [str(fault) for fault in incompatibilities(new, old)]
    assert taken == (not faults)
    assert all("people are identified by the text of the subject" in fault for fault in faults)


def test_changed_contract_is_registered_when_it_is_used(project: Settings) -> None:
    first, second = contract(), contract(fields=COMPATIBLE["a wider integer"])
    assert len(register(project, first)) == 1
    assert len(register(project, first)) == 1
    assert len(with_current(versions(project, "orders"), second)) == 2
    assert len(versions(project, "orders")) == 1
    assert len(register(project, second)) == 2
    assert [one.field("pieces").type for one in versions(project, "orders")] == ["int", "bigint"]
    assert columns(versions(project, "orders"))["pieces", "bigint"] == "pieces__bigint"
    with pytest.raises(DeclarationError, match="was bigint"):
        register(project, first)
