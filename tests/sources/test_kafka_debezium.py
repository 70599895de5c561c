"""Debezium's messages in Avro, keys and values by Confluent's serializers: the table of the database and its
history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.engine.verify import verify_all
from lake.ingest.replay import quarantined_records
from lake.ops import pipeline
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Lakehouse
from tests.processes import PATIENCE
from tests.registry import registry
from tests.servers.kafka import Kafka
from tests.shop import contract, declare, empty, job

ROW: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "int"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {
        "name": "price",
        "type": {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": 10,
            "scale": 2,
            "connect.name": "org.apache.kafka.connect.data.Decimal",
        },
    },
]
WIDER: Final[list[dict[str, Any]]] = [*ROW, {"name": "town", "type": ["null", "string"], "default": None}]
KEY: Final = {"type": "record", "name": "Key", "namespace": "pg.public.shops", "fields": ROW[:1]}
FIELDS: Final[dict[str, Any]] = {
    "id": "int",
    "name": "string?",
    "price": "decimal(10, 2)?",
    "town": "string?",
    "op": ("string", {"from": "op"}),
    "lsn": ("long", {"from": "source.lsn"}),
    "committed_at": (["null", {"type": "long", "logicalType": "timestamp-millis"}], {"from": "source.ts_ms"}),
}
OPTIONS: Final = """ deletes="_op = 'd'", truncate="_op = 't'" """
RETURNS: Final = 'rows.selectExpr("id", "name", "price", "town", "lsn AS _lsn", "committed_at AS _at", "op AS _op")'
JOBS: Final = {
    "shop": f'Latest("id", sequence="_lsn", {OPTIONS})',
    "shop_version": f'History("id", sequence="_lsn", dated="_at", {OPTIONS})',
}
MILLIS: Final = 1_700_000_000_000


def envelope(row: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema that Debezium registers for a table of these columns."""
    value = {"type": "record", "name": "Value", "fields": row, "connect.name": "pg.public.shops.Value"}
    source = [
        {"name": "connector", "type": "string"},
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": ["null", "string"], "default": None},
        {"name": "table", "type": "string"},
    ]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "pg.public.shops",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "pg.public.shops.Envelope",
    }


@dataclass
class Connector:
    """Connector that sends a table's changes as Debezium does, and records the table and the number of versions per
    row.
    """

    kafka: Kafka
    topic: str
    dice: Random
    url: str
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    lsn: int = 1000
    sent: int = 0
    row: list[dict[str, Any]] = field(default_factory=lambda: ROW)

    def change(self, count: int) -> None:
        """Make `count` random changes."""
        for _ in range(count):
            key, made = self.dice.randint(1, 25), self._row()
            if key not in self.rows:
                self._put(key, "r" if self.lsn < 1010 else "c", after=made | {"id": key})
            elif self.dice.random() < 0.3:
                self._put(key, "d", before={"id": key, "name": None, "price": made["price"]})
                self.produce(key, None)
            else:
                self._put(key, "u", after=made | {"id": key})

    def truncate(self) -> None:
        """Empty the table: a message without a key."""
        self.rows.clear()
        self.produce(None, self._message("t"))

    def _row(self) -> dict[str, Any]:
        made: dict[str, Any] = {"name": self.dice.choice(["Ann", 'Ben "é', None]), "price": Decimal(self.sent) / 100}
        return made | ({"town": self.dice.choice(["York", None])} if self.row is WIDER else {})

    def _put(self, key: int, op: str, before: Any = None, after: Any = None) -> None:
        self.produce(key, self._message(op, before, after))
        if after is None:
            del self.rows[key]
        else:
            self.rows[key] = {"town": None} | after
            self.versions[key] = self.versions.get(key, 0) + 1

    def _message(self, op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
        self.lsn += self.dice.randint(1, 5)
        source = {"connector": "postgresql", "lsn": self.lsn, "ts_ms": MILLIS + self.lsn, "snapshot": None}
        return {"op": op, "before": before, "after": after, "source": source | {"table": "shops"}, "ts_ms": self.lsn}

    def produce(self, key: int | None, value: Any) -> None:
        """Send a record, or a tombstone if `value` is None."""
        self.sent += 1
        self._producer.produce(
            self.topic,
            None if value is None else self._serialized(value, is_key=False),
            key=None if key is None else self._serialized({"id": key}, is_key=True),
        )

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE) == 0

    def __enter__(self) -> Connector:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._producer = self.kafka.producer()
        self._client = SchemaRegistryClient({"url": self.url})
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _serialized(self, value: Any, *, is_key: bool) -> bytes:
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        schema = json.dumps(KEY if is_key else envelope(self.row))
        about = SerializationContext(self.topic, MessageField.KEY if is_key else MessageField.VALUE)
        found: bytes = AvroSerializer(self._client, schema)(value, about)
        return found


@pytest.fixture
def connector(kafka: Kafka) -> Iterator[Connector]:
    with registry() as running, Connector(kafka, kafka.topic(partitions=3), Random(5), running.url) as connector:
        yield connector


def house_of(connector: Connector, folder: Path) -> Lakehouse:
    about: dict[str, Any] = {"id": ["lsn", "op"], "envelope": "debezium", "broadcast": "op = 't'", "table": "shops"}
    settings = empty(folder / "shop")
    jobs = {name: job(name, kind, 'log("shops")', returns=RETURNS) for name, kind in JOBS.items()}
    declare(settings, contract("shops", FIELDS, **about), jobs=jobs)
    (settings.project / "sources").mkdir()
    (settings.project / "sources/cdc.toml").write_text(
        f'kind = "kafka"\nbootstrap = "{connector.kafka.bootstrap}"\nrecords = 60\n'
        f'[registry]\nurl = "{connector.url}"\n'
        f'[streams]\nshops = {{ topic = "{connector.topic}", value = "avro", key = "avro" }}\n'
    )
    return Lakehouse(settings.project, folder)


def test_debezium_table_in_avro_equals_the_database_with_its_history(
    connector: Connector, spark: SparkSession, tmp_path: Path
) -> None:
    house = house_of(connector, tmp_path)
    for changes in (120, 0, 80):
        connector.change(changes) if changes else connector.truncate()
        connector.flush()
        pipeline.run(house.settings, lambda: spark, print)
        check_unchanged(house, connector)
    connector.row = WIDER
    connector.change(60)
    connector.flush()
    pipeline.run(house.settings, lambda: spark, print)
    check_unchanged(house, connector)
    assert {row["town"] for row in house.table("shop")} == {"York", None}
    log = Log(house.settings, "shops")
    ops = [row["op"] for row in duckdb_tables.rows(log.path, "SELECT op FROM t")]
    assert {*ops} >= {"r", "c", "u", "d"}
    assert not [*quarantined_records(house.settings)]
    assert {one.verdict for one in verify_all(lambda: spark, house.project, on_progress=lambda _: None)} == {
        "identical"
    }


def check_unchanged(house: Lakehouse, connector: Connector) -> None:
    """Assert that rows are equal and that every version is there, deleted ones closed."""
    columns = ("id", "name", "price", "town")
    assert {row["id"]: {name: row[name] for name in columns} for row in house.table("shop")} == connector.rows
    versions = house.table("shop_version")
    current = {row["id"]: {name: row[name] for name in columns} for row in versions if row["is_current"]}
    assert current == connector.rows
    counts: dict[int, int] = {}
    for row in versions:
        counts[row["id"]] = counts.get(row["id"], 0) + 1
    assert counts == connector.versions
