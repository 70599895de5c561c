"""Key store: one key for each person of each stream, outside the tables, in a SQLite file or in PostgreSQL.

Without it nobody can read personal values of the tables. Persons are identified by tokens, which a secret makes that
never changes. A destroyed key leaves the token without a key, so it is never made again.
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
from lake.connectors import connector
from lake.contracts.encryption import KEY, SUBJECT
from lake.errors import DeclarationError
from lake.store.keys.home import COPY, Home, Identity, KeyFile, new_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COPY", "KeyStore", "copy_store", "has_store", "open_store", "restore_store"]

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
        import pyarrow as pa

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
    import pyarrow as pa

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


def copy_store(settings: Settings, file: Path) -> None:
    open_store(settings).copy(new_file(file))


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
