"""Values in the wire format by Confluent's serializers, decoded to the text that contracts read."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, localcontext
from random import Random
from typing import Any

import pytest

from lake.connect.kafka.source.options import KafkaOptions, KafkaTopic
from lake.connect.kafka.source.ranges import TopicOffsets
from lake.connect.kafka.source.reader import TopicReader
from lake.connect.kafka.source.values import Decode, Headers, SchemaRegistry, UndecodableError, decoder, of_json
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, Unavailable
from tests import registry as stand_in
from tests.processes import free_port
from tests.registry import Registry

Message = pytest.importorskip("confluent_kafka").Message

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "note", "type": ["null", "string", "double"]},
        {"name": "parts", "type": {"type": "array", "items": {"type": "map", "values": "bytes"}}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.orders",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "int"},
                        {
                            "name": "price",
                            "type": {
                                "type": "bytes",
                                "scale": 2,
                                "precision": 10,
                                "connect.name": "org.apache.kafka.connect.data.Decimal",
                                "logicalType": "decimal",
                            },
                        },
                        {"name": "born", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
                        {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
                    ],
                    "connect.name": "shop.orders.Value",
                },
            ],
            "default": None,
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with stand_in.registry() as running:
        yield running


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[Any]:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": registry.url}) as opened:
        yield opened


def serialized(client: Any, schema: Any, value: Any, **said: Any) -> bytes:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    headers = said.pop("headers", [])
    text = schema if not isinstance(schema, dict) else json.dumps(schema)
    serializer = AvroSerializer(client, text, conf=said or None)
    found: bytes = serializer(value, SerializationContext("orders", MessageField.VALUE, headers))
    return found


@contextmanager
def open_decoder(registry: Registry, **said: str) -> Iterator[Decode]:
    given = KafkaOptions("shop", "sources/shop.toml", "x:1", (), seconds=5, registry={"url": registry.url} | said)
    with closing(SchemaRegistry(given)) as opened:
        yield decoder("avro", opened, is_key=False)


def decode_once(registry: Registry, value: bytes, headers: Headers = (), **said: str) -> str:
    with open_decoder(registry, **said) as decode:
        return decode(value, headers)


def an_order(random: Random, depth: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an order as the serializer takes it, and as a contract reads it."""
    digits = random.choice([random.randint(-9, 9), random.randint(-(10**37), 10**37)])
    moment = datetime(1970, 1, 1) + timedelta(microseconds=random.randint(-(2**55), 2**55))
    day = random.choice([None, date(1, 1, 1) + timedelta(days=random.randrange(3_000_000))])
    note = random.choice([None, 'é \x00"', 0.1, "", 1e300])
    part = {"k": random.randbytes(random.randrange(4))}
    following = an_order(random, depth - 1) if depth and random.random() < 0.5 else (None, None)
    amount = Decimal(digits).scaleb(-9)
    local = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    given = {"id": digits % 2**62, "amount": amount, "at": moment.replace(tzinfo=UTC), "day": day, "local": local}
    given |= {"note": note, "parts": [part], "next": following[0]}
    sign = "-" if digits < 0 else ""
    whole, part_ = divmod(abs(digits), 10**9)
    read = {"id": digits % 2**62, "amount": f"{sign}{whole}.{part_:09d}", "at": f"{moment.isoformat()}+00:00"}
    read |= {"day": day and day.isoformat(), "local": local.isoformat(), "note": note}
    read |= {"parts": [{"k": base64.b64encode(part["k"]).decode()}], "next": following[1]}
    return given, read


@pytest.mark.turns(10)
@pytest.mark.parametrize("seed", range(30))
def test_avro_is_decoded_with_every_digit_and_microsecond(registry: Registry, client: Any, seed: int) -> None:
    with localcontext(Context(prec=60)):
        given, read = an_order(Random(seed))
        value = serialized(client, ORDER, given)
    assert value[0] == 0
    assert json.loads(decode_once(registry, value)) == read


def test_decoder_requests_schemas_once_and_decodes_each_record_by_its_own(registry: Registry, client: Any) -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    second = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": "x"}],
    }
    values = [serialized(client, first, {"a": 1}), serialized(client, second, {"a": 2, "b": "y"})] * 50
    asked = registry.asked
    with open_decoder(registry) as decode:
        assert [json.loads(decode(value, ())) for value in values] == [{"a": 1}, {"a": 2, "b": "y"}] * 50
    assert registry.asked - asked == 2


def test_decoder_resolves_schema_references(registry: Registry, client: Any) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    money = {"type": "record", "name": "Money", "namespace": "m", "fields": [{"name": "cents", "type": "long"}]}
    both = {
        "type": "record",
        "name": "Two",
        "fields": [{"name": "a", "type": "m.Money"}, {"name": "b", "type": "m.Money"}],
    }
    client.register_schema("money", Schema(json.dumps(money), "AVRO"))
    whole = Schema(json.dumps(both), "AVRO", [SchemaReference("m.Money", "money", 1)])
    value = serialized(client, whole, {"a": {"cents": 1}, "b": {"cents": 2}})
    assert json.loads(decode_once(registry, value)) == {"a": {"cents": 1}, "b": {"cents": 2}}


def test_decoder_reads_a_schema_id_from_a_header(registry: Registry, client: Any) -> None:
    from confluent_kafka.schema_registry import header_schema_id_serializer

    headers: list[tuple[str, bytes]] = []
    schema = {"type": "record", "name": "H", "fields": [{"name": "a", "type": "int"}]}
    given = {"headers": headers, "schema.id.serializer": header_schema_id_serializer}
    value = serialized(client, schema, {"a": 7}, **given)
    assert value == b"\x0e"
    assert json.loads(decode_once(registry, value, headers)) == {"a": 7}


def test_debezium_message_has_times_and_decimals_as_text(registry: Registry, client: Any) -> None:
    row = {"id": 1, "price": Decimal("-12.50"), "born": 19_000, "at": 1_700_000_000_123_456}
    value = serialized(client, ENVELOPE, {"before": None, "after": row, "op": "c", "ts_ms": 5})
    assert json.loads(decode_once(registry, value)) == {
        "before": None,
        "after": {"id": 1, "price": "-12.50", "born": "2022-01-08", "at": "2023-11-14T22:13:20.123456"},
        "op": "c",
        "ts_ms": 5,
    }


def test_decoder_removes_the_wire_format_prefix_of_json(registry: Registry, client: Any) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    schema = json.dumps({"title": "T", "type": "object", "properties": {"a": {"type": "integer"}}})
    serializer = JSONSerializer(schema, client)
    value = serializer({"a": 1}, SerializationContext("t", MessageField.VALUE))
    assert value is not None
    assert value[:1] == b"\x00"
    assert json.loads(of_json(value)) == {"a": 1}
    assert of_json(b'{"a": 1}') == '{"a": 1}'
    assert of_json(b"\x01" + b"g" * 16 + b"{}") == "{}"


ANY = {"type": "record", "name": "Any", "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "long"}]}
SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no prefix": (lambda value: value[5:], "not in the wire format"),
    "nothing": (lambda _: b"", "not in the wire format"),
    "a short prefix": (lambda value: value[:3], "not in the wire format"),
    "cut off": (lambda value: value[:-1], "not of the schema"),
    "more bytes": (lambda value: value + b"\x00\x01", "2 bytes more than the schema"),
    "an unknown schema": (lambda value: b"\x00" + struct.pack(">I", 999) + value[5:], "has no schema 999"),
    "a text that is no UTF-8": (lambda value: value[:5] + b"\x02\xff\x02", "not of the schema"),
    "a negative length": (lambda value: value[:5] + b"\x01\x02", "not of the schema"),
    "a length beyond": (lambda value: value[:5] + b"\xfe\xff\xff\xff\x0f\x02", "not of the schema"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_undecodable_value_is_rejected_with_its_reason(registry: Registry, client: Any, case: str) -> None:
    spoil, why = SPOILT[case]
    with pytest.raises(UndecodableError, match=why):
        decode_once(registry, spoil(serialized(client, ANY, {"s": "abc", "n": 300})))


@pytest.mark.turns(20)
@pytest.mark.parametrize("seed", range(60))
def test_corrupt_bytes_never_stop_the_stream(registry: Registry, client: Any, seed: int) -> None:
    random = Random(seed)
    value = bytearray(
        serialized(client, ORDER if seed % 2 else ANY, an_order(random)[0] if seed % 2 else {"s": "a", "n": 1})
    )
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(value))
        value[at] = random.randrange(256)
        if random.random() < 0.3:
            del value[at]
    with suppress(UndecodableError):
        json.loads(decode_once(registry, bytes(value)))


def test_unsupported_schema_is_reported(registry: Registry) -> None:
    for schema, why in (
        ({"schema": "{}", "schemaType": "JSON", "guid": "g"}, "its schema is JSON, not Avro"),
        ({"schema": '{"type": "none"}', "guid": "g"}, "its schema cannot be read"),
        ({"schema": '{"type": "array", "items": "null"}', "guid": "g"}, "arrays of values without a size"),
    ):
        registry.schemas.append(schema)
        with pytest.raises(UndecodableError, match=why):
            decode_once(registry, b"\x00" + struct.pack(">I", len(registry.schemas)) + b"\x00")


@pytest.mark.slow
def test_silent_registry_is_unavailable_and_a_refusing_registry_is_reported(
    registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = serialized(client, ANY, {"s": "abc", "n": 300})
    with pytest.raises(Unavailable, match="the schema registry does not answer"):
        decode_once(registry, value, (), url=f"http://127.0.0.1:{free_port()}")
    secret = "reader:a-secret"
    monkeypatch.setattr(registry, "credentials", f"Basic {base64.b64encode(secret.encode()).decode()}")
    said = {"basic.auth.user.info": FromEnvironment("reader:another")}
    with pytest.raises(DeclarationError, match="authentication failed") as told:
        decode_once(registry, value, (), **said)
    assert "another" not in str(told.value)
    said = {"basic.auth.user.info": FromEnvironment(secret)}
    assert json.loads(decode_once(registry, value, (), **said)) == {"s": "abc", "n": 300}
    with pytest.raises(DeclarationError, match=r"the registry's client refuses a setting: .*ssl\.sertificate"):
        decode_once(registry, value, (), **{"ssl.sertificate": "x"})


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("7.10", "7.10"),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
        ('"7"', "7"),
        ('"\\u00e4"', "ä"),
        ("null", None),
        ('{"b": 1}', '{"b": 1}'),
        ('[1.50, "1.50", 1e400]', '[1.50, "1.50", 1e400]'),
    ],
)
def test_field_of_a_key_is_text_or_json_with_all_digits(value: str, fact: str | None) -> None:
    topic = KafkaTopic("orders", "orders", "json", "json", facts=frozenset({"kafka.key.a", "kafka.key.z"}))
    reader = TopicReader(topic, TopicOffsets("id", {}), of_json, of_json)
    key = f' {{"x": {{"a": 0}}, "a": {value}}}\n'.encode()
    message = Message(topic="orders", partition=0, offset=3, key=key, value=b"{}", headers=[])
    [text], _, facts = reader.columns([message], 0)
    assert text.as_py() == "{}"
    assert {name: array.to_pylist() for name, array in facts.items()} == {"kafka.key.a": [fact], "kafka.key.z": [None]}


@pytest.mark.parametrize("key", ["[1]", "7", "{", "[" * 100_000])
def test_key_that_is_no_object_rejects_its_record(key: str) -> None:
    topic = KafkaTopic("orders", "orders", "json", "json", facts=frozenset({"kafka.key.a"}))
    message = Message(topic="orders", partition=0, offset=3, key=key.encode(), value=b"{}", headers=[])
    [text], _, _ = TopicReader(topic, TopicOffsets("id", {}), of_json, of_json).columns([message], 0)
    assert text.as_py().startswith("cannot be decoded: kafka.key.a: not ")
