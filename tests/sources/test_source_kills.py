"""Kills of `lake` before and after each write and acknowledgement of a delivery: later every record is there once.

The external system is a real broker or a real database. The logs are compared with its own records, and its
acknowledged position is never ahead of the logs.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from lake.connect.kafka.source.ranges import KafkaOffsets
from lake.connect.postgres.source.messages import read_lsn
from lake.project.project import load
from lake.publish.cut import cut
from lake.store import duckdb_tables
from lake.store.log import Log, SourcePosition, source_position
from lake.testing import Commands, Kill, Lakehouse
from tests.servers.kafka import Committed, Kafka
from tests.shop import contract, declare, empty, job
from tests.sources.shop import VARIABLE, Shop

LANDED: Final = 5
ATTEMPTS: Final = 4 * LANDED
POINTS: Final = {
    "spool.before": 2,
    "spool.after": 2,
    "log.before": 4,
    "log.middle": 1,
    "log.after": 4,
    "acknowledge.before": 3,
    "acknowledge.after": 3,
}
"""Each point, and of how many passes any may be the last."""
ACCOUNTS: Final = "abcdef"
PARTITIONS: Final = 3


class Outside(ABC):
    """External system with records for two logs."""

    streams: tuple[str, str]
    house: Lakehouse

    @abstractmethod
    def write(self, dice: random.Random) -> None:
        """Write more records than one delivery takes, and some that are never committed."""

    @abstractmethod
    def told(self) -> dict[Any, int]:
        """Return the acknowledged positions, by partition."""

    @abstractmethod
    def position(self, at: SourcePosition) -> dict[Any, int]:
        """Return the same for a position in the logs."""

    @abstractmethod
    def compare_logs(self) -> None:
        """Assert that the logs have each record once."""

    @abstractmethod
    def compare_tables(self) -> None:
        """Assert that the tables equal the external system."""

    def at(self) -> SourcePosition:
        """Return the position of the logs."""
        return source_position(self.house.settings, "shop", self.streams)

    def logged(self, stream: str, columns: str, batch: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a log, in order, up to a batch."""
        upto = Log(self.house.settings, stream).head().batch if batch is None else batch
        query = f"SELECT {columns} FROM t WHERE _bucket >= 0 AND _batch <= $1 ORDER BY _batch, _arrival"
        return [tuple(row.values()) for row in duckdb_tables.rows(Log(self.house.settings, stream).path, query, upto)]

    def must_never_be_told_too_much(self, point: str) -> None:
        """Assert that the acknowledged position is never ahead of both logs, and exact on both sides of an
        acknowledgement.
        """
        at, told = self.at(), self.told()
        there = self.position(at)
        assert all(told[place] <= there.get(place, 0) for place in told)
        if at.number > 1 and (at.lacking or point == "acknowledge.before"):  # A copy may be at its slot
            assert told != there
        if point == "acknowledge.after":
            assert told == there


class Broker(Outside):
    """Two topics of three partitions; transactions over both, some aborted."""

    streams = ("credits", "debits")

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.number = kafka, 0
        self.topics = {stream: kafka.topic(partitions=PARTITIONS) for stream in self.streams}
        fields = {
            "account": ("string", {"from": "kafka.key"}),
            "offset": ("long", {"from": "kafka.offset"}),
            "number": "long",
        }
        contracts = [contract(stream, fields) for stream in self.streams]
        latest = 'Latest("account", sequence="_at")'
        returns = 'rows.selectExpr("account", "number", "offset AS _at")'
        jobs = {f"{each}_now": job(f"{each}_now", latest, f'log("{each}")', returns=returns) for each in self.streams}
        settings = empty(folder / "shop")
        declare(settings, *contracts, jobs=jobs)
        (settings.project / "sources").mkdir()
        lines = "".join(f'{stream} = {{ topic = "{topic}" }}\n' for stream, topic in self.topics.items())
        said = f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\ngroup = "{self.group}"\nrecords = 20\n'
        (settings.project / "sources/shop.toml").write_text(f"{said}[streams]\n{lines}")
        self.house = Lakehouse(settings.project, folder)

    @property
    def group(self) -> str:
        return f"group-of-{self.topics['debits']}"

    def write(self, dice: random.Random) -> None:
        producer = self.kafka.producer(transactional_id=self.group)
        producer.init_transactions(30)
        for _ in range(8):
            producer.begin_transaction()
            for topic in self.topics.values():
                for _ in range(dice.randint(1, 4)):
                    self.number += 1
                    producer.produce(topic, f'{{"number": {self.number}}}', key=dice.choice(ACCOUNTS))
            (producer.abort_transaction if dice.random() < 0.2 else producer.commit_transaction)(30)

    def told(self) -> dict[Any, int]:
        told = {topic: self.kafka.told(self.group, topic) for topic in self.topics.values()}
        return {(topic, partition): offset for topic, offsets in told.items() for partition, offset in offsets.items()}

    def position(self, at: SourcePosition) -> dict[Any, int]:
        known = {(topic, partition): 0 for topic in self.topics.values() for partition in range(PARTITIONS)}
        ends = KafkaOffsets.of(at.progress).ends() if at.progress else ()
        return known | {(topic, partition): end for topic, partition, end in ends}

    def records(self, stream: str) -> list[tuple[str, str, int]]:
        """Return place, account and number of the committed records."""
        committed = self.kafka.committed(self.topics[stream])
        return [(f"shop:{each.place}", each.key, number_of(each)) for each in committed]

    def compare_logs(self) -> None:
        for stream in self.streams:
            assert sorted(self.logged(stream, "_source, account, number")) == sorted(self.records(stream))

    def compare_tables(self) -> None:
        for stream in self.streams:
            latest = {account: number for _, account, number in self.records(stream)}
            assert {row["account"]: row["number"] for row in self.house.table(f"{stream}_now")} == latest


class Database(Outside):
    """Two tables of one publication; each transaction adds entries and changes the balance that counts them."""

    streams = ("balances", "entries")

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.shop = shop
        shop.execute(
            "CREATE TABLE entries (number bigserial PRIMARY KEY, account text)",
            "CREATE TABLE balances (account text PRIMARY KEY, entries int, changes int)",
            "CREATE PUBLICATION lake FOR TABLE entries, balances",
            f"INSERT INTO balances SELECT a, 0, 0 FROM unnest('{{{','.join(ACCOUNTS)}}}'::text[]) a",
        )
        facts = {"op": "op", "lsn": "source.lsn", "ordinal": "source.ordinal"}
        added = {name: ("string" if name == "op" else "long", {"from": path}) for name, path in facts.items()}
        fields: dict[str, dict[str, Any]] = {
            "balances": {"account": "string", "entries": "int", "changes": "int"},
            "entries": {"number": "long", "account": "string"},
        }
        about: dict[str, Any] = {"envelope": "debezium", "broadcast": "op = 't'"}
        contracts = [contract(stream, columns | added, **about) for stream, columns in fields.items()]
        settings = empty(folder / "shop")
        declare(settings, *contracts, jobs={f"{stream}_now": self.job(stream, [*fields[stream]]) for stream in fields})
        (settings.project / "sources").mkdir()
        (settings.project / "sources/shop.toml").write_text(
            f'kind = "postgres"\ndsn = "env:{VARIABLE}"\npublication = "lake"\nslot = "{shop.slot}"\nchanges = 12\n'
            '[streams]\nentries = "public.entries"\nbalances = "public.balances"\n'
        )
        self.house = Lakehouse(settings.project, folder)

    @staticmethod
    def job(stream: str, columns: list[str]) -> str:
        kind = f'Latest("{columns[0]}", sequence=("_lsn", "_ordinal"), deletes="_op = \'d\'", truncate="_op = \'t\'")'
        shown = ", ".join(f'"{name}"' for name in (*columns, "lsn AS _lsn", "ordinal AS _ordinal", "op AS _op"))
        return job(f"{stream}_now", kind, f'log("{stream}")', returns=f"rows.selectExpr({shown})")

    def write(self, dice: random.Random) -> None:
        for _ in range(10):
            end = "ROLLBACK" if dice.random() < 0.2 else "COMMIT"
            entries = dice.choices(ACCOUNTS, k=dice.randint(1, 4))
            counted = "".join(
                f"UPDATE balances SET entries = entries + {entries.count(account)}, changes = changes + 1"
                f" WHERE account = '{account}';"
                for account in sorted({*entries})
            )
            rows = ", ".join(f"('{account}')" for account in entries)
            self.shop.execute(f"BEGIN; INSERT INTO entries (account) VALUES {rows}; {counted} {end}")

    def told(self) -> dict[Any, int]:
        slot = f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{self.shop.slot}'"
        found = self.shop.query(slot)
        return {"slot": read_lsn(found[0][0])} if found else {}

    def position(self, at: SourcePosition) -> dict[Any, int]:
        return {"slot": read_lsn(at.progress["to"])} if at.progress else self.told()

    def compare_logs(self) -> None:
        """Entries never change, and the balances count their changes: each is there once, in order."""
        assert self.logged("entries", "number, account") == self.shop.query("SELECT * FROM entries ORDER BY number")
        logged = self.logged("balances", "account, changes")
        first = dict(reversed(logged))
        for account, changes in self.shop.query("SELECT account, changes FROM balances"):
            assert [n for name, n in logged if name == account] == [*range(first[account], changes + 1)]

    def compare_tables(self) -> None:
        entries, balances = self.house.table("entries_now"), self.house.table("balances_now")
        there = {*self.shop.query("SELECT number, account FROM entries")}
        assert {(row["number"], row["account"]) for row in entries} == there
        there = {*self.shop.query("SELECT account, entries, changes FROM balances")}
        assert {(row["account"], row["entries"], row["changes"]) for row in balances} == there

    def must_never_be_told_too_much(self, point: str) -> None:
        super().must_never_be_told_too_much(point)
        batches = cut(load(self.house.settings)).batches
        counted = dict(self.logged("balances", "account, entries", batches["balances"]))
        entries = Counter(account for _, account in self.logged("entries", "number, account", batches["entries"]))
        assert {account: count for account, count in counted.items() if count} == entries


def number_of(record: Committed) -> int:
    assert record.value is not None
    return int(json.loads(record.value)["number"])


def kill_ingest(outside: Outside, commands: Commands, point: str, **environment: Any) -> int:
    """Kill `lake ingest` at a point repeatedly, run it, and return the number of kills."""
    dice, landed, house = random.Random(point), 0, outside.house
    for _ in range(ATTEMPTS):
        outside.write(dice)
        again = outside.at().number > 0 and point.startswith("acknowledge")  # The first repeats the last
        kill = Kill(point, dice.randint(1, POINTS[point] if landed else 1) + again)
        done = commands.lake("ingest", at=house, kill=kill, **environment)
        assert done.landed or done.code == 0, done.err
        if done.landed:
            landed += 1
            outside.must_never_be_told_too_much(point)
            done = commands.lake("ingest", at=house, **environment)
            assert done.code == 0, done.err
            outside.must_never_be_told_too_much("acknowledge.after")
        outside.compare_logs()
        if landed == LANDED:
            break
    assert commands.lake("run", at=house, **environment).code == 0
    outside.compare_tables()
    return landed


@pytest.mark.parametrize("point", POINTS)
def test_topics_are_logged_once_after_any_crash(commands: Commands, kafka: Kafka, tmp_path: Path, point: str) -> None:
    assert kill_ingest(Broker(kafka, tmp_path), commands, point) == LANDED


@pytest.mark.parametrize("point", POINTS)
def test_transactions_are_logged_once_and_whole_in_a_cut_after_any_crash(
    commands: Commands, shop: Shop, tmp_path: Path, point: str
) -> None:
    assert kill_ingest(Database(shop, tmp_path), commands, point, **{VARIABLE: shop.reader_dsn}) == LANDED
