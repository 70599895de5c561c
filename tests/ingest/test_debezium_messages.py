"""Debezium messages: events, control messages, rejections, and every encoding."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contracts, read_contract
from lake.errors import DeclarationError
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.ingest.replay import replay
from lake.store import log_rows, quarantine
from lake.store.log import Log
from tests.store.events import Land

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


def nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
CUSTOMER: dict[str, Any] = {
    "type": "record",
    "name": "customers",
    "doc": "A change of a customer.",
    "lake": {
        "envelope": "debezium",
        "table": "inventory.customers",
        "key": ["id"],
        "id": ["lsn", "op"],
        "broadcast": "op = 't'",
        "buckets": 2,
    },
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": "string"},
        {"name": "email", "type": nullable("string"), "default": None},
        {"name": "tier", "type": nullable("string"), "default": "basic"},
        {"name": "op", "type": "string", "from": "op"},
        {"name": "lsn", "type": nullable("long"), "from": "source.lsn"},
        {"name": "old_email", "type": nullable("string"), "from": "before.email"},
        {"name": "snapshot", "type": nullable("string"), "from": "source.snapshot"},
        {"name": "transaction_id", "type": nullable("string"), "from": "transaction.id"},
        {"name": "seen_at", "type": nullable(MILLIS), "from": "ts_ms", "transport": True},
    ],
}
SOURCE = {"db": "shop", "schema": "inventory", "table": "customers", "snapshot": "false"}


def declare(project: Settings, **changes: Any) -> None:
    """Write the contract, with its `lake` object changed by `lake`."""
    contract = CUSTOMER | changes | {"lake": CUSTOMER["lake"] | changes.get("lake", {})}
    project.path("schemas/customers.avsc").write_text(json.dumps(contract, indent=1))


def change(op: str, lsn: int, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    source = SOURCE | {"lsn": lsn} | more.pop("source", {})
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1709280000000} | more


def with_schema(payload: Any, schema: Any = None) -> dict[str, Any]:
    return {"schema": schema, "payload": payload}


def take(project: Settings, spark: SparkSession) -> BatchCounts:
    counts = ingest(project, lambda: spark, load_contracts(project), now=NOW)["customers"]
    assert check_log(project, "customers").faults == []
    return counts


def events(project: Settings, spark: SparkSession) -> list[dict[str, Any]]:
    """Return the events of the log in the order of their sources."""
    contract = load_contracts(project)["customers"]
    rows = Log(project, contract.name).read(spark, contract, upto=Log(project, "customers").head().batch)
    return [row.asDict(recursive=True) for row in rows.orderBy("_batch", "_source").collect()]


CONTROL: list[Any] = [
    "null",
    with_schema(None),
    {"status": "BEGIN", "id": "571", "ts_ms": 1, "event_count": None, "data_collections": None},
    with_schema({"status": "END", "id": "571", "event_count": 2, "data_collections": []}),
    {"source": SOURCE, "databaseName": "shop", "ddl": "ALTER TABLE customers ADD tier text", "tableChanges": []},
    with_schema({"source": SOURCE, "historyRecord": "{}"}),
    {"ts_ms": 1709280000000},
    with_schema({"ts_ms": 1709280000000}),
    {"op": "m", "ts_ms": 1, "source": SOURCE, "message": {"prefix": "p", "content": "aGk="}},
]
ANNE = {"id": 1, "name": "Anne", "email": "a@b.c"}
BAD: list[tuple[Any, str, str]] = [
    (json.dumps(change("c", 9, after=ANNE))[:-9], "unparseable", "not one JSON object"),
    ('{"op": "c", "op": "d"}', "unparseable", "not one JSON object: duplicate field name"),
    (ANNE, "envelope", "no op, and no control message either"),
    (with_schema(ANNE), "envelope", "no op, and no control message either"),
    (change("x", 9, after=ANNE), "envelope", "op x is none of c, r, u, d, t, m"),
    (change("c", 9), "envelope", "op c without a row in after"),
    (change("u", 9, before=ANNE), "envelope", "op u without a row in after"),
    (change("d", 9, after=ANNE), "envelope", "op d without a row in before"),
    (change("c", 9, after="Anne"), "envelope", "op c without a row in after"),
    (change("c", 9, after=ANNE, source={"table": "orders"}), "other table", "shop.inventory.orders"),
    ({"op": "c", "after": ANNE}, "other table", "source names no table"),
    (change("c", 9, after=ANNE | {"id": None}), "missing field", "id"),
    (change("d", 9, before=ANNE | {"id": None}), "missing field", "id"),
    (change("u", 9, after={"id": 1}), "missing field", "name"),
    (with_schema(change("c", 9, after=ANNE | {"id": "one"})), "wrong type", "id: one is not int"),
]


def test_row_comes_from_its_image_and_facts_from_the_envelope(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    declare(project)
    land(
        "customers",
        "a.jsonl",
        change("r", 1, after=ANNE, source={"snapshot": "last"}),
        with_schema(change("u", 2, ANNE, ANNE | {"email": None, "tier": None}, transaction={"id": "571"})),
        with_schema(change("u", 3, {"id": 1}, ANNE | {"since": "2024", "deep": {"a": [1, "x"]}}), {"type": "struct"}),
        change("d", 4, before={"id": 1}),
        change("t", 5),
    )
    assert take(project, spark) == BatchCounts(1, read=5, accepted=5)
    read, update, beyond, delete, truncate = events(project, spark)
    assert (read["name"], read["email"], read["tier"], read["snapshot"]) == ("Anne", "a@b.c", "basic", "last")
    assert (update["email"], update["old_email"], update["tier"], update["lsn"]) == (None, "a@b.c", None, 2)
    assert (update["transaction_id"], read["transaction_id"], read["_extra"]) == ("571", None, None)
    assert json.loads(beyond["_extra"]) == {"since": "2024", "deep": {"a": [1, "x"]}}
    assert (delete["id"], delete["name"], delete["op"]) == (1, None, "d")
    assert (truncate["id"], truncate["_bucket"]) == (None, log_rows.BROADCAST)
    assert read["seen_at"] == datetime(2024, 3, 1, 8)


def test_control_messages_are_counted_and_wrong_messages_quarantined(
    project: Settings, spark: SparkSession, land: Land
) -> None:
    declare(project)
    messages = [*CONTROL, *(message for message, _, _ in BAD), change("c", 1, after=ANNE)]
    land("customers", "a.jsonl", *messages)
    expected = BatchCounts(1, read=len(messages), accepted=1, quarantined=len(BAD), control=len(CONTROL))
    assert take(project, spark) == expected
    rejected = [*quarantine.rejected(project, "customers", upto=1)]
    for line, (row, (message, reason, detail)) in enumerate(zip(rejected, BAD, strict=True), len(CONTROL) + 1):
        assert (row.reason, row.detail, row.source) == (reason, detail, f"customers/a.jsonl:{line}")
        assert row.raw == (message if isinstance(message, str) else json.dumps(message))


@pytest.mark.long
def test_truncate_without_a_broadcast_is_quarantined(project: Settings, spark: SparkSession, land: Land) -> None:
    declare(project, lake={"broadcast": None, "table": "customers"})
    text = project.path("schemas/customers.avsc").read_text().replace('"broadcast": null,', "")
    project.path("schemas/customers.avsc").write_text(text)
    land("customers", "a.jsonl", change("t", 1), change("c", 2, after=ANNE, source={"table": "old_customers"}))
    assert take(project, spark) == BatchCounts(1, read=2, quarantined=2)
    reasons = [(row.reason, row.detail) for row in quarantine.rejected(project, "customers", upto=1)]
    assert reasons == [
        ("envelope", "a truncate, and the contract declares no broadcast"),
        ("other table", "shop.inventory.old_customers"),
    ]
    project.path("schemas/customers.avsc").write_text(text.replace('"table": "customers",', ""))
    done = replay(project, lambda: spark, stream="customers", now=NOW)["customers"]
    assert done == BatchCounts(2, read=1, accepted=1)
    assert check_log(project, "customers").faults == []


@pytest.mark.long
@pytest.mark.parametrize("identity", [["lsn", "op"], "content"])
def test_message_sent_again_is_a_duplicate(project: Settings, spark: SparkSession, land: Land, identity: Any) -> None:
    declare(project, lake={"id": identity})
    first = [change("c", 1, after=ANNE), change("u", 2, ANNE, ANNE | {"email": "x@y.z"}), change("d", 2, ANNE)]
    again = [message | {"ts_ms": 1709290000000} for message in first]
    land("customers", "a.jsonl", *first)
    assert take(project, spark) == BatchCounts(1, read=3, accepted=3)
    land("customers", "b.jsonl", *map(with_schema, again))
    assert take(project, spark) == BatchCounts(2, read=3, duplicates=3)
    land("customers", "c.jsonl", change("c", 1, after=ANNE | {"name": "Bob"}))
    counts = take(project, spark)
    assert (counts.accepted, counts.quarantined) == ((1, 0) if identity == "content" else (0, 1))


def unscaled(number: int) -> str:
    """Return a decimal as Kafka Connect writes it: the unscaled value in two's complement, as base64."""
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, signed=True)).decode()


DAY, DAYS = date(2020, 7, 17), 18460


@pytest.mark.long
def test_column_has_values_from_its_first_change_on(project: Settings, spark: SparkSession, land: Land) -> None:
    declare(project)
    later = {"balance": unscaled(1050), "since": DAYS}
    land("customers", "a.jsonl", change("c", 1, after=ANNE), change("u", 2, after=ANNE | later))
    take(project, spark)
    new = [
        {"name": "balance", "type": nullable(decimal(8, 2)), "default": None, "encoding": "base64"},
        {"name": "since", "type": nullable(DATE), "default": None},
    ]
    declare(project, fields=[*CUSTOMER["fields"], *new])
    land("customers", "b.jsonl", change("u", 3, after=ANNE | later))
    take(project, spark)
    found = [(row["balance"], row["since"]) for row in events(project, spark)]
    assert found == [(None, None), (Decimal("10.50"), DAY), (Decimal("10.50"), DAY)]


@pytest.mark.long
def test_document_over_many_lines_is_one_message(project: Settings, spark: SparkSession, land: Land) -> None:
    declare(project)
    land("customers", "a.json", json.dumps(with_schema(change("c", 1, after=ANNE)), indent=2))
    land("customers", "b.json", json.dumps(change("u", 2, after=ANNE)), "null")
    assert take(project, spark) == BatchCounts(1, read=3, accepted=2, control=1)
    assert [row["_source"] for row in events(project, spark)] == ["customers/a.json:1", "customers/b.json:1"]


@pytest.mark.parametrize(
    ("lake", "field", "told"),
    [
        ({"envelope": "debezum"}, {}, "did you mean 'debezium'"),
        ({"envelope": 1}, {}, "unknown envelope 1"),
        ({"table": 5}, {}, "invalid table: 5"),
        ({"tabel": "x"}, {}, "did you mean 'table'"),
        ({}, {"from": "sorce.lsn"}, "did you mean 'source'"),
        ({}, {"from": ["op"]}, "invalid path: \\['op'\\]"),
        ({}, {"from": "source."}, "a path such as"),
        ({}, {"encoding": "base64"}, "encodings are for decimals, times and bytes"),
        ({}, {"type": MILLIS, "encoding": "milis"}, "did you mean 'millis'"),
        ({}, {"frm": "op"}, "did you mean 'from'"),
    ],
)
def test_wrong_contract_is_reported_with_its_line(lake: dict[str, Any], field: dict[str, Any], told: str) -> None:
    fields = [*CUSTOMER["fields"], {"name": "more", "type": "string"} | field]
    text = json.dumps(CUSTOMER | {"lake": CUSTOMER["lake"] | lake, "fields": fields}, indent=1)
    with pytest.raises(DeclarationError, match=told) as error:
        read_contract(text, file="schemas/customers.avsc")
    assert "schemas/customers.avsc:" in str(error.value)


def test_contract_without_an_envelope_rejects_its_options() -> None:
    facts = {"key": ["id"], "table": "customers"}
    text = json.dumps(CUSTOMER | {"lake": facts}, indent=1)
    with pytest.raises(DeclarationError, match='"table" needs an "envelope"'):
        read_contract(text, file="schemas/customers.avsc")
