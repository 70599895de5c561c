"""Key store in a PostgreSQL database, for several hosts.

The database belongs to one warehouse: a second one would have the same keys, and destroy them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Final

import psycopg

from lake import cost
from lake.connect.postgres.connection import Connection, connect, fetch, is_transient, unavailable
from lake.errors import DeclarationError
from lake.session.spark_session import first_line
from lake.store.keys import COPY, SECRET_BYTES, Identity, Transaction

SCHEMA: Final = "lake_keys"
TABLES: Final = (
    f"DO $$ BEGIN IF to_regnamespace('{SCHEMA}') IS NULL THEN CREATE SCHEMA {SCHEMA}; END IF; END $$",
    f"CREATE TABLE {SCHEMA}.store (id TEXT NOT NULL, secret BYTEA NOT NULL)",
    f"CREATE TABLE {SCHEMA}.keys (stream TEXT, token TEXT, key BYTEA, PRIMARY KEY (stream, token))",
)
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('lake_keys'))"
EXISTS: Final = f"SELECT to_regclass('{SCHEMA}.store') IS NOT NULL"


@dataclass(frozen=True)
class KeyDatabase:
    url: str = field(repr=False)
    where: str

    def is_made(self) -> bool:
        with self.transaction() as transaction:
            [[exists]] = transaction.run(EXISTS)
        return bool(exists)

    def identity(self) -> Identity:
        return _identity(self)

    def make(self, identity: Identity | None = None, rows: Iterable[list[tuple[Any, ...]]] = ()) -> Identity:
        if self.is_made():
            return self.identity()
        with self.transaction(writes=True) as transaction:
            transaction.run(LOCK)
            if transaction.run(EXISTS) == [(True,)]:
                return _stored(transaction)
            for statement in TABLES:
                transaction.run(statement)
            new = identity or Identity(secrets.token_hex(8), secrets.token_bytes(SECRET_BYTES))
            transaction.run(f"INSERT INTO {SCHEMA}.store VALUES (?, ?)", *new)
            for batch in rows:
                transaction.many(f"INSERT INTO {SCHEMA}.keys VALUES (?, ?, ?)", batch)
        return new

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Transaction]:
        """`writes` has no effect: PostgreSQL locks each written row."""
        with self._connected() as connection, connection.transaction():
            connection.execute(f"SET LOCAL search_path = {SCHEMA}".encode())
            yield _PostgresStatements(connection)

    def must_be_whole(self) -> None:
        self.identity()

    def overwrite(self) -> None:
        with self._connected() as connection:
            connection.execute(f"VACUUM (FULL) {SCHEMA}.keys".encode())

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with closing(connect(self.url, "keys", self.where)) as connection:
                yield connection
        except psycopg.Error as error:
            reason = first_line(error)
            if is_transient(error):
                raise unavailable(reason, self.where) from None
            fix = f"have the role own the schema {SCHEMA}, or create it; if its tables are lost, {COPY}"
            raise DeclarationError(f"the key store cannot be read: {reason}", where=self.where, fix=fix) from None


@cache
def _identity(database: KeyDatabase) -> Identity:
    with database.transaction() as transaction:
        if transaction.run(EXISTS) == [(True,)]:
            return _stored(transaction)
    raise DeclarationError("there is no key store", where=database.where, fix=COPY)


def _stored(transaction: Transaction) -> Identity:
    [identity] = transaction.run(f"SELECT id, secret FROM {SCHEMA}.store")
    return Identity(*identity)


@dataclass(frozen=True)
class _PostgresStatements:
    connection: Connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return fetch(self.connection, _with_psycopg_marks(sql), *values)

    def many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self.connection.cursor().executemany(_with_psycopg_marks(sql).encode(), rows)

    def batches(self, sql: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        streamed = self.connection.cursor().stream(_with_psycopg_marks(sql).encode(), values or None)
        while rows := [*islice(streamed, cost.PEOPLE_AT_ONCE)]:
            yield rows


def _with_psycopg_marks(sql: str) -> str:
    return sql.replace("?", "%s")
