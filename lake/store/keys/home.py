"""Protocol of the databases that hold a key store: a SQLite file or a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

COPY: Final = "restore its newest backup; without one, lake forget STREAM --lost forgets the people whose keys are lost"
SECRET_BYTES: Final = 32


class Identity(NamedTuple):
    """Permanent `id` of a store, and the `secret` by which it makes tokens."""

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
