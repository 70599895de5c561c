"""The targets of sinks: what a test of any of them asks of it, with a server of this run behind it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, Final

from lake.config import Settings
from lake.connect.kafka.sink import KafkaTarget
from lake.connect.postgres.sink.tables import digest
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.kind import DeclaredSink
from lake.sinks.plan import DeliveryPlan
from lake.text import plain
from tests.servers.kafka import Kafka
from tests.servers.opensearch import OpenSearch
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis
from tests.servers.webhook import SECRET, VARIABLE, Webhook
from tests.sinks.walks import every_type, identical, sink

NAME: Final = "far"
URL: Final = "FAR_URL"
"""The environment variable that has the server's address."""
DROPPED_KEY: Final = f"ALTER TABLE lake.one DROP CONSTRAINT one_key_{digest('one')[:8]}"
"""SQL in PostgreSQL."""


class AnyTarget(ABC):
    """A target of the sink `far` of a project."""

    kind: str
    options = f'url = "env:{URL}"\n'
    editions = 4
    """Deliveries that are killed at each point."""
    proven = True
    """`lake verify --sink` reads its rows back and compares them."""
    atomic = True
    """Its readers see either all changes of a delivery or none."""
    occupied = ""
    """The refusal of a place that another program has filled."""
    removed = ""
    """The refusal to deliver to a table that was removed."""
    unreachable = ""
    """An address at which no server listens, with a password."""
    new_position = ""
    """The forgery that replaces the stored position by `{}`."""
    rejected: tuple[str, str, str] = ("", "", "")
    """SQL of a text that the target cannot take, the options of its table, and the reason."""
    page_variable = ""
    page_program = ""
    """The variable that has the server's address in the target's how-to page, and the program that the page calls."""

    def __init__(self, settings: Settings, server: Any, at_once: int = 0) -> None:
        self.settings, self.server = settings, server
        self.more = f"at_once = {at_once}\n" if at_once else ""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close its own connection to the server."""

    @property
    def url(self) -> str:
        """The address of the server."""
        return str(self.server.url)

    def declare(self, *tables: str, options: str = "", table: str = "") -> DeclaredSink:
        """Declare the sink, with further `options` and with those of each table."""
        listed = "".join(f"[tables.{name}]\n{self.named(name)}{table}\n" for name in tables)
        return sink(self.settings, NAME, f'kind = "{self.kind}"\n{self.options}{self.more}{options}\n{listed}')

    def there(self, table: str) -> str:
        """The name of a table at the target: one of them has another."""
        return "second" if table == "two" else table

    def named(self, table: str) -> str:
        """The options of a table for that."""
        return f'name = "{self.there(table)}"\n' if self.there(table) != table else ""

    def table_options(self, seed: int) -> str:
        """Options of a table that differ from test to test."""
        return ""

    def every_type(self, rows: int, *, shift: int = 0) -> str:
        """SQL of a table: of every type, if `lake verify --sink` compares the rows."""
        if self.proven:
            return every_type(rows, shift=shift)
        return f"SELECT range AS id, 'w' || (range + {shift}) % 5 AS word, (range + {shift}) AS n FROM range({rows})"

    def check(self, declared: DeclaredSink) -> int:
        """Compare every row of the target with the edition that it has, and return the edition's number."""
        return identical(self.settings, declared)

    def published(self, declared: DeclaredSink, number: int) -> dict[str, dict[str, Any]]:
        """The rows of an edition by table, and by their key as JSON."""
        read = reader(self.settings, number)
        found: dict[str, dict[str, Any]] = {}
        for table in declared.tables:
            identity = read.edition.tables[table].identity
            rows = [plain(row) for row in read.relation(f"from {table}").to_arrow_table().to_pylist()]
            found[table] = {json.dumps({name: row[name] for name in identity}, ensure_ascii=False): row for row in rows}
        return found

    def number(self, declared: DeclaredSink) -> int:
        """The edition that the target reports to have."""
        with closing(declared.open()) as target:
            position = target.position()
        assert position is not None
        return position.edition

    @abstractmethod
    def read(self, table: str) -> dict[int, dict[str, Any]]:
        """The rows of a table as its readers see them, by their `id`."""

    def occupy(self) -> None:
        """Put something of another program in the place of table `one`, and beside it."""
        raise NotImplementedError

    def is_kept(self) -> bool:
        """Return whether what was put beside it is still there."""
        return True

    def remove(self) -> None:
        """Remove table `one`."""
        raise NotImplementedError

    def forge(self, forgery: Any) -> None:
        """Change rows behind the back of the sink."""
        raise NotImplementedError

    def left(self) -> list[str]:
        """What deliveries that were killed have left behind."""
        raise NotImplementedError

    def requests(self, target: Any) -> tuple[Any, str]:
        """The object and the name of its method by which an open target sends requests."""
        raise NotImplementedError

    @contextmanager
    def page(self) -> Iterator[Mapping[str, str]]:
        """The environment in which the how-to page of the target is played."""
        yield {self.page_variable: self.url}


class ToPostgres(AnyTarget):
    kind = "postgres"
    occupied = "is there already, and not of this sink"
    removed = "was removed there"
    unreachable = "postgresql://lake:secret123@127.0.0.1:1/crm"
    new_position = "UPDATE lake._headwater SET position = '{}'"
    rejected = ("'a' || chr(0)", "", "word has the character NUL")
    page_variable, page_program = "CRM_URL", "psql"
    server: Postgres

    @cached_property
    def url(self) -> str:
        return self.server.database()

    def close(self) -> None:
        if "connection" in self.__dict__:
            self.connection.close()

    @cached_property
    def connection(self) -> Any:
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def read(self, table: str) -> dict[int, dict[str, Any]]:
        found = self.connection.execute(f"SELECT * FROM lake.{self.there(table)}")
        names = [column.name for column in found.description]
        return {row["id"]: row for row in (dict(zip(names, values, strict=True)) for values in found.fetchall())}

    def occupy(self) -> None:
        self.forge("CREATE SCHEMA lake; CREATE TABLE lake.one (theirs int); CREATE TABLE lake.another ()")

    def is_kept(self) -> bool:
        return bool(self.connection.execute("SELECT to_regclass('lake.another') IS NOT NULL").fetchone()[0])

    def remove(self) -> None:
        self.forge("DROP TABLE lake.one")

    def forge(self, forgery: str) -> None:
        self.connection.execute(forgery)

    @contextmanager
    def page(self) -> Iterator[Mapping[str, str]]:
        import psycopg

        dsn = psycopg.conninfo.conninfo_to_dict(self.url)
        names = {"dbname": "PGDATABASE"}
        variables = {names.get(name, f"PG{name.upper()}"): str(value) for name, value in dsn.items()}
        try:
            yield variables | {self.page_variable: " ".join(f"{name}={value}" for name, value in dsn.items())}
        finally:
            self.server.execute("DROP OWNED BY bi; DROP ROLE bi", str(dsn["dbname"]))


class ToRedis(AnyTarget):
    kind = "redis"
    occupied = "there are keys such as 'far:one:theirs' already, and not of this"
    unreachable = "redis://:secret123@127.0.0.1:1/0"
    new_position = "SET far:position {}"
    page_variable, page_program = "CACHE_URL", "redis-cli"
    server: Redis

    @cached_property
    def client(self) -> Any:
        return self.server.client()

    def table_options(self, seed: int) -> str:
        return f'form = "{("json", "hash")[seed % 2]}"'

    def read(self, table: str) -> dict[int, dict[str, Any]]:
        keys = self.client.scan_iter(f"far:{self.there(table)}:*")
        rows = [json.loads(self.client.get(key)) if table == "one" else self.hash(key) for key in keys]
        return {row["id"]: row for row in rows}

    def hash(self, key: str) -> dict[str, Any]:
        """A row that is stored as a hash, of a table without other numbers than whole ones."""
        return {name: int(text) if text.isdigit() else text for name, text in self.client.hgetall(key).items()}

    def named(self, table: str) -> str:
        return super().named(table) + ('form = "hash"\n' if table == "two" else "")

    def occupy(self) -> None:
        self.client.lpush("far:one:theirs", "a")
        self.client.set("far:another:1", "theirs")

    def is_kept(self) -> bool:
        return bool(self.client.get("far:another:1") == "theirs")

    def forge(self, forgery: str) -> None:
        self.client.execute_command(*forgery.split())

    def left(self) -> list[str]:
        keys = [*self.client.scan_iter("far:*")]
        return [key for key in keys if ":~" in key or key.endswith(("switch", "staging"))]

    def requests(self, target: Any) -> tuple[Any, str]:
        return target.client, "execute_command"


class ToOpenSearch(AnyTarget):
    kind = "opensearch"
    options = f'url = "env:{URL}"\nseconds = 30\n'
    occupied = "there is an index far-one already, and not of this sink"
    removed = "the index far-one was removed"
    unreachable = "http://lake:secret123@127.0.0.1:1"
    rejected = ("repeat('é', 20000)", 'mapping = { word = { type = "keyword" } }', "word")
    page_variable, page_program = "SEARCH_URL", "curl"
    server: OpenSearch

    @cached_property
    def client(self) -> Any:
        return self.server.client()

    def read(self, table: str) -> dict[int, dict[str, Any]]:
        found = self.client.search(index=f"far-{self.there(table)}", body={"query": {"match_all": {}}, "size": 100})
        return {hit["_source"]["id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def occupy(self) -> None:
        self.client.index(index="far-one", id="1", body={"theirs": 1})
        self.client.index(index="another", id="1", body={"theirs": 1})

    def is_kept(self) -> bool:
        return bool(self.client.exists(index="another", id="1"))

    def remove(self) -> None:
        [made] = self.client.indices.get_alias(index="far-one")
        self.client.indices.delete(index=made)

    def forge(self, forgery: tuple[str, Any]) -> None:
        id, source = forgery
        if source is None:
            self.client.delete(index="far-one", id=id, params={"refresh": "true"})
        else:
            self.client.index(index="far-one", id=id, body=source, params={"refresh": "true"})

    def left(self) -> list[str]:
        names = sorted(self.client.indices.get_alias(index="*"))
        return names if len(names) > 3 else []

    def requests(self, target: Any) -> tuple[Any, str]:
        return target.server.client.transport, "perform_request"


class ToKafka(AnyTarget):
    kind = "kafka"
    proven = False
    editions = 2
    occupied = "has records already, and not of this sink"
    rejected = ("repeat('x', 2000000)", "", "more than the topic takes")
    page_variable = "KAFKA"
    server: Kafka

    def __init__(self, settings: Settings, server: Kafka, at_once: int = 0) -> None:
        super().__init__(settings, server, at_once)
        server.made += 1
        self.prefix = f"far-{server.made}"
        self.options = f'bootstrap = "env:{URL}"\nid = "{self.prefix}"\nseconds = 60\n'

    @property
    def url(self) -> str:
        return self.server.bootstrap

    def there(self, table: str) -> str:
        return f"{self.prefix}-{table}"

    def table_options(self, seed: int) -> str:
        return f"partitions = {seed % 3 + 1}"

    def latest(self, table: str) -> dict[str, Any]:
        """The last committed value of each key of a compacted topic."""
        latest = {record.key: record.value for record in self.server.committed(self.there(table))}
        return {key: json.loads(value) for key, value in latest.items() if value is not None}

    def read(self, table: str) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in self.latest(table).values()}

    def occupy(self) -> None:
        self.server.topic(self.there("one"), cleanup_policy="compact")
        self.server.send(self.there("one"), "{}", key="theirs")

    def check(self, declared: DeclaredSink) -> int:
        """Compare topics by a consumer, and by the target's own reader."""
        number = self.number(declared)
        assert {table: self.latest(table) for table in declared.tables} == self.published(declared, number)
        with closing(declared.open()) as target:
            assert isinstance(target, KafkaTarget)
            edition = reader(self.settings, number)
            for changes in DeliveryPlan(self.settings, declared, target.position(), edition.edition).delivery().tables:
                there = target.rows(changes.table).read_all().to_pylist()
                here = edition.relation(f"from {changes.table.name}").to_arrow_table().to_pylist()
                assert sorted(map(repr, there)) == sorted(map(repr, here))
        return number


class ToWebhook(AnyTarget):
    kind = "webhook"
    options = f'url = "env:{URL}"\nsecret = "env:{VARIABLE}"\nbegin = "snapshot"\nseconds = 60\n'
    proven = atomic = False
    page_variable = "CRM_URL"
    server: Webhook

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of a receiver that applies each message once."""
        rows: dict[str, dict[str, Any]] = {}
        for change in self.server.changes():
            table, key = rows.setdefault(change["table"], {}), json.dumps(change["key"], ensure_ascii=False)
            if change["after"] is None:
                table.pop(key, None)
            else:
                table[key] = change["after"]
        return rows

    def read(self, table: str) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in self.rows()[self.there(table)].values()}

    def check(self, declared: DeclaredSink) -> int:
        number = self.number(declared)
        published = self.published(declared, number).items()
        assert self.rows() == {self.there(table): rows for table, rows in published}
        return number

    @contextmanager
    def page(self) -> Iterator[Mapping[str, str]]:
        yield {self.page_variable: self.url, "CRM_SECRET": SECRET}
        [got] = self.server.taken
        assert got.body["data"]["after"]["amount"] == "30.00"


TARGETS: Final[Mapping[str, type[AnyTarget]]] = {
    each.kind: each for each in (ToPostgres, ToRedis, ToOpenSearch, ToKafka, ToWebhook)
}


def bring(target: AnyTarget, declared: DeclaredSink) -> int:
    """Deliver, and check what is there then."""
    number = deliver(target.settings, declared).edition
    assert target.check(declared) == number == reader(target.settings).edition.number
    return number
