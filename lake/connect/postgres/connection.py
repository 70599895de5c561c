"""Sessions of PostgreSQL for sources, sinks and the key store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final, TypeAlias

import psycopg

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.text import ENCODED

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

TRANSIENT_CLASSES: Final = frozenset({"08", "53", "57", "58"})
"""Classes of SQLSTATE: connection, resources, operator intervention, system."""
UNESCAPED_LOGIN: Final = re.compile(r"\w+://(?:[^/@]*@)?+[^?@]*@")
"""URL with an unescaped sign in its user or password. libpq takes what follows for a host, which its errors show."""
NO_RIGHT: Final = "42501"
SETTINGS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


def connect(dsn: str, name: str, where: str, **extra: str) -> Connection:
    """Connect by a libpq connection string, in autocommit mode; `name` becomes the application name.

    Raises Unavailable if the server does not answer, DeclarationError if it rejects the login.
    """
    if UNESCAPED_LOGIN.match(dsn):
        raise DeclarationError("the connection string cannot be read", where=where, fix=ENCODED)
    try:
        info = psycopg.conninfo.conninfo_to_dict(dsn)
        options = {"connect_timeout": "10", "application_name": f"lake {name}"} | info | extra
        return psycopg.connect(autocommit=True, **options)  # type: ignore[arg-type] # libpq's own options
    except psycopg.ProgrammingError:
        raise DeclarationError(
            "the connection string cannot be read",
            where=where,
            fix="write it as libpq reads it: host=… dbname=… user=…, or postgresql://…",
        ) from None
    except psycopg.OperationalError as error:
        raise _refused(str(error), where) from None


def _refused(message: str, where: str) -> LakeError:
    reason = [line for line in message.strip().splitlines() if not line.startswith("\t")][-1]  # not libpq's hints
    if "password authentication failed" in message or "no password supplied" in message or "does not exist" in message:
        fix = "name a role that may log in, its password and its database"
        return DeclarationError(f"PostgreSQL refused: {reason}", where=where, fix=fix)
    return Unavailable(f"PostgreSQL does not answer: {reason}", where=where, fix="try again when it does")


def fetch(connection: Connection, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql.encode(), parameters or None)
    return cursor.fetchall() if cursor.description else []


def is_transient(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError) or (error.sqlstate or "")[:2] in TRANSIENT_CLASSES


def unavailable(message: str, where: str) -> Unavailable:
    return Unavailable(f"PostgreSQL could not answer: {message}", where=where, fix="try again")


class PostgresSession:
    """Session, opened on first use and again after it broke."""

    settings: ClassVar[Mapping[str, str]]
    errors_by_state: ClassVar[Mapping[str, tuple[type[LakeError], str, str]]]
    """Exception, message and fix by SQLSTATE; `{session.…}` is an attribute."""

    def __init__(self, dsn: str, *, name: str, where: str) -> None:
        self._dsn, self.name, self.where = dsn, name, where
        self._open: Connection | None = None

    @property
    def connection(self) -> Connection:
        if self._open is None or self._open.closed:
            opened = self.connect()
            try:
                with self.translated_errors():
                    self.configure(opened)
            except BaseException:
                opened.close()
                raise
            self._open = opened
        return self._open

    def connect(self, **extra: str) -> Connection:
        return connect(self._dsn, self.name, self.where, **extra)

    def configure(self, connection: Connection) -> None:
        names, values = list(self.settings), list(self.settings.values())
        fetch(
            connection, "SELECT set_config(n, v, false) FROM unnest(%s::text[], %s::text[]) AS s(n, v)", names, values
        )

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self.translated_errors():
            return fetch(self.connection, sql, *parameters)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._as_error(error) from error

    def _as_error(self, error: psycopg.Error) -> LakeError:
        message = (error.diag.message_primary or str(error)).strip()
        detail = f" ({error.diag.message_detail})" if error.diag.message_detail else ""
        if known := self.errors_by_state.get(error.sqlstate or ""):
            kind, what, fix = known
            return kind(f"{what}: {message}{detail}", where=self.where, fix=fix.format(session=self))
        if is_transient(error):
            with suppress(psycopg.Error):
                self.close()
            return unavailable(message, self.where)
        return LakeError(f"PostgreSQL failed: {message}{detail}", where=self.where, fix="see the server's log")
