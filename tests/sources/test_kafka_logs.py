"""Topics into logs and tables: keys, tombstones, rejected records with their places, one partition and eight."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.ingest.source_ingestion import give_up_lost
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Lakehouse
from tests.processes import PATIENCE, until
from tests.registry import registry
from tests.servers.kafka import Kafka, done
from tests.shop import contract, declare, empty, job
from tests.sources.test_kafka import is_recreated
from tests.sources.test_kafka_values import serialized

FIELDS = {
    "id": ("string", {"from": "kafka.key"}),
    "at": ("long", {"from": "kafka.offset"}),
    "gone": ("boolean", {"from": "kafka.tombstone"}),
    "email": "string?",
    "trace": (["null", "string"], {"default": None, "from": "kafka.headers.trace"}),
}
LATEST = 'Latest("id", sequence="_at", deletes="_gone")'


def customers(folder: Path, kafka: Kafka, topic: str, *, value: str = "json", lines: str = "") -> Lakehouse:
    """Return a project whose customers are a compacted topic; `lines` are added to its source."""
    returns = 'rows.selectExpr("id", "email", "trace", "at AS _at", "gone AS _gone")'
    jobs = {"customer": job("customer", LATEST, 'log("customers")', returns=returns)}
    house = declare(empty(folder), contract("customers", FIELDS, id=["at"]), jobs=jobs)
    (folder / "sources").mkdir()
    (folder / "sources/shop.toml").write_text(
        f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\n{lines}\n'
        f'[streams]\ncustomers = {{ topic = "{topic}", value = "{value}" }}\n'
    )
    return house


def logged(house: Lakehouse) -> list[dict[str, Any]]:
    query = 'SELECT id, "at", gone, email, trace, _source FROM t WHERE _bucket >= 0 ORDER BY _batch, _arrival'
    return list(duckdb_tables.rows(Log(house.settings, "customers").path, query))


def test_compacted_topic_becomes_a_table_and_unreadable_records_keep_their_place(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.send(topic, '{"email": "a@x"}', key="a", headers=[("trace", b"t1")])
    kafka.send(topic, '{"email": "b@x"}', key="b")
    kafka.transaction(topic, ['{"email": "never"}'], end="abort", key="a")
    kafka.send(topic, None, key="a")
    kafka.send(topic, b"\xff\x00", key="b")
    kafka.send(topic, '{"email": "b@y"}', key="b")
    house = customers(tmp_path / "shop", kafka, topic)
    house.run()
    assert [(row["id"], row["at"], row["gone"], row["email"], row["trace"]) for row in logged(house)] == [
        ("a", 0, False, "a@x", "t1"),
        ("b", 1, False, "b@x", None),
        ("a", 4, True, None, None),
        ("b", 6, False, "b@y", None),
    ]
    assert logged(house)[2]["_source"] == f"shop:{topic}/0:4"
    assert [(row["id"], row["email"]) for row in house.table("customer")] == [("b", "b@y")]
    [refused] = quarantined_records(house.settings)
    assert (refused.source, refused.reason) == (f"shop:{topic}/0:5", "unparseable")
    assert refused.raw.startswith("cannot be decoded: not valid UTF-8 at byte 0; its bytes: \\xff")


def test_undecodable_avro_is_rejected_and_the_stream_continues(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = kafka.topic()
    schema = {"type": "record", "name": "C", "fields": [{"name": "email", "type": "string"}]}
    with registry() as running:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        with SchemaRegistryClient({"url": running.url}) as client:
            good = serialized(client, schema, {"email": "a@x"})
        kafka.send(topic, good, good[:4], good[:-1], b"\x00\x00\x00\x00\x63" + good[5:], good, key="a")
        house = customers(tmp_path / "shop", kafka, topic, value="avro")
        toml = tmp_path / "shop/sources/shop.toml"
        toml.write_text(f'{toml.read_text()}\n[registry]\nurl = "{running.url}"\n')
        counts = ingest(house.settings, lambda: spark, load_contracts(house.settings))
    assert (counts["customers"].accepted, counts["customers"].quarantined) == (2, 3)
    assert [row["at"] for row in logged(house)] == [0, 4]
    assert [row.source for row in quarantined_records(house.settings)] == [f"shop:{topic}/0:{at}" for at in (1, 2, 3)]
    reasons = ["not in the wire format", "not of the schema 1", "the registry has no schema 99"]
    assert all(why in row.raw for why, row in zip(reasons, quarantined_records(house.settings), strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_compacted_table_is_equal_for_one_and_eight_partitions_in_any_deliveries(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    changes = [
        (f"k{random.randrange(30)}", None if random.random() < 0.2 else json.dumps({"email": f"{n}@x"}))
        for n in range(400)
    ]
    found = []
    for partitions in (1, 8):
        topic = kafka.topic(partitions=partitions)
        producer = kafka.producer()
        for key, value in changes:
            producer.produce(topic, value, key=key, partition=crc32(key.encode()) % partitions)
        assert producer.flush(PATIENCE) == 0
        lines = f"records = {random.randint(90, 400)}"
        house = customers(tmp_path / f"shop{partitions}", kafka, topic, lines=lines)
        house.run()
        found.append(sorted((row["id"], row["email"]) for row in house.table("customer")))
    latest = {key: value and json.loads(value)["email"] for key, value in changes}
    assert found[0] == found[1] == sorted((key, email) for key, email in latest.items() if email is not None)


def with_more_partitions(kafka: Kafka, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets to export it

    done(kafka.admin.create_partitions([NewPartitions(topic, partitions)]))
    until(lambda: len(kafka.admin.list_topics(topic).topics[topic].partitions) == partitions)


def test_newest_record_of_a_key_wins_in_recreated_topics_and_new_partitions(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Offsets restart, are equal in two partitions, and are part of the id and of the sequence."""
    topic = kafka.topic()
    house = customers(tmp_path / "shop", kafka, topic)
    kafka.send(topic, *(f'{{"email": "first{n}"}}' for n in range(4)), key="a")
    kafka.send(topic, '{"email": "stays"}', key="b")
    house.run()
    done(kafka.admin.delete_topics([topic]))
    until(lambda: is_recreated(kafka, topic))
    kafka.send(topic, *(f'{{"email": "second{n}"}}' for n in range(2)), key="a")
    contracts = load_contracts(house.settings)
    with pytest.raises(DeclarationError, match="was recreated"):
        ingest(house.settings, lambda: spark, contracts)
    give_up_lost(house.settings, "shop", contracts)
    house.run()
    emails = [{row["id"]: row["email"] for row in house.table("customer")}]
    for partitions in (2, 4):
        with_more_partitions(kafka, topic, partitions)
        kafka.send(topic, f'{{"email": "of {partitions}"}}', key="a", partition=partitions // 2)
        house.run()
        emails.append({row["id"]: row["email"] for row in house.table("customer")})
    assert emails == [{"a": email, "b": "stays"} for email in ("second1", "of 2", "of 4")]
    assert not [*quarantined_records(house.settings)]
    raised = [(row["at"] >> 48, row["at"] % (1 << 48)) for row in logged(house)]
    assert raised == [*((0, n) for n in range(5)), (1, 0), (1, 1), (2, 0), (3, 0)]
