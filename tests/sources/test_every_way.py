"""One table of values through Kafka, HTTP, decisions and PostgreSQL: values, reasons and `_extra` as stated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import httpx
import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from tests.ingest.every_way import Outcome, Way, differences, is_csv, is_unicode, land, schema
from tests.ingest.test_renames import lake
from tests.intake import Serving, serving
from tests.records.table import PLAIN, Case, cases, table_contract
from tests.registry import Registry, registry
from tests.servers.kafka import Kafka
from tests.shop import declare
from tests.sources.shop import VARIABLE, Shop
from tests.sources.test_kafka_values import serialized

JOB: Final = """
from lake import Fold, log, table


def count(state, event):
    \"\"\"Take all.\"\"\"
    return {"events": (state["events"] or 0) + 1}


@table(Fold("id", state="events int", step=count), log("decided"))
def kept(decided):
    \"\"\"The number of events.\"\"\"
    return decided.select("id")
"""
SOURCES: Final = (
    """
kind = "http"
streams = ["posted", "decided"]
decide.decided = "kept"
""",
    """
kind = "kafka"
bootstrap = "{}"
registry.url = "{}"
[streams]
messages = {{ topic = "{}" }}
avro = {{ topic = "{}", value = "avro" }}
""",
)


def post_each(serving: Serving, stream: str, table: Iterable[Case], query: str = "") -> dict[int, Outcome]:
    """Post each record as a request of its own; return why the server refuses some."""
    refused = {}
    with httpx.Client(base_url=serving.url, headers=serving.allowed) as client:
        for case in table:
            headers = {"content-type": "application/json", "idempotency-key": str(case.number)}
            answer = client.post(f"/streams/{stream}{query}", content=case.text.encode(), headers=headers)
            if answer.status_code != 202:
                [error] = answer.json()["errors"]
                refused[case.number] = error["reason"], error["detail"]
    return refused


def send_avro(kafka: Kafka, topic: str, registry: Registry, table: Iterable[Case]) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    with SchemaRegistryClient({"url": registry.url}) as client:
        for case in table:
            kafka.send(topic, serialized(client, schema(case.name), {"id": case.number, case.name: case.value}))


@pytest.mark.http
def test_kafka_posts_and_decisions_deliver_the_stated_values(
    kafka: Kafka, project: Settings, spark: SparkSession
) -> None:
    table = cases(5, 20)
    request = {"request": ("string", {"from": "http.id"})}
    plain = [table_contract(name) for name in ("files", "messages", "avro", "posted")]
    declare(project, *plain, table_contract("decided", fields=request, id=["request"]), jobs={"kept": JOB})
    land(project, "files", table, ["jsonl"])
    messages, values = kafka.topic(), kafka.topic()
    project.path("sources").mkdir()
    with registry() as running:
        project.path("sources/web.toml").write_text(SOURCES[0])
        project.path("sources/kafka.toml").write_text(SOURCES[1].format(kafka.bootstrap, running.url, messages, values))
        kafka.send(messages, *(case.text.encode() for case in table))
        send_avro(kafka, values, running, filter(is_unicode, table))
        with serving(project.project) as server:
            refused = {
                "posted": post_each(server, "posted", table),
                "decided": post_each(server, "decided", table, "?decide"),
            }
        lake(project, "ingest")
    ways = [Way("files", "jsonl"), Way("messages"), Way("avro", carries=is_unicode)]
    ways += [Way(stream, refused=of) for stream, of in refused.items()]
    assert not differences(project, table, ways)


def test_postgres_tables_deliver_the_stated_values(shop: Shop, project: Settings, spark: SparkSession) -> None:
    table = [case for case in cases(6, 20) if is_csv(case) and case.name in PLAIN]
    facts = {"op": "op", "lsn": "source.lsn", "ordinal": "source.ordinal"}
    fields = {name: ("string" if name == "op" else "long", {"from": path}) for name, path in facts.items()}
    about = {"id": ["lsn", "ordinal"], "envelope": "debezium", "broadcast": "op = 't'"}
    declare(project, table_contract("rows", forms={}, fields=fields, **about))
    project.path("sources").mkdir()
    project.path("sources/shop.toml").write_text(
        f'kind = "postgres"\ndsn = "env:{VARIABLE}"\npublication = "lake"\nslot = "{shop.slot}"\n'
        '[streams]\nrows = "public.rows"\n'
    )
    shop.execute(
        f"CREATE TABLE rows (id bigint PRIMARY KEY, {', '.join(f'{name} text' for name in PLAIN)})",
        "ALTER TABLE rows REPLICA IDENTITY FULL",
        "CREATE PUBLICATION lake FOR TABLE rows",
    )
    for some in (table[::2], table[1::2]):  # Copied rows, then changes
        with shop.connect() as connection, connection.pipeline():
            for case in some:
                query = f"INSERT INTO rows (id, {case.name}) VALUES (%s, %s)".encode()
                connection.execute(query, [case.number, case.value])
        lake(project, "ingest")
    assert not differences(project, table, [Way("rows", envelope=True)])
