"""Homes of a key store: the protocol of the databases that can hold one, and a SQLite file, the default.

The file is readable by its owner only, with the store's secret in a small file beside it. If the store is lost, a new
one with that secret makes the same tokens as the log has.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from lake import cost
from lake.errors import DeclarationError, forbidden, full
from lake.session import file_modes
from lake.session.spark_session import first_line

COPY: Final = "restore its newest backup; without one, lake forget STREAM --lost forgets the people whose keys are lost"
SECRET_BYTES: Final = 32


class Identity(NamedTuple):
    id: str
    secret: bytes


class Transaction(Protocol):
    """Statements in the SQL common to SQLite and PostgreSQL, with ? for a value: all or none take effect."""

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    def many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None: ...

    def batches(self, sql: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]: ...


class Home(Protocol):
    """Database with the tables `store (id, secret)`, of one row, and `keys (stream, token, key)`.

    Raises DeclarationError if it cannot be read or written, Unavailable if a retry may succeed.
    """

    @property
    def where(self) -> str:
        """Its name in messages; no secrets."""

    def is_made(self) -> bool: ...

    def identity(self) -> Identity:
        """Return its identity. Raises DeclarationError if there is no store."""

    def make(self, identity: Identity | None = None, rows: Iterable[list[tuple[Any, ...]]] = ()) -> Identity:
        """Create the store if there is none, in one transaction, with this identity and these keys.

        Returns the identity of the store, also if it already existed.
        """

    def transaction(self, *, writes: bool = False) -> AbstractContextManager[Transaction]:
        """Yield a transaction; one that writes waits for others that do."""

    def must_be_whole(self) -> None:
        """Raise DeclarationError if the store is damaged."""

    def overwrite(self) -> None:
        """Remove deleted and replaced values from the tables' files."""


TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL, secret BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS keys (stream TEXT, token TEXT, key BLOB, PRIMARY KEY (stream, token)) WITHOUT ROWID",
)


@dataclass(frozen=True)
class KeyFile:
    file: Path

    @property
    def where(self) -> str:
        return str(self.file)

    def is_made(self) -> bool:
        return self.file.exists()

    def identity(self) -> Identity:
        if not (self.file.exists() and self.file.stat().st_size):
            what = "the key store is empty" if self.file.exists() else "there is no key store"
            raise DeclarationError(what, where=self.where, fix=COPY)
        return self.make()

    def make(self, identity: Identity | None = None, rows: Iterable[list[tuple[Any, ...]]] = ()) -> Identity:
        if not self.file.exists():
            _create(self.file)
        with self.transaction() as transaction:
            tables = transaction.run("SELECT 1 FROM sqlite_schema WHERE name = 'store'")
            found = transaction.run("SELECT id, secret FROM store LIMIT 1") if tables else []
        if not found:
            with self.transaction(writes=True) as made:
                for table in TABLES:
                    made.run(table)
                if not (found := made.run("SELECT id, secret FROM store LIMIT 1")):
                    found = [identity or Identity(secrets.token_hex(8), _secret_of(self.file))]
                    made.run("INSERT INTO store VALUES (?, ?)", *found[0])
                    for batch in rows:
                        made.many("INSERT INTO keys VALUES (?, ?, ?)", batch)
        known = Identity(*found[0])
        with suppress(OSError):  # the next open tries again
            _write_secret(known.secret, secret_file(self.file))
        return known

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Transaction]:
        try:
            with closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                yield _SqliteStatements(connection)
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if known := full(error, where=self.where) or forbidden(error, where=self.where):
                raise known from error
            raise DeclarationError(
                f"the key store cannot be read: {first_line(error)}", where=self.where, fix=COPY
            ) from None

    def must_be_whole(self) -> None:
        with self.transaction() as read:
            [[verdict]] = read.run("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)

    def overwrite(self) -> None:
        """Do nothing: SQLite overwrote the values when they were deleted, see `secure_delete`."""


@dataclass(frozen=True)
class _SqliteStatements:
    connection: sqlite3.Connection

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self.connection.executemany(sql, rows)

    def batches(self, sql: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        found = self.connection.execute(sql, values)
        while rows := found.fetchmany(cost.PEOPLE_AT_ONCE):
            yield rows


def new_file(file: Path) -> KeyFile:
    """Raises FileExistsError."""
    _create(file, os.O_EXCL)
    return KeyFile(file)


def _create(file: Path, flags: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR | flags, 0o600))
    file_modes.flush_above(file)


def secret_file(file: Path) -> Path:
    """Return the file with a copy of the secret: hexadecimal digits, readable by its owner only."""
    return file.with_name(f"{file.name}.secret")


def _secret_of(file: Path) -> bytes:
    kept = secret_file(file)
    if not kept.exists():
        return secrets.token_bytes(SECRET_BYTES)
    try:
        secret = bytes.fromhex(kept.read_text())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise DeclarationError("the secret of the key store cannot be read", where=str(kept), fix="restore its backup")
    return secret


def _write_secret(secret: bytes, file: Path) -> None:
    if file.exists():
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{secret.hex()}\n")
            opened.flush()
            os.fsync(descriptor)
        Path(name).replace(file)
        file_modes.flush([file.parent])
    finally:
        Path(name).unlink(missing_ok=True)
