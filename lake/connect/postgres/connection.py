"""Connections to PostgreSQL for sources, sinks and the key store, and translation of connection errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake.errors import DeclarationError, LakeError, Unavailable

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

PASSING: Final = frozenset({"08", "53", "57", "58"})
"""Classes of SQLSTATE that may pass: connection, resources, operator intervention, system."""


def connect(dsn: str, name: str, where: str, **more: str) -> Connection:
    """Return an autocommit connection by a libpq connection string; `name` becomes the application name.

    Raises Unavailable if the server does not answer, DeclarationError if it rejects the login.
    """
    import psycopg

    try:
        info = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise DeclarationError(
            "the connection string cannot be read",
            where=where,
            fix="write it as libpq reads it: host=… dbname=… user=…, or postgresql://…",
        ) from None
    given = {"connect_timeout": "10", "application_name": f"lake {name}"} | info | more
    try:
        return psycopg.connect(autocommit=True, **given)  # type: ignore[arg-type] # words of libpq's own
    except psycopg.OperationalError as error:
        raise _refused(str(error), where) from None


def _refused(message: str, where: str) -> LakeError:
    reason = [line for line in message.strip().splitlines() if not line.startswith("\t")][-1]  # without libpq's hints
    if "password authentication failed" in message or "no password supplied" in message or "does not exist" in message:
        fix = "name a role that may log in, its password and its database"
        return DeclarationError(f"PostgreSQL refused: {reason}", where=where, fix=fix)
    return Unavailable(f"PostgreSQL does not answer: {reason}", where=where, fix="try again when it does")


def fetch(connection: Connection, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a statement; none if it has no result."""
    cursor = connection.execute(sql.encode(), parameters or None)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def translated_errors(translate: Callable[[psycopg.Error], LakeError]) -> Iterator[None]:
    """Raise what `translate` makes of an error of psycopg in the block."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def is_transient(error: psycopg.Error) -> bool:
    """Return whether a retry may succeed."""
    import psycopg

    return isinstance(error, psycopg.OperationalError) or (error.sqlstate or "")[:2] in PASSING


def unavailable(message: str, where: str) -> Unavailable:
    """Return the error for a server that could not answer now."""
    return Unavailable(f"PostgreSQL could not answer: {message}", where=where, fix="try again")


def server_error(message: str, where: str) -> LakeError:
    """Return the error for any other failure of the server."""
    return LakeError(f"PostgreSQL failed: {message}", where=where, fix="see the server's log")
