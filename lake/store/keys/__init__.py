"""Key store: one key for each person of each stream, outside the tables, in a SQLite file or in PostgreSQL.

Without it nobody can read personal values of the tables. Persons are identified by tokens, which are made by a secret
that never changes. A destroyed key leaves the token without a key, so it is never made again.
"""

from __future__ import annotations

import hmac
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
from lake.config import Settings
from lake.connectors import connector
from lake.contracts.encryption import KEY, SUBJECT
from lake.errors import DeclarationError, Unavailable, forbidden, full
from lake.lazy import pa
from lake.session import file_modes
from lake.session.spark_session import first_line

COPY: Final = "restore its newest backup; without one, lake forget STREAM --lost forgets the people whose keys are lost"
ACCESS: Final = "let this user read and write that file and its folder; the setting keys names it"
PRIMARY: Final = 0xFF
"""Bits of SQLite's error codes without their details."""
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
        return self._size() is not None

    def identity(self) -> Identity:
        size = self._size()
        if not size:
            what = "there is no key store" if size is None else "the key store is empty"
            raise DeclarationError(what, where=self.where, fix=COPY)
        return self.make()

    def make(self, identity: Identity | None = None, rows: Iterable[list[tuple[Any, ...]]] = ()) -> Identity:
        if self._size() is None:
            with self._access():
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
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code == sqlite3.SQLITE_BUSY:
                what, fix = "the key store is locked by another process", "try again when it has ended"
                raise Unavailable(what, where=self.where, fix=fix) from None
            if code & PRIMARY == sqlite3.SQLITE_CANTOPEN:
                with self._access():  # SQLite does not report why it cannot open the file
                    self.file.open("r+b").close()
            raise DeclarationError(
                f"the key store cannot be read: {first_line(error)}",
                where=self.where,
                fix=ACCESS if code & PRIMARY == sqlite3.SQLITE_CANTOPEN else COPY,
            ) from None

    def _size(self) -> int | None:
        with self._access(), suppress(FileNotFoundError):
            return self.file.stat().st_size
        return None

    @contextmanager
    def _access(self) -> Iterator[None]:
        """Report that the block may not open the file, or that it is a folder."""
        try:
            yield
        except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
            what = f"the key store cannot be opened: {(error.strerror or str(error)).lower()}"
            raise DeclarationError(what, where=self.where, fix=ACCESS) from None

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


KEY_BYTES: Final = 32
KEYS: Final = "SELECT token, key FROM keys WHERE stream = ? AND key IS NOT NULL"


@dataclass(frozen=True)
class KeyStore:
    home: Home
    id: str
    secret: bytes

    @property
    def fingerprint(self) -> str:
        return hmac.digest(self.secret, b"fingerprint", "sha256").hex()[:16]

    def token(self, stream: str, subject: str) -> str:
        return hmac.digest(self.secret, f"{stream}:{subject}".encode(), "sha256").hex()

    def derived(self, purpose: str) -> str:
        return hmac.digest(self.secret, purpose.encode(), "sha256").hex()

    def make(self, stream: str, tokens: Iterable[str]) -> None:
        new = [(stream, token, secrets.token_bytes(KEY_BYTES)) for token in sorted(tokens)]
        if new:
            with self.home.transaction(writes=True) as transaction:
                transaction.many("INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT DO NOTHING", new)

    def destroy(self, stream: str, tokens: Iterable[str]) -> None:
        with self.home.transaction(writes=True) as transaction:
            transaction.many(
                "INSERT INTO keys VALUES (?, ?, NULL) ON CONFLICT (stream, token) DO UPDATE SET key = NULL",
                [(stream, token) for token in sorted(tokens)],
            )
        self.home.overwrite()

    def keys_of(self, stream: str, tokens: Iterable[str]) -> pa.Table:
        """Return the keys of `tokens` that are not destroyed: columns SUBJECT and KEY."""
        with self.home.transaction() as transaction:
            transaction.run("CREATE TEMP TABLE asked (token TEXT PRIMARY KEY)")
            transaction.many("INSERT INTO asked VALUES (?)", [(token,) for token in tokens])
            asked = "token IN (SELECT token FROM asked)"
            return _as_arrow(transaction.run(f"{KEYS} AND {asked} ORDER BY token", stream))

    def all_keys(self, stream: str) -> Iterator[pa.Table]:
        for rows in self._pages(KEYS, stream):
            yield _as_arrow(rows)

    def tokens(self, stream: str) -> Iterator[pa.RecordBatch]:
        for rows in self._pages("SELECT token FROM keys WHERE stream = ?", stream):
            yield pa.record_batch({SUBJECT: pa.array([token for (token,) in rows], pa.string())})

    def has_token(self, stream: str, token: str) -> bool:
        with self.home.transaction() as transaction:
            return bool(transaction.run("SELECT 1 FROM keys WHERE stream = ? AND token = ?", stream, token))

    def destroyed(self, stream: str) -> set[str]:
        with self.home.transaction() as transaction:
            gone = transaction.run("SELECT token FROM keys WHERE stream = ? AND key IS NULL", stream)
        return {token for (token,) in gone}

    def count(self, stream: str) -> int:
        with self.home.transaction() as transaction:
            [[count]] = transaction.run("SELECT count(*) FROM keys WHERE stream = ?", stream)
        return int(count)

    def people(self) -> dict[str, int]:
        with self.home.transaction() as transaction:
            return dict(transaction.run("SELECT stream, count(*) FROM keys GROUP BY stream ORDER BY stream"))

    def copy(self, home: Home) -> None:
        with self.home.transaction() as transaction:
            home.make(Identity(self.id, self.secret), transaction.batches("SELECT stream, token, key FROM keys"))

    def _pages(self, query: str, stream: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a `query` by token, its first column.

        Each part has its own transaction, so writers do not wait for readers.
        """
        after, page = "", cost.PEOPLE_AT_ONCE
        while True:
            with self.home.transaction() as transaction:
                rows = transaction.run(f"{query} AND token > ? ORDER BY token LIMIT {page}", stream, after)
            yield rows
            if len(rows) < page:
                return
            after = rows[-1][0]


def _as_arrow(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    tokens, keys = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({SUBJECT: pa.array(tokens, pa.string()), KEY: pa.array(keys, pa.binary())})


def has_store(settings: Settings) -> bool:
    return _home(settings).is_made()


def open_store(settings: Settings, *, make: bool = False) -> KeyStore:
    """Return the project's key store; with `make`, create a missing one, with the secret of an existing secret file.

    Raises DeclarationError if it is missing, or it or its secret is unreadable, Unavailable if its server does not
    answer.
    """
    home = _home(settings)
    return KeyStore(home, *(home.make() if make else home.identity()))


@contextmanager
def copied_store(settings: Settings, file: Path) -> Iterator[None]:
    """Copy the key store into a new file, which is deleted if this or the block fails. Raises FileExistsError."""
    store, has_secret = open_store(settings), secret_file(file).exists()
    _create(file, os.O_EXCL)
    try:
        store.copy(KeyFile(file))
        yield
    except BaseException:
        file.unlink()
        if not has_secret:
            secret_file(file).unlink(missing_ok=True)
        raise


def restore_store(settings: Settings, file: Path) -> KeyStore:
    """Create the project's key store from the copy in `file`.

    Raises DeclarationError if the project has one, or `file` is missing or damaged.
    """
    copy, home = KeyFile(file), _home(settings)
    try:
        source = KeyStore(copy, *copy.identity())
        copy.must_be_whole()
    except DeclarationError as fault:
        fix = "name a whole key store, such as `lake backup DIR --keys FILE` writes"
        raise DeclarationError(fault.what, where=fault.where, fix=fix) from None
    if home.is_made():
        raise DeclarationError(
            "there is a key store already",
            where=home.where,
            fix="move it away, or name another place by the setting keys",
        )
    source.copy(home)
    return KeyStore(home, source.id, source.secret)


def _home(settings: Settings) -> Home:
    if not settings.keys_url:
        return KeyFile(settings.keys_path)
    home: Home = connector("lake.keys", settings.keys_url.partition("://")[0], "setting 'keys'")(
        settings.keys_url, settings.keys_name
    )
    return home
