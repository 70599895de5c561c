"""Debezium messages: events, control messages, rejections, and unchanged values."""

from __future__ import annotations

import json
import pickle
import random
import re
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from lake.contracts.contract import Contract, read_contract
from lake.contracts.reasons import Reason
from lake.errors import DeclarationError
from lake.records.debezium import DebeziumChange, Envelope, MessageDecoder
from lake.records.json_value import NotJson, read_json
from lake.records.raw_values import ABSENT, JsonNumber, RawValue, TextRecords
from lake.records.reader import RecordReader

GUIDE = (Path(__file__).parents[2] / "docs/how-to/debezium.md").read_text("utf-8")
PLACEHOLDER = "__debezium_unavailable_value"
SOURCE = {"db": "shop", "schema": "inventory", "table": "customers", "snapshot": "false"}
ANNE = {"id": 1, "name": "Anne", "email": "a@b.c"}
TEXTS = {"type": "array", "items": "string"}
CUSTOMER: dict[str, Any] = {
    "key": ["id"],
    "id": ["lsn", "op"],
    "envelope": "debezium",
    "table": "inventory.customers",
    "broadcast": "op = 't'",
}


def maybe(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], **more}


def contract_of(*fields: dict[str, Any], **lake: Any) -> Contract:
    """Return a contract of `fields`, id and op. Facts of None are left out."""
    facts = {name: value for name, value in (CUSTOMER | lake).items() if value is not None}
    own = [{"name": "id", "type": "int"}, *fields, {"name": "op", "type": "string", "from": "op"}]
    own += [maybe("lsn", "long", **{"from": "source.lsn"})]
    record = {"type": "record", "name": "customers", "doc": "A change.", "lake": facts, "fields": own}
    return read_contract(json.dumps(record), file="schemas/customers.avsc")


CONTRACT: Final = contract_of(
    {"name": "name", "type": "string"},
    maybe("email", "string", default=None),
    {"name": "tier", "type": ["string", "null"], "default": "basic"},
    maybe("old_email", "string", **{"from": "before.email"}),
    maybe("transaction_id", "string", **{"from": "transaction.id"}),
    maybe("seen_at", {"type": "long", "logicalType": "timestamp-millis"}, **{"from": "ts_ms"}),
)


def change(op: str, lsn: int = 9, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = SOURCE | {"lsn": lsn} | more.pop("source", {})
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1709280000000} | more


def with_schema(payload: Any, schema: Any = None) -> dict[str, Any]:
    return {"schema": schema, "payload": payload}


def schema_of(**columns: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of messages whose row has these columns."""
    members = [{"type": "int32", "field": "id"}, *({"field": name, **column} for name, column in columns.items())]
    images = [{"type": "struct", "field": image, "fields": members} for image in ("before", "after")]
    return {"type": "struct", "fields": images}


def as_text(message: Any) -> bytes:
    return message if isinstance(message, bytes) else json.dumps(message).encode()


def rows_of(contract: Contract, *messages: Any) -> list[dict[str, Any]]:
    """Return the records of messages, as in the log."""
    texts = [*map(as_text, messages)]
    read: list[dict[str, Any]] = (
        RecordReader(contract, 1 << 20).read(TextRecords(range(len(texts)), texts), {}).to_pylist()
    )
    return read


def with_json_numbers(given: RawValue) -> RawValue:
    """Return a value with all whole numbers as JSON writes them."""
    if isinstance(given, dict):
        return {name: with_json_numbers(value) for name, value in given.items()}
    if isinstance(given, list):
        return [*map(with_json_numbers, given)]
    return JsonNumber(given) if isinstance(given, int) and not isinstance(given, bool) else given


def open_carefully(contract: Contract, text: bytes) -> DebeziumChange:
    try:
        return Envelope(contract).open(read_json(text) if text.strip() else None)
    except NotJson as fault:
        return DebeziumChange(verdict=(Reason.UNPARSEABLE, str(fault)))


def both_ways(contract: Contract, *texts: bytes) -> list[DebeziumChange]:
    """Return the changes in texts, on which the quick way and the careful way must agree."""
    quick = MessageDecoder(Envelope(contract)).open(texts)
    careful = [open_carefully(contract, text) for text in texts]
    for text, one, other in zip(texts, quick, careful, strict=True):
        assert with_json_numbers(dict(one.members)) == with_json_numbers(dict(other.members)), text
        assert with_json_numbers(one.extra) == with_json_numbers(other.extra), text
        assert (one.lacking, one.verdict) == (other.lacking, other.verdict), text
    return careful


def test_fields_come_from_the_row_and_from_the_envelope() -> None:
    read, update, beyond, delete, truncate = rows_of(
        CONTRACT,
        change("r", 1, after=ANNE),
        with_schema(change("u", 2, ANNE, ANNE | {"email": None, "tier": None}, transaction={"id": "571"})),
        with_schema(change("u", 3, {"id": 1}, ANNE | {"since": "2024", "deep": {"a": [1, "x"]}}), {"type": "struct"}),
        change("d", 4, before={"id": 1}),
        change("t", 5),
    )
    assert (read["name"], read["email"], read["tier"], read["op"]) == ("Anne", "a@b.c", "basic", "r")
    assert (update["email"], update["old_email"], update["tier"], update["lsn"]) == (None, "a@b.c", None, 2)
    assert (update["transaction_id"], read["transaction_id"], read["_extra"]) == ("571", None, None)
    assert json.loads(beyond["_extra"]) == {"since": "2024", "deep": {"a": [1, "x"]}}
    assert (delete["id"], delete["name"], delete["op"], delete["_reason"]) == (1, None, "d", None)
    assert (truncate["id"], truncate["op"], truncate["_reason"]) == (None, "t", None)
    assert read["seen_at"] == datetime(2024, 3, 1, 8, tzinfo=UTC)


CONTROL: list[tuple[Any, str]] = [
    (b"null", "tombstone"),
    (b"", "tombstone"),
    (b" \r", "tombstone"),
    (with_schema(None), "tombstone"),
    ({"status": "BEGIN", "id": "571", "ts_ms": 1, "event_count": None, "data_collections": None}, "transaction"),
    (with_schema({"status": "END", "id": "571", "event_count": 2, "data_collections": []}), "transaction"),
    ({"source": SOURCE, "ddl": "ALTER TABLE customers ADD tier text", "tableChanges": []}, "schema change"),
    (with_schema({"source": SOURCE, "historyRecord": "{}"}), "schema change"),
    ({"ts_ms": 1709280000000}, "heartbeat"),
    (with_schema({"ts_ms": 1709280000000}), "heartbeat"),
    ({"op": "m", "ts_ms": 1, "source": SOURCE, "message": {"prefix": "p", "content": "aGk="}}, "logical message"),
]
NO_OP = "no op, and no control message either"
BAD: list[tuple[Any, str, str]] = [
    (as_text(change("c", 9, after=ANNE))[:-9], "unparseable", "not one JSON object"),
    (as_text(change("c", 9, after=ANNE)) * 2, "unparseable", "not one JSON object"),
    (b'{"op": "c", "op": "d"}', "unparseable", "not one JSON object: duplicate field name"),
    ([1, 2], "envelope", NO_OP),
    ("c", "envelope", NO_OP),
    (ANNE, "envelope", NO_OP),
    (with_schema(ANNE), "envelope", NO_OP),
    ({"op": None, "payload": change("c", 9, after=ANNE)}, "envelope", NO_OP),
    (change("x", 9, after=ANNE), "envelope", "op x is none of c, r, u, d, t, m"),
    ({"op": ["c"]}, "envelope", 'op ["c"] is none of c, r, u, d, t, m'),
    (change("c", 9), "envelope", "op c without a row in after"),
    (change("u", 9, before=ANNE), "envelope", "op u without a row in after"),
    (change("d", 9, after=ANNE), "envelope", "op d without a row in before"),
    (change("c", 9, after="Anne"), "envelope", "op c without a row in after"),
    (change("c", 9, after=ANNE, source={"table": "orders"}), "other table", "shop.inventory.orders"),
    (change("c", 9, after=ANNE, source={"schema": "old_inventory"}), "other table", "shop.old_inventory.customers"),
    ({"op": "c", "after": ANNE}, "other table", "source names no table"),
    (change("c", 9, after=ANNE | {"id": None}), "missing field", "id"),
    (change("d", 9, before=ANNE | {"id": None}), "missing field", "id"),
    (change("u", 9, after={"id": 1}), "missing field", "name"),
    (with_schema(change("c", 9, after=ANNE | {"id": "one"})), "wrong type", "id: one is not int"),
]


def test_control_messages_are_counted_and_wrong_ones_rejected() -> None:
    messages = [*(message for message, _ in CONTROL), *(message for message, *_ in BAD)]
    expected = [("control message", kind) for _, kind in CONTROL] + [(reason, detail) for _, reason, detail in BAD]
    assert [(row["_reason"], row["_detail"]) for row in rows_of(CONTRACT, *messages)] == expected
    both_ways(CONTRACT, *map(as_text, messages))


def test_truncate_is_rejected_if_no_broadcast_is_declared() -> None:
    [row] = rows_of(contract_of(broadcast=None), change("t"))
    assert (row["_reason"], row["_detail"]) == ("envelope", "a truncate, and the contract declares no broadcast")


def test_record_is_rejected_if_two_names_of_a_field_have_different_values() -> None:
    contract = contract_of(maybe("name", "string", aliases=["title"]))
    rows = [{"id": 1, "title": "a"}, {"id": 1, "name": "a", "title": "a"}, {"id": 1, "name": None, "title": "a"}]
    rows.append({"id": 1, "name": "a", "title": "b"})
    former, equal, one, other = rows_of(contract, *(change("c", after=row) for row in rows))
    assert (former["name"], equal["name"], one["name"]) == ("a", "a", "a")
    assert (other["_reason"], other["_detail"]) == ("unparseable", "name is there under two names")


def test_undeclared_members_of_nested_columns_are_kept_by_their_path() -> None:
    street = {"type": "record", "name": "street", "fields": [{"name": "name", "type": "string"}]}
    address = {"type": "record", "name": "address", "fields": [{"name": "street", "type": street}]}
    contract = contract_of(
        maybe("addr", address, aliases=["address"]), maybe("past", {"type": "array", "items": "address"})
    )
    row = {"id": 1, "address": {"street": {"name": "x", "no": 1}, "zip": "8010"}, "past": [{"street": None}, {"a": []}]}
    [read] = rows_of(contract, change("c", after=row))
    assert json.loads(read["_extra"]) == {"address": {"street": {"no": 1}, "zip": "8010"}, "past": {"1": {"a": []}}}
    texts = row | {"address": json.dumps(row["address"]), "past": json.dumps(row["past"])}
    assert rows_of(contract, change("c", after=texts))[0]["_extra"] == read["_extra"]


LARGE: Final = contract_of(
    {"name": "body", "type": "string"},
    maybe("tags", TEXTS),
    maybe("image", "bytes"),
    maybe("scores", {"type": "array", "items": "long"}),
    maybe("more", {"type": "map", "values": "string"}),
    maybe("place", "string"),
    {"name": "unchanged", "type": TEXTS, "from": "unchanged"},
    table=None,
)
FULL: dict[str, Any] = {"id": 1, "body": "b", "tags": ["x"], "image": "AP8=", "scores": [1], "more": {"a": "b"}}
ENCODED = b64encode(PLACEHOLDER.encode()).decode()
UNAVAILABLE: list[tuple[str, Any]] = [
    ("body", PLACEHOLDER),
    ("tags", [PLACEHOLDER]),
    ("tags", [ENCODED]),
    ("tags", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ("image", ENCODED),
    ("image", PLACEHOLDER.encode().hex()),
    ("scores", [*PLACEHOLDER.encode()]),
    ("more", {PLACEHOLDER: PLACEHOLDER}),
    ("more", json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))),
    ("place", {"wkb": b64encode(bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")).decode()}),
]


@pytest.mark.parametrize(("column", "placeholder"), UNAVAILABLE, ids=lambda each: str(each)[:20])
def test_unchanged_value_is_null_and_named(column: str, placeholder: Any) -> None:
    first, later = rows_of(LARGE, change("c", after=FULL), change("u", after=FULL | {column: placeholder}))
    assert first["unchanged"] == []
    assert (later[column], later["unchanged"], later["_reason"]) == (None, [column], None)
    others = set(FULL) - {column}
    assert {name: later[name] for name in others} == {name: first[name] for name in others}


@pytest.mark.parametrize(("column", "placeholder"), UNAVAILABLE, ids=lambda each: str(each)[:20])
def test_unchanged_value_is_rejected_if_the_contract_does_not_name_it(column: str, placeholder: Any) -> None:
    contract = contract_of(maybe(column, TEXTS), table=None)
    message = change("u", after={"id": 1, column: placeholder})
    [row] = rows_of(contract, message)
    assert row["_reason"] == "envelope"
    assert row["_detail"].startswith(f"{column}: the message has no value for it, as it did not change: declare")
    both_ways(contract, as_text(message))


def test_unchanged_column_that_is_not_declared_is_named_and_not_kept() -> None:
    [row] = rows_of(LARGE, change("u", after=FULL | {"notes": PLACEHOLDER, "seen": 1}))
    assert (row["unchanged"], json.loads(row["_extra"])) == (["notes"], {"seen": 1})
    [kept] = rows_of(contract_of(table=None), change("u", after={"id": 1, "notes": PLACEHOLDER}))
    assert json.loads(kept["_extra"]) == {"notes": PLACEHOLDER}


def test_delete_needs_no_unchanged_values() -> None:
    contract = contract_of(maybe("body", "string"), table=None)
    [row] = rows_of(contract, change("d", before={"id": 1, "body": PLACEHOLDER}))
    assert (row["id"], row["body"], row["_reason"]) == (1, None, None)


def test_unchanged_value_has_the_name_of_its_field() -> None:
    unchanged = {"name": "unchanged", "type": TEXTS, "from": "unchanged"}
    fields = (maybe("text", "string", aliases=["body"]), maybe("late", "string", **{"from": "after.note"}), unchanged)
    row = {"id": 1, "body": PLACEHOLDER, "note": PLACEHOLDER}
    [read] = rows_of(contract_of(*fields, table=None), change("u", after=row))
    assert (read["unchanged"], read["text"], read["late"], read["_extra"]) == (["late", "text"], None, None, None)


def test_contract_names_another_placeholder() -> None:
    unchanged = {"name": "unchanged", "type": TEXTS, "from": "unchanged"}
    contract = contract_of(maybe("body", "string"), unchanged, table=None, placeholder="?")
    rows = rows_of(contract, *(change("u", after={"id": 1, "body": text}) for text in ("?", PLACEHOLDER)))
    assert [(row["unchanged"], row["body"]) for row in rows] == [(["body"], None), ([], PLACEHOLDER)]


def test_guide_page_messages_are_the_events_that_its_job_needs() -> None:
    section = GUIDE[GUIDE.index("### Worked example: large values") :]
    parts = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', section, flags=re.DOTALL))
    contract = read_contract(parts["schemas/articles.avsc"], file="schemas/articles.avsc")
    rows = rows_of(contract, *map(str.encode, parts["landing/articles"].splitlines()))
    assert [row["_reason"] for row in rows] == [None] * 4
    assert [row["unchanged"] for row in rows] == [[], [], ["body", "image", "tags"], ["tags"]]
    assert (rows[0]["image"], rows[3]["image"], rows[3]["tags"]) == (b"\x00\xff", b"\x01", None)


@pytest.mark.parametrize(
    ("lake", "field", "fault"),
    [
        ({}, {"type": "string", "from": "unchanged"}, "an array of strings"),
        ({}, {"type": TEXTS, "from": "unchanged.body"}, "an array of strings"),
        ({"placeholder": ""}, {}, "invalid placeholder: ''"),
        ({"placeholder": 1}, {}, "invalid placeholder: 1"),
        ({"envelope": None, "table": None, "placeholder": "x"}, {}, '"placeholder" needs an "envelope"'),
    ],
)
def test_wrong_declaration_of_unchanged_values_is_rejected(
    lake: dict[str, Any], field: dict[str, Any], fault: str
) -> None:
    with pytest.raises(DeclarationError, match=fault):
        contract_of({"name": "more", "type": "string"} | field, **lake)


def test_schema_is_recognized_only_if_just_a_payload_follows_it() -> None:
    contract = contract_of(maybe("at", {"type": "long", "logicalType": "timestamp-micros"}), table=None)
    decoder = MessageDecoder(Envelope(contract))
    kinds = [{"type": "int64", "name": f"io.debezium.time.{name}"} for name in ("Timestamp", "MicroTimestamp")]
    millis, micros = (schema_of(at=kind) for kind in kinds)
    payload = json.dumps(change("c", after={"id": 1, "at": 1_000}))
    texts = []
    for schema in map(json.dumps, (millis, micros)):
        texts += [f'{{"schema":{schema},"payload":{payload}}}', f' {{ "schema" : {schema} , "payload" : {payload} }} ']
        texts += [f'{{"payload":{payload},"schema":{schema}}}', f'{{"schema":{schema},"payload":{payload},"x":1}}']
        texts += [f'{{"schema":{schema},"payload":null}}', f'{{"schema":{schema},"payload":{payload}}}}}']
        texts += [f'{{"schema":{schema},"schema":{schema},"payload":{payload}}}']
        texts += [f'{{"schema":{{}},"schema":{schema},"payload":{payload}}}', f'{{"schema":{schema},"payload":{{}}}}']
    for text in [*texts, *texts]:
        careful = open_carefully(contract, text.encode())
        assert with_json_numbers(dict(decoder.open([text.encode()])[0].members)) == with_json_numbers(
            dict(careful.members)
        )
    found = [decoder.open([text.encode()])[0].members.get("at") for text in (texts[0], texts[len(texts) // 2])]
    assert found == [1_000_000, 1_000]


def test_schemas_beyond_the_cache_are_read_alike() -> None:
    contract = contract_of(maybe("v", "string"), table=None)
    payload = change("c", after={"id": 1, "v": "AQ=="})
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    texts = [
        json.dumps(with_schema(payload, schema_of(v=decimal | {"parameters": {"scale": str(scale)}}))).encode()
        for scale in range(80)
    ]
    digits = [change.members["v"] for change in both_ways(contract, *texts, *texts)]
    assert digits == 2 * ["1", *(f"0.{'0' * (scale - 1)}1" for scale in range(1, 80))]


HARD: Final = [
    b'{"op":"c","after":{"id":1,"id":1,"name":"a"},"source":{"table":"t"}}',
    b'{"op":"c","after":{"id":-0,"name":"a"},"source":{"table":"t"}}',
    b'{"op":"c","after":{"id":1,"name":"a","x":[-0,-0.0,-01]},"source":{"table":"t"}}',
    b'{"op":"c","after":{"id":1,"name":"a:b\\":c","x":[-0]}}',
    b'{"op":"c","after":{"id" :1,"name":"a\\":b","id":2}}',
    b'{"op":"c","after":{"id"\t:1,"name":"a\\":","id":2}}',
    b'{"op":"c","after":{"id":1,"name":"\\u0041\\ud800"}}',
    b'{"op":"c","after":{"id":1,"name":"\\uffff"}}',
    '{"op":"c","after":{"id":1,"name":"\uffff"}}'.encode(),
    '{"op":"c","after":{"id":1,"näme":"ö","x":{"ü":"ß"}}}'.encode(),
    b'{"op":"c","after":{"id":1,"name":"\xff"}}',
    b'{"op":"c","after":{"id":1,"name":"a","x":{"y":{"z":1,"z":1}}}}',
    b'{"op":"c","after":{"id":1,"name":"a","x":' + b"[" * 250 + b"]" * 250 + b"}}",
    b'{"op":"c","after":{"id":1,"name":"a","x":' + b"9" * 400 + b',"y":1e400,"z":1.10}}',
    b'{"op":"c","after":{"id":NaN}}',
    b'\xef\xbb\xbf{"op":"c","after":{"id":1,"name":"a"}}',
]


def test_quick_way_reads_like_the_careful_one() -> None:
    contract = contract_of(maybe("name", "string"), table=None)
    both_ways(contract, *HARD)
    dice = random.Random(7)
    whole = [as_text(message) for message, *_ in (*CONTROL, *BAD)] + HARD
    whole += [as_text(with_schema(change("u", after=ANNE), schema_of(name={"type": "string"})))]
    pieces = [*(bytes([byte]) for byte in b'":,{}[] \t\\0'), b"\\u00", b"-0", b'"id":', b"\xef\xbf\xbf"]
    mutated = []
    for text in dice.choices([text for text in whole if 0 < len(text) < 900], k=3000):
        at = dice.randrange(len(text))
        mutated.append(text[:at] + dice.choice(pieces) + text[at + dice.randrange(3) :])
    both_ways(contract, *mutated)


def test_envelope_and_its_decoder_pickle() -> None:
    envelope = Envelope(CONTRACT)
    message = change("c", after=ANNE)
    for copy in (pickle.loads(pickle.dumps(envelope)), envelope):
        assert copy.open(message) == envelope.open(message)
    decoder = MessageDecoder(envelope)
    decoder.open([as_text(with_schema(message, schema_of()))])
    assert pickle.loads(pickle.dumps(decoder)).open([as_text(message)]) == decoder.open([as_text(message)])


def test_members_are_absent_if_a_message_has_none() -> None:
    opened = Envelope(CONTRACT).open(change("d", before={"id": 1}))
    assert (opened.members["name"], opened.members["old_email"], opened.members["op"]) == (ABSENT, ABSENT, "d")
    assert opened.lacking == {"name", "email", "tier", "old_email"}
