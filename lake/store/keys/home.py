"""Where a key store is kept: what a SQLite file and a PostgreSQL database both are to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

COPY: Final = "restore its newest backup; without one, lake forget STREAM --lost forgets the people whose keys are lost"
SECRET_BYTES: Final = 32


class Identity(NamedTuple):
    """What a store has for good: the `id` that tells it from others, and the `secret` by which it makes tokens."""

    id: str
    secret: bytes


class Transaction(Protocol):
    """Statements in the SQL that SQLite and PostgreSQL share, with ? for a value: all of them count, or none."""

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of an answer; none where it has none."""

    def many(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """The statement for each of the rows."""

    def batches(self, sql: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of an answer, at most PEOPLE_AT_ONCE of them at a time."""


class Home(Protocol):
    """A database with the tables `store (id, secret)`, of one row, and `keys (stream, token, key)`.

    What cannot be read or written raises DeclarationError, what may be gone the next time Unavailable.
    """

    @property
    def where(self) -> str:
        """What a person knows it by; nothing secret."""

    def is_made(self) -> bool:
        """Whether there is a store."""

    def identity(self) -> Identity:
        """That of the store. Raises DeclarationError where there is none."""

    def make(self, identity: Identity | None = None, rows: Iterable[list[tuple[Any, ...]]] = ()) -> Identity:
        """Makes the store where there is none, in one transaction: with this identity, and with such keys.

        Returns the identity that it has, also where it was there.
        """

    def transaction(self, *, writes: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction; one that writes waits for others that do."""

    def must_be_whole(self) -> None:
        """Raises DeclarationError where some of it is damaged."""

    def overwrite(self) -> None:
        """Has nothing left in the tables' files of what was deleted or replaced in them."""
