"""Events a second from a real Kafka and a real PostgreSQL into the log, beside programs by hand; INSERT to edition.

    python -m infra.bench.sources --messages 1000000 --rows 1000000 --inserts 50

Kafka: a Spark job by hand reads the same topic, takes the same fields out of the JSON and writes a Delta table, without
identity, quarantine, order or position. Another one does the same as ours: what cannot be read goes to a table of its
own, of two events of one id the first is kept, events are numbered within their buckets in the order of the topic, and
the commit says what it has read. PostgreSQL: a program by hand has COPY write a file, which Spark makes a Delta table
of. Both are timed in turns with ours, in one session that has done each once on a few records.

The delay is that of single inserts, a second apart, until an edition that has the row is published by
`lake run --follow`. All servers run on this machine, and their cost is within the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.bench import following
from infra.bench.times import Times, heading, line
from lake.config import Settings, SparkSettings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.session import jars
from lake.session.spark_session import start
from lake.store import duckdb_tables
from lake.store.ledger.editions import latest_edition
from lake.store.warehouse import Warehouse
from tests.processes import ROOT
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres, home, remove
from tests.shop import contract, declare, empty, job
from tests.sources.shop import VARIABLE, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTED: Final = ROOT / "infra/kafka/spark.txt"
JARS: Final = Path(sys.prefix) / "share/headwater/kafka-spark"
STREAM: Final = "readings"
FIELDS: Final = {"number": "long", "meter": "string", "at": "timestamp", "value": "long", "mode": "string"}
DDL: Final = "number BIGINT, meter STRING, at TIMESTAMP, value BIGINT, mode STRING"
FACTS: Final = {"op": ("string", {"from": "op"})} | {
    name: ("long", {"from": f"source.{name}"}) for name in ("lsn", "ordinal")
}
LATEST: Final = 'Latest("number", sequence=("lsn", "ordinal"))'
PARTITIONS: Final = 8
BUCKETS: Final = 8
FEW: Final = 1000


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Sources into the log, beside programs by hand.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="on the topic (default: 1000000)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the database's table (default: 1000000)")
    parser.add_argument("--inserts", type=int, default=50, help="of which the delay is taken (default: 50)")
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd())))
        kafka, postgres = Kafka(folder / "kafka"), Postgres(home())
        stack.callback(remove, postgres.home)
        postgres.home.chmod(0o711)
        for server in (kafka, postgres):
            server.start()
            stack.callback(server.stop)
        spark = start(replace(empty(folder / "spark"), spark=SparkSettings(master="local[2]", driver_memory="3g")))
        jars.provide(JARS, print, file=LISTED)
        with_kafka(spark)
        from_kafka(spark, kafka, folder, given.messages, given.repeat)
        shop = Shop(postgres, postgres.database())
        from_postgres(spark, shop, folder, given.rows, given.repeat)
        spark.stop()
        delays(Shop(postgres, postgres.database()), folder / "delay", given.inserts)


def with_kafka(spark: SparkSession) -> None:
    """Has the session know Spark's own Kafka source, as the program by hand needs it."""
    for jar in sorted(JARS.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")


def from_kafka(spark: SparkSession, kafka: Kafka, folder: Path, messages: int, repeat: int) -> None:
    """Time a topic of `messages` messages."""
    times = Times()
    for count, turns in ((FEW, 1), (messages, repeat)):
        topic = kafka.topic(partitions=PARTITIONS)
        produced(kafka, topic, count)
        for turn in range(turns):
            said = f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\n[streams]\n{STREAM} = {{topic = "{topic}"}}\n'
            settings = project(folder / f"kafka-{count}-{turn}", said, {}, id=["number"])
            with times.timed(f"ours {count}"):
                must_have(ingested(spark, settings), count)
            with times.timed(f"by hand {count}"):
                by_hand(spark, kafka.bootstrap, topic).write.format("delta").save(str(folder / f"plain-{count}-{turn}"))
            with times.timed(f"the same by hand {count}"):
                must_have(the_same_by_hand(spark, kafka.bootstrap, topic, folder / f"same-{count}-{turn}"), count)
    heading(f"Kafka: {messages:,} messages of {PARTITIONS} partitions")
    compared(times, messages)
    same, ours = times[f"the same by hand {messages}"], times[f"ours {messages}"]
    line("the same by hand", same, f"{messages / same:10,.0f} a second  ours {ours / same:.2f} of it")


def produced(kafka: Kafka, topic: str, count: int) -> None:
    producer = kafka.producer(queue_buffering_max_messages=2_000_000, linger_ms=50)
    for number in range(count):
        meter = f"M{number % 10_007}"
        value = {"number": number, "meter": meter, "at": at(number), "value": number % 997, "mode": "on"}
        producer.produce(topic, json.dumps(value), key=meter)
    assert producer.flush(300) == 0


def at(number: int) -> str:
    return f"2024-01-{number % 28 + 1:02}T{number % 24:02}:{number % 60:02}:00Z"


def by_hand(spark: SparkSession, bootstrap: str, topic: str) -> Any:
    """Read a topic by a Spark job of a few lines."""
    from pyspark.sql import functions as F

    parsed = F.from_json(F.col("value").cast("string"), DDL).alias("record")
    return (
        topic_of(spark, bootstrap, topic)
        .select(parsed, "partition", "offset")
        .select("record.*", "partition", "offset")
    )


def the_same_by_hand(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> int:
    """Has Spark do what ours does of a topic that is read for the first time; how many events."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    parsed = F.from_json(text, f"{DDL}, broken STRING", {"columnNameOfCorruptRecord": "broken"}).alias("record")
    records = topic_of(spark, bootstrap, topic).select(parsed, text.alias("text"), "partition", "offset").cache()
    bad = F.expr("record IS NULL OR record.broken IS NOT NULL OR record.number IS NULL OR record.at IS NULL")
    order = ["partition", "offset"]
    events = records.where(~bad).select("record.*", *order).drop("broken")
    first = F.row_number().over(Window.partitionBy("number").orderBy(*order)) == 1
    events = events.select("*", first.alias("first")).where("first").drop("first")
    events = events.withColumn("bucket", F.expr(f"pmod(hash(number), {BUCKETS})"))
    events = events.withColumn("number_in_bucket", F.row_number().over(Window.partitionBy("bucket").orderBy(*order)))
    ends = records.groupBy("partition").agg(F.max("offset").alias("offset")).collect()
    records.where(bad).write.format("delta").save(str(folder / "quarantine"))
    said = {"txnAppId": topic, "txnVersion": "1", "userMetadata": json.dumps([end.asDict() for end in ends])}
    events.write.format("delta").partitionBy("bucket").options(**said).save(str(folder / "log"))
    records.unpersist()
    return spark.read.format("delta").load(str(folder / "log")).count()


def topic_of(spark: SparkSession, bootstrap: str, topic: str) -> Any:
    """A topic from its first record to its last, by Spark's own source."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "kafka.isolation.level": "read_committed",
    }
    return spark.read.format("kafka").options(**options).load()


def from_postgres(spark: SparkSession, shop: Shop, folder: Path, rows: int, repeat: int) -> None:
    """Time the copy of a table of `rows` rows, and as many changes to it."""
    times = Times()
    os.environ[VARIABLE] = shop.dsn
    for count, turns in ((FEW, 1), (rows, repeat)):
        filled(shop, count)
        for turn in range(turns):
            settings = project(folder / f"postgres-{count}-{turn}", of_database(shop), FACTS, **CHANGES)
            with times.timed(f"ours {count}"):
                must_have(ingested(spark, settings), count)
            with times.timed(f"by hand {count}"):
                copied_by_hand(spark, shop, folder / f"copied-{count}-{turn}")
            if turn == 0:
                for first in range(0, count, 10_000):
                    shop.execute(
                        f"UPDATE {STREAM} SET value = value + 1 WHERE number BETWEEN {first} AND {first + 9_999}"
                    )
                with times.timed(f"changes {count}"):
                    must_have(ingested(spark, settings), count)
            shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    heading(f"PostgreSQL: {rows:,} rows")
    compared(times, rows)
    line("ours, changes", times[f"changes {rows}"], f"{rows / times[f'changes {rows}']:10,.0f} a second")


CHANGES: Final[Mapping[str, Any]] = {
    "id": ["lsn", "ordinal"],
    "envelope": "debezium",
    "broadcast": "op = 't'",
}


def of_database(shop: Shop) -> str:
    said = f'kind = "postgres"\ndsn = "env:{VARIABLE}"\npublication = "lake"\nslot = "{shop.slot}"\nchanges = 1000000\n'
    return f'{said}[streams]\n{STREAM} = "public.{STREAM}"\n'


def filled(shop: Shop, count: int) -> None:
    """Create the database's table of `count` rows, and publish it."""
    shop.execute(
        f"DROP TABLE IF EXISTS {STREAM}",
        "DROP PUBLICATION IF EXISTS lake",
        f"CREATE TABLE {STREAM} (number bigint PRIMARY KEY, meter text, at timestamptz, value bigint, mode text)",
        f"INSERT INTO {STREAM} SELECT n, 'M' || n % 10007, timestamptz '2024-01-01Z' + n * interval '1s', n % 997, 'on'"
        f" FROM generate_series(0, {count - 1}) n",
        f"CREATE PUBLICATION lake FOR TABLE {STREAM}",
    )


def copied_by_hand(spark: SparkSession, shop: Shop, folder: Path) -> None:
    """A table of the database as a Delta table, by way of a file."""
    folder.mkdir()
    said = f"COPY {STREAM} TO STDOUT (FORMAT csv)".encode()
    with shop.connect() as connection, connection.cursor().copy(said) as copy, (folder / "rows.csv").open("wb") as file:
        file.writelines(copy)
    spark.read.schema(DDL).csv(str(folder / "rows.csv")).write.format("delta").save(str(folder / "table"))


def project(folder: Path, source: str, facts: Mapping[str, Any], **about: Any) -> Settings:
    """A project of one stream that a source brings."""
    settings = empty(folder)
    settings.path("sources").mkdir()
    settings.path("sources/outside.toml").write_text(source)
    optional = {name: f"{kind}?" if facts and name != "number" else kind for name, kind in FIELDS.items()}
    declare(settings, contract(STREAM, optional | dict(facts), buckets=BUCKETS, **about))
    return settings


def ingested(spark: SparkSession, settings: Settings) -> int:
    """Ingest all records; return the number of events."""
    return sum(counts.accepted for counts in ingest(settings, lambda: spark, load_contracts(settings)).values())


def must_have(events: int, count: int) -> None:
    assert events == count, f"{events} events of {count}"


def compared(times: Times, count: int) -> None:
    ours, hand = times[f"ours {count}"], times[f"by hand {count}"]
    line("by hand", hand, f"{count / hand:10,.0f} a second")
    line("ours", ours, f"{count / ours:10,.0f} a second  {ours / hand:.2f} of by hand")


def delays(shop: Shop, folder: Path, inserts: int) -> list[float]:
    """Prints the seconds between an insert and the edition that has it."""
    os.environ[VARIABLE] = shop.dsn
    filled(shop, FEW)
    settings = project(folder, of_database(shop), FACTS, **CHANGES)
    settings.path(f"jobs/silver/{STREAM}_now.py").write_text(job(f"{STREAM}_now", LATEST, f'log("{STREAM}")'))

    def send(number: int) -> None:
        shop.execute(f"INSERT INTO {STREAM} VALUES ({number}, 'M', now(), 1, 'on')")

    title = "PostgreSQL: from INSERT to a published edition"
    return following.delays(settings, title, send, partial(has, settings), first=FEW - 1, count=inserts)


def has(settings: Settings, number: int) -> bool:
    """Return whether the newest edition has the row."""
    edition = latest_edition(settings)
    if edition is None or f"{STREAM}_now" not in edition.tables:
        return False
    table = edition.tables[f"{STREAM}_now"]
    path = Warehouse(settings).root / table.path
    return bool(duckdb_tables.rows(path, f"SELECT 1 FROM t WHERE number = {number}", version=table.version))


if __name__ == "__main__":
    main()
