"""Database with tables for streams, a spool in memory, and a plain replay of its records."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from lake.connect.postgres.source.messages import read_lsn
from lake.connect.postgres.source.options import postgres_options
from lake.connect.postgres.source.reader import PostgresSource as Source
from lake.connect.postgres.source.values import PLACEHOLDER
from lake.contracts.contract import Contract, read_contract
from lake.contracts.declared_files import FromEnvironment
from lake.sources.source import Progress, SourceRecord
from tests.servers.postgres import Postgres
from tests.spool import Kept

READER: Final = "lake"
PASSWORD: Final = "only in the environment"
VARIABLE: Final = "SHOP_DSN"
UNAVAILABLE: Final = {PLACEHOLDER, base64.b64encode(PLACEHOLDER.encode()).decode()}


def contract(
    stream: str,
    key: Sequence[str],
    fields: Mapping[str, Any],
    required: Mapping[str, Any] = MappingProxyType({}),
    **facts: Any,
) -> Contract:
    """Return the contract of a stream of changes; key and required fields may not be null."""
    types = [{"name": name, "type": kind if name in key else ["null", kind]} for name, kind in fields.items()]
    types += [{"name": name, "type": kind} for name, kind in required.items()]
    about = {"key": list(key), "id": ["lsn", "ordinal"], "envelope": "debezium", "broadcast": "op = 't'"} | facts
    facts_of_source = [
        {"name": "op", "type": "string", "from": "op"},
        {"name": "lsn", "type": "long", "from": "source.lsn"},
        {"name": "ordinal", "type": "long", "from": "source.ordinal"},
    ]
    schema = {"type": "record", "name": stream, "doc": "A change.", "lake": about, "fields": types + facts_of_source}
    return read_contract(json.dumps(schema), file=f"schemas/{stream}.avsc")


class Spooled(Kept):
    """Spool of messages."""

    def messages(self, stream: str | None = None) -> list[dict[str, Any]]:
        """Return the messages as JSON, their numbers exact."""
        return [read(record) for of, record in self.records if stream in (None, of)]


def read(record: SourceRecord) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(record.text, parse_float=Decimal)
    return message


@dataclass
class Shop:
    """Test database on a server, and contracts for some of its tables."""

    server: Postgres | None
    dsn: str
    contracts: dict[str, Contract] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def execute(self, *statements: str) -> None:
        """Execute each statement in its own transaction."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(sql.encode()).fetchall()

    def connect(self, **more: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn, autocommit=True, **more)

    def stream(self, name: str, key: Sequence[str], fields: Mapping[str, Any], **facts: Any) -> None:
        self.contracts[name] = contract(name, key, fields, **facts)

    @property
    def reader_dsn(self) -> str:
        """Return the DSN of the reader role, which is no superuser."""
        return make_conninfo(self.dsn, user=READER, password=PASSWORD)

    def source(self, tables: Mapping[str, str] | None = None, **options: Any) -> Source:
        """Return the source of all streams, each of the table of its name; it is closed after the test."""
        streams = dict(tables or {stream: f"public.{stream}" for stream in self.contracts})
        said = {
            "dsn": FromEnvironment(os.environ[VARIABLE]),
            "publication": "lake",
            "slot": self.slot,
            "streams": streams,
        } | options
        source = Source(postgres_options("shop", said, self.contracts, "sources/shop.toml"))
        self.sources.append(source)
        return source

    @property
    def slot(self) -> str:
        """Return the slot name; slots belong to the server, so each database needs its own."""
        name = psycopg.conninfo.conninfo_to_dict(self.dsn)["dbname"]
        return f"lake_{name}"

    def table(self, table: str, key: Sequence[str] = ("id",)) -> dict[Any, dict[str, Any]]:
        """Return the rows of the table by key, as in messages."""
        with self.connect() as connection:
            return rows(connection, table, key)


def rows(connection: psycopg.Connection[Any], table: str, key: Sequence[str]) -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by key, as in messages."""
    cursor = connection.execute(f"SELECT * FROM {table}".encode())
    names = [column.name for column in cursor.description or ()]
    found = [dict(zip(names, map(message_value, row), strict=True)) for row in cursor]
    return {tuple(row[name] for name in key): row for row in found}


@contextmanager
def exported(shop: Shop, name: str, tables: Iterable[str]) -> Iterator[tuple[int, psycopg.Connection[Any]]]:
    """Return a position, and a connection that sees everything committed before it."""
    with shop.connect() as reading:
        with psycopg.connect(shop.dsn, autocommit=True, replication="database") as exporting:
            create = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
            created = exporting.execute(create.encode()).fetchone()
            assert created is not None
            reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reading.execute(f"SET TRANSACTION SNAPSHOT '{created[2]}'".encode())
            reading.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS SHARE MODE".encode())
        yield read_lsn(created[1]), reading


def is_rewritten(connection: psycopg.Connection[Any], table: str) -> bool:
    """Return whether a table was rewritten since the connection's snapshot, which then shows it empty."""
    same = f"SELECT relfilenode = pg_relation_filenode(oid) FROM pg_class WHERE relname = '{table}'"
    return connection.execute(same.encode()).fetchall() != [(True,)]


def message_value(value: Any) -> Any:  # noqa: PLR0911 a line for each type
    """Return the message value of a database value."""
    match value:
        case dt.datetime() if value.tzinfo is not None:
            return message_value(value.astimezone(dt.UTC).replace(tzinfo=None)) + "Z"
        case dt.datetime() | dt.time():
            return re.sub(r"\.(\d*?)0+$", r".\1", value.isoformat())  # Microseconds are there, or are 0
        case dt.date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case uuid.UUID():
            return str(value)
        case list():
            return [message_value(item) for item in value]
        case float():
            return Decimal(repr(value))
    return value


State = dict[str, dict[Any, dict[str, Any]]]


def replay(records: Iterable[tuple[str, SourceRecord]], contracts: Mapping[str, Contract], state: State) -> State:
    """Apply the messages to `state` in order; unknown values keep their old value."""
    for stream, record in records:
        message = read(record)
        key = contracts[stream].key
        table = state.setdefault(stream, {})
        match message["op"]:
            case "t":
                table.clear()
            case "d":
                assert message["after"] is None
                del table[tuple(message["before"][name] for name in key)]
            case op:
                row = message["after"]
                at = tuple(row[name] for name in key)
                before = table.get(at, {})
                assert (op == "u") == bool(before), message
                table[at] = {name: before[name] if is_known(value) else value for name, value in row.items()}
    return state


def is_known(value: Any) -> bool:
    """Return whether the change has the value."""
    return isinstance(value, str) and value in UNAVAILABLE


def order(record: SourceRecord) -> tuple[int, int]:
    """Return the order of a change among all changes of its source."""
    source = read(record)["source"]
    return source["lsn"], source["ordinal"]


def drained(source: Source, after: Progress | None, spool: Spooled) -> Progress | None:
    """Read and acknowledge until nothing is new."""
    while (progress := source.read(after, spool)) is not None:
        progress = json.loads(json.dumps(progress))
        source.acknowledge(progress)
        after = progress
    return after
