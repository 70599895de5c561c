"""Rows a second into each target: a first sync, and changes, beside the plainest program by hand for the same.

    python -m infra.bench.sinks --rows 1000000 --changes 10000 --targets redis opensearch

By hand: DuckDB reads the rows of the edition's files, Python writes each as JSON, and the target's own client sends
them as its documentation says; of changes, DuckDB's EXCEPT finds the rows that are others. It keeps no position,
refuses nothing, and leaves half of it where it dies. Both are timed in turns, the servers on this machine.

The delay of a landed file, with --landings, is that of one row until PostgreSQL has it, by `lake run --follow`.

A target is a line of `TARGETS`: who serves it, what a sink's file says, and what sends rows by hand.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import duckdb

from infra.bench.following import delays
from infra.bench.times import Times, heading, line
from lake.config import Settings
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.verify import verify_sink
from tests.servers.kafka import Kafka
from tests.servers.opensearch import OpenSearch
from tests.servers.postgres import Postgres, home, remove
from tests.servers.redis import Redis
from tests.shop import contract, declare, empty, job
from tests.sinks.walks import edition, sink

NAME: Final = "reading"
ROWS: Final = """SELECT range AS number, 'M' || range % 10007 AS meter,
    TIMESTAMPTZ '2024-01-01 00:00Z' + to_seconds(range) AS read_at,
    (range % 997 + {})::DECIMAL(12, 2) AS amount, 'a reading of ' || range AS said FROM range({})"""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A kind of target: its server, given a folder; what a sink says of it; and what sends rows to it by hand."""

    served: Callable[[Path], Any]
    text: str
    sent: Callable[[Any, Iterable[Row]], None]
    address: str = "url"


@contextmanager
def running(server: Any) -> Iterator[Any]:
    """A server while the block lasts."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def to_redis(server: Redis, rows: Iterable[Row]) -> None:
    """As redis-py's documentation has it: pipelines of SET."""
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for count, row in enumerate(rows, start=1):
        pipe.set(f"hand:{row['number']}", json.dumps(row, default=str))
        if count % 10_000 == 0:
            pipe.execute()
    pipe.execute()


def to_opensearch(server: OpenSearch, rows: Iterable[Row]) -> None:
    """As opensearch-py's documentation has it: its helper for bulk requests, into an index that it maps itself."""
    from opensearchpy import helpers

    actions = ({"_index": "hand", "_id": row["number"], **json.loads(json.dumps(row, default=str))} for row in rows)
    helpers.bulk(server.client(), actions, chunk_size=5000, request_timeout=120)
    server.client().indices.refresh(index="hand")


def to_kafka(server: Kafka, rows: Iterable[Row]) -> None:
    """As confluent-kafka's documentation has it: produce, poll now and then, flush."""
    if "hand" not in server.admin.list_topics(timeout=30).topics:
        server.topic("hand", cleanup_policy="compact")
    producer = server.producer()
    for row in rows:
        while True:
            try:
                producer.produce("hand", json.dumps(row, default=str), key=str(row["number"]))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


class Database(Postgres):
    """A server of PostgreSQL with one database."""

    @cached_property
    def url(self) -> str:
        return self.database()

    def stop(self, *_: Any) -> None:
        super().stop()
        remove(self.home)


def database(_: Path) -> Database:
    """One in a folder of its own: its server is of a user who may not be root."""
    folder = home()
    folder.chmod(0o711)
    return Database(folder)


def to_postgres(server: Database, rows: Iterable[Row]) -> None:
    """As psycopg's documentation has it: COPY into a table, and from there INSERT … ON CONFLICT."""
    import psycopg

    columns = "number bigint primary key, meter text, read_at timestamptz, amount numeric(12, 2), said text"
    values = ", ".join(f"{name} = excluded.{name}" for name in ("meter", "read_at", "amount", "said"))
    with psycopg.connect(server.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS hand ({columns})".encode())
        cursor.execute("CREATE TEMP TABLE sent (LIKE hand) ON COMMIT DROP")
        with cursor.copy("COPY sent FROM STDIN") as copy:
            for row in rows:
                copy.write_row(tuple(row.values()))
        cursor.execute(f"INSERT INTO hand SELECT * FROM sent ON CONFLICT (number) DO UPDATE SET {values}".encode())


TARGETS: Final[Mapping[str, Target]] = {
    "postgres": Target(database, 'kind = "postgres"\n', to_postgres),
    "kafka": Target(Kafka, 'kind = "kafka"\n', to_kafka, "bootstrap"),
    "redis": Target(Redis, 'kind = "redis"\nseconds = 60\n', to_redis),
    "opensearch": Target(OpenSearch, 'kind = "opensearch"\nseconds = 120\n', to_opensearch),
}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Editions into targets, beside programs by hand.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (default: 1000000)")
    parser.add_argument("--changes", type=int, default=10_000, help="to it (default: 10000)")
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS), help="(default: all)")
    parser.add_argument("--landings", type=int, default=50, help="of which the delay is taken (default: 50)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as folder:
        for name in given.targets:
            with running(TARGETS[name].served(Path(folder) / name)) as server:
                settings = empty(Path(folder) / f"project-{name}")
                bench(name, server, settings, rows=given.rows, changes=given.changes, repeat=given.repeat)
        if given.landings:
            with running(database(Path(folder))) as server:
                landed(server, empty(Path(folder) / "landed"), given.landings)


def bench(name: str, server: Any, settings: Settings, *, rows: int, changes: int, repeat: int) -> Times:
    """Times a target."""
    target, times, cut = TARGETS[name], Times(), 0
    text = f'{target.text}{target.address} = "{server.url}"\n[tables.{NAME}]\n'
    far = sink(settings, "bench", text)
    for _ in range(repeat):
        edition(settings, cut + 1, "number", **{NAME: ROWS.format(cut, rows)})
        with times.timed("ours, first sync"):
            deliver(settings, far, resync=True)
        with times.timed("by hand, first sync"):
            target.sent(server, rows_of(settings, f"FROM {NAME}"))
        others = f"{ROWS.format(cut, rows)} WHERE range >= {changes} UNION ALL {ROWS.format(cut + 1, changes)}"
        edition(settings, cut + 2, "number", **{NAME: others})
        with times.timed("ours, changes"):
            [sent] = deliver(settings, far).tables
        assert sent.updated == changes
        with times.timed("by hand, changes"):
            target.sent(server, rows_of(settings, f"FROM {NAME}", since=cut + 1))
        cut += 2
    [verdict] = verify_sink(settings, far)[1]
    assert verdict.verdict == "identical"
    heading(f"{name}: {rows:,} rows, then {changes:,} changes")
    for what, count in (("first sync", rows), ("changes", changes)):
        ours, hand = times[f"ours, {what}"], times[f"by hand, {what}"]
        line(f"ours, {what}", ours, f"{count / ours:10,.0f} a second")
        line(f"by hand, {what}", hand, f"{count / hand:10,.0f} a second  ours {ours / hand:.2f} of it")
    return times


def landed(server: Database, settings: Settings, count: int) -> list[float]:
    """Prints the seconds between the landing of a file of one row and the moment PostgreSQL has the row."""
    import psycopg

    declare(
        settings,
        contract("readings", {"number": "long", "meter": "string"}),
        jobs={"reading": job("reading", 'Latest("number")', 'log("readings")')},
    )
    text = f'kind = "postgres"\nurl = "{server.url}"\nafter_publish = true\n[tables.reading]\n'
    sink(settings, "bench", text)
    landing = settings.path("landing/readings")
    landing.mkdir()

    def send(number: int) -> None:
        beside = landing / f".{number}.jsonl"
        beside.write_text(json.dumps({"number": number, "meter": f"M{number}"}) + "\n")
        beside.rename(landing / f"{number}.jsonl")

    with psycopg.connect(server.url, autocommit=True) as connection:

        def arrived(number: int) -> bool:
            if connection.execute("SELECT to_regclass('lake.reading')").fetchall() == [(None,)]:
                return False
            rows = connection.execute("SELECT number FROM lake.reading WHERE number = %s", (number,))
            return bool(rows.fetchall())

        send(0)
        return delays(settings, "From a landed file to the row in PostgreSQL", send, arrived, first=0, count=count)


def rows_of(settings: Settings, query: str, *, since: int | None = None) -> Iterator[Row]:
    """The rows of the newest edition; with `since`, those that are not in that one."""
    rows = reader(settings).relation(query).to_arrow_table()
    if since is not None:
        before = reader(settings, since).relation(query).to_arrow_table()
        with duckdb.connect() as con:
            con.register("rows", rows)
            con.register("before", before)
            rows = con.sql("FROM rows EXCEPT FROM before").to_arrow_table()
    for batch in rows.to_batches(10_000):
        yield from batch.to_pylist()


if __name__ == "__main__":
    main()
