"""The key store: a key for each person of each stream, outside the tables: in a SQLite file, or in PostgreSQL.

Whoever has the tables and not this store cannot read what is personal. It holds no names: people are told by tokens. A
destroyed key leaves the token without a key, so that it is never made anew. The secret that makes the tokens never
changes.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lake import cost
from lake.config import Settings
from lake.contracts.encryption import KEY, SUBJECT
from lake.errors import DeclarationError
from lake.store.keys.file import KeyFile, new_file
from lake.store.keys.home import COPY, Home, Identity

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COPY", "KeyStore", "copy_store", "has_store", "open_store", "restore_store"]

KEY_BYTES: Final = 32
KEYS: Final = "SELECT token, key FROM keys WHERE stream = ? AND key IS NOT NULL"


@dataclass(frozen=True)
class KeyStore:
    """The store at `home`: its `id`, and the `secret` by which it makes tokens."""

    home: Home
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
        new = [(stream, token, secrets.token_bytes(KEY_BYTES)) for token in sorted(tokens)]
        if new:
            with self.home.transaction(writes=True) as transaction:
                transaction.many("INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT DO NOTHING", new)

    def destroy(self, stream: str, tokens: Iterable[str]) -> None:
        """Destroys the keys of the tokens, known or not, for good."""
        with self.home.transaction(writes=True) as transaction:
            transaction.many(
                "INSERT INTO keys VALUES (?, ?, NULL) ON CONFLICT (stream, token) DO UPDATE SET key = NULL",
                [(stream, token) for token in sorted(tokens)],
            )
        self.home.overwrite()

    def living(self, stream: str, among: Iterable[str]) -> pa.Table:
        """The keys of the people of the stream `among` some tokens: columns SUBJECT and KEY."""
        with self.home.transaction() as transaction:
            transaction.run("CREATE TEMP TABLE asked (token TEXT PRIMARY KEY)")
            transaction.many("INSERT INTO asked VALUES (?)", [(token,) for token in among])
            asked = "token IN (SELECT token FROM asked)"
            return _as_arrow(transaction.run(f"{KEYS} AND {asked} ORDER BY token", stream))

    def every(self, stream: str) -> Iterator[pa.Table]:
        """What `living` gives of all people of the stream, in parts of PEOPLE_AT_ONCE; one at least."""
        for rows in self._pages(KEYS, stream):
            yield _as_arrow(rows)

    def known(self, stream: str) -> Iterator[pa.RecordBatch]:
        """The tokens of the stream that have, or had, a key: column SUBJECT, in parts of PEOPLE_AT_ONCE."""
        import pyarrow as pa

        for rows in self._pages("SELECT token FROM keys WHERE stream = ?", stream):
            yield pa.record_batch({SUBJECT: pa.array([token for (token,) in rows], pa.string())})

    def knows(self, stream: str, token: str) -> bool:
        """Whether a token of the stream has, or had, a key."""
        with self.home.transaction() as transaction:
            return bool(transaction.run("SELECT 1 FROM keys WHERE stream = ? AND token = ?", stream, token))

    def destroyed(self, stream: str) -> set[str]:
        """The tokens of the stream whose keys were destroyed."""
        with self.home.transaction() as transaction:
            gone = transaction.run("SELECT token FROM keys WHERE stream = ? AND key IS NULL", stream)
        return {token for (token,) in gone}

    def count(self, stream: str) -> int:
        """How many people of the stream have, or had, a key."""
        with self.home.transaction() as transaction:
            [[count]] = transaction.run("SELECT count(*) FROM keys WHERE stream = ?", stream)
        return int(count)

    def people(self) -> dict[str, int]:
        """The streams, each with how many people have, or had, a key."""
        with self.home.transaction() as transaction:
            return dict(transaction.run("SELECT stream, count(*) FROM keys GROUP BY stream ORDER BY stream"))

    def must_be_whole(self) -> None:
        """Raises DeclarationError where some of it is damaged."""
        self.home.must_be_whole()

    def copy(self, home: Home) -> None:
        """Makes a store with the same keys, as they are between two transactions, at another `home`."""
        with self.home.transaction() as transaction:
            home.make(Identity(self.id, self.secret), transaction.batches("SELECT stream, token, key FROM keys"))

    def _pages(self, query: str, stream: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a `query` for the keys of a stream by token, which comes first, each part in its own transaction:
        whoever writes waits for no reader.
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
    import pyarrow as pa

    tokens, keys = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({SUBJECT: pa.array(tokens, pa.string()), KEY: pa.array(keys, pa.binary())})


def has_store(settings: Settings) -> bool:
    """Whether the project has a key store."""
    return _home(settings).is_made()


def open_store(settings: Settings, *, make: bool = False) -> KeyStore:
    """The project's key store; with `make`, made where there is none, with the secret of the one before if it is there.

    Raises DeclarationError where it is missing, or it or its secret cannot be read, Unavailable where its server does
    not answer.
    """
    home = _home(settings)
    return KeyStore(home, *(home.make() if make else home.identity()))


def copy_store(settings: Settings, file: Path) -> None:
    """Copies the key store to the new `file`, and its secret to one beside it."""
    open_store(settings).copy(new_file(file))


def restore_store(settings: Settings, file: Path) -> KeyStore:
    """Makes the project's key store of the copy in `file`.

    Raises DeclarationError where the project has one, or `file` is none or damaged.
    """
    copy, home = KeyFile(file), _home(settings)
    try:
        source = KeyStore(copy, *copy.identity())
        source.must_be_whole()
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
    from lake.store.keys.database import KeyDatabase

    return KeyDatabase(settings.keys_url, settings.keys_name)
