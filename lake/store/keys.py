"""The key store: a key for each person of each stream, in one SQLite file outside the tables, for its owner alone.

Whoever has the tables and not this file cannot read what is personal. It holds no names: people are told by tokens. A
destroyed key leaves the token without a key, so that it is never made anew.

The secret that makes the tokens never changes, and is in a small file beside it too: a store that is made anew tells
people and events by the tokens that the log has.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.contracts.encryption import KEY, SUBJECT
from lake.errors import DeclarationError, full
from lake.session import first_line

if TYPE_CHECKING:
    import pyarrow as pa

KEY_BYTES: Final = 32
AT_ONCE: Final = 1 << 16
"""Keys held as objects of Python at a time, of about 250 bytes each; as Arrow they take 100."""
COPY: Final = "restore its newest backup; without one, lake forget STREAM --lost forgets the people whose keys are lost"
SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL, secret BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS keys (stream TEXT, token TEXT, key BLOB, PRIMARY KEY (stream, token)) WITHOUT ROWID;"""


@dataclass(frozen=True)
class KeyStore:
    """The store in `file`: its `id`, and the `secret` by which it makes tokens."""

    file: Path
    id: str
    secret: bytes

    @property
    def fingerprint(self) -> str:
        """What tells whether another store has the same secret."""
        return hmac.digest(self.secret, b"fingerprint", "sha256").hex()[:16]

    def token(self, stream: str, subject: str) -> str:
        """The token of a person, as `sealing.token` makes it."""
        return hmac.digest(self.secret, f"{stream}:{subject}".encode(), "sha256").hex()

    def derived(self, purpose: str) -> str:
        """A key for a purpose of its own."""
        return hmac.digest(self.secret, purpose.encode(), "sha256").hex()

    def make(self, stream: str, tokens: Iterable[str]) -> None:
        """Makes a key for each of the tokens that the store does not know yet."""
        with _connected(self.file) as con:
            con.executemany(
                "INSERT OR IGNORE INTO keys VALUES (?, ?, ?)",
                [(stream, token, secrets.token_bytes(KEY_BYTES)) for token in tokens],
            )

    def destroy(self, stream: str, tokens: Iterable[str]) -> None:
        """Destroys the keys of the tokens, known or not, for good: SQLite overwrites what it deletes."""
        with _connected(self.file) as con:
            con.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?, NULL)", [(stream, token) for token in tokens])

    def living(self, stream: str, among: Iterable[str] | None = None) -> pa.Table:
        """The keys of the stream, of all people or those `among` some tokens: columns SUBJECT and KEY."""
        import pyarrow as pa

        schema = pa.schema({SUBJECT: pa.string(), KEY: pa.binary()})
        with _connected(self.file) as con:
            query = "SELECT token, key FROM keys WHERE stream = ? AND key IS NOT NULL"
            if among is not None:
                con.execute("CREATE TEMP TABLE asked (token TEXT PRIMARY KEY)")
                con.executemany("INSERT INTO asked VALUES (?)", [(token,) for token in among])
                query += " AND token IN (SELECT token FROM asked)"
            query += " ORDER BY token"
            found, batches = con.execute(query, [stream]), []
            while rows := found.fetchmany(AT_ONCE):
                tokens, keys = zip(*rows, strict=True)
                batches.append(pa.record_batch({SUBJECT: pa.array(tokens), KEY: pa.array(keys)}, schema))
        return pa.Table.from_batches(batches, schema)

    def known(self, stream: str) -> set[str]:
        """The tokens of the stream that have, or had, a key."""
        with _connected(self.file) as con:
            return {token for (token,) in con.execute("SELECT token FROM keys WHERE stream = ?", [stream])}

    def destroyed(self, stream: str) -> set[str]:
        """The tokens of the stream whose keys were destroyed."""
        with _connected(self.file) as con:
            query = "SELECT token FROM keys WHERE stream = ? AND key IS NULL"
            return {token for (token,) in con.execute(query, [stream])}

    def must_be_whole(self) -> None:
        """Raises DeclarationError where some of the file is damaged."""
        with _connected(self.file) as con:
            [verdict] = con.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)

    def count(self, stream: str) -> int:
        """How many people of the stream have, or had, a key."""
        with _connected(self.file) as con:
            [[count]] = con.execute("SELECT count(*) FROM keys WHERE stream = ?", [stream]).fetchall()
        return int(count)


def has_store(settings: Settings) -> bool:
    """Whether the project has a key store."""
    return settings.keys_path.exists()


def open_store(settings: Settings, *, make: bool = False) -> KeyStore:
    """The project's key store; with `make`, made where there is none, with the secret of the one before if it is there.

    Raises DeclarationError where it is missing, or it or its secret cannot be read.
    """
    file = settings.keys_path
    if not make and not (file.exists() and file.stat().st_size):
        what = "the key store is empty" if file.exists() else "there is no key store"
        raise DeclarationError(what, where=str(file), fix=COPY)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    with _connected(file) as con:
        con.executescript(SCHEMA)
        if not con.execute("SELECT 1 FROM store").fetchall():
            con.execute("INSERT INTO store VALUES (?, ?)", [secrets.token_hex(8), _secret(file)])
        [[id_, secret]] = con.execute("SELECT id, secret FROM store LIMIT 1").fetchall()
    with suppress(OSError):  # whoever opens it next tries again
        _keep(secret, secret_file(file))
    return KeyStore(file, id_, secret)


def copy_store(settings: Settings, file: Path) -> None:
    """Copies the key store, as it is between two transactions, and its secret to the new `file` and one beside it."""
    source = open_store(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with _connected(source.file) as con, closing(sqlite3.connect(file)) as copy:
        con.backup(copy)
    _keep(source.secret, secret_file(file))


def secret_file(file: Path) -> Path:
    """Where the secret of the key store `file` is kept besides: in hexadecimal digits, for its owner alone."""
    return file.with_name(f"{file.name}.secret")


def _secret(file: Path) -> bytes:
    """The secret of a store that is made in `file`."""
    kept = secret_file(file)
    if not kept.exists():
        return secrets.token_bytes(KEY_BYTES)
    try:
        secret = bytes.fromhex(kept.read_text())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise DeclarationError("the secret of the key store cannot be read", where=str(kept), fix="restore its backup")
    return secret


def _keep(secret: bytes, file: Path) -> None:
    """Writes the secret to `file`, whole, where it is not there yet."""
    if file.exists():
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{secret.hex()}\n")
            opened.flush()
            os.fsync(descriptor)
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _connected(file: Path) -> Iterator[sqlite3.Connection]:
    """One transaction; `secure_delete` has what is deleted overwritten.

    Raises DeclarationError where the file is no whole database.
    """
    try:
        with closing(sqlite3.connect(file, timeout=30)) as con, con:
            con.execute("PRAGMA secure_delete = ON")
            yield con
    except sqlite3.DatabaseError as error:
        if no_room := full(error, where=str(file)):
            raise no_room from error
        raise DeclarationError(
            f"the key store cannot be read: {first_line(error)}", where=str(file), fix=COPY
        ) from None
