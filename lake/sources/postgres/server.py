"""The server: a connection to it, its faults as this project's errors, its place, its slots, exported snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sources.postgres.connection import connect, failed, is_passing, unavailable
from lake.sources.postgres.messages import read_lsn
from lake.sources.postgres.values import BUILT_IN, SETTINGS, Declared
from lake.sources.source import Gap

if TYPE_CHECKING:
    import psycopg

    from lake.sources.postgres.connection import Connection

PLUGIN: Final = "pgoutput"
SESSION: Final = {
    **SETTINGS,
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "row_security": "off",  # a copy fails, then, rather than lack the rows that a policy hides
    "search_path": "pg_catalog",
}
IN_USE, NO_RIGHT, NO_SLOT, UNKNOWN = "55006", "42501", "53400", "42704"

STATE: Final[LiteralString] = """
    SELECT (SELECT system_identifier FROM pg_control_system())::text, pg_is_in_recovery(),
           current_setting('wal_level'), current_setting('server_encoding'), current_setting('server_version_num')::int,
           current_database(), extract(epoch FROM clock_timestamp())::numeric
"""
PLACE: Final[LiteralString] = """
    SELECT pg_current_wal_flush_lsn(), ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
"""
SLOT: Final[LiteralString] = """
    SELECT plugin, database, temporary, active_pid, restart_lsn, confirmed_flush_lsn, wal_status,
           pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint
    FROM pg_replication_slots WHERE slot_name = %s
"""
PEEK: Final[LiteralString] = """
    COPY (SELECT data FROM pg_logical_slot_peek_binary_changes(
        %s, %s, %s, 'proto_version', '1', 'publication_names', %s)) TO STDOUT (FORMAT binary)
"""
TYPES: Final[LiteralString] = """
    SELECT t.oid, t.typbasetype,
           CASE WHEN t.typinput = 'array_in'::regproc AND e.typdelim = ',' THEN t.typelem ELSE 0 END
    FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = ANY(%s)
"""


@dataclass(frozen=True)
class Place:
    """Where a server is: everything before `flushed` is on its disk. `at` is its clock, microseconds since 1970."""

    system: str
    timeline: int
    flushed: int
    database: str
    version: int
    at: int


@dataclass(frozen=True)
class Slot:
    """A slot as the server has it; `confirmed` is what it was told, `retained` the bytes of log that it keeps."""

    plugin: str | None
    database: str | None
    active: int | None
    confirmed: int | None
    status: str | None
    retained: int | None

    @property
    def lost(self) -> bool:
        """Whether the log that it needs is gone."""
        return self.status == "lost" or self.confirmed is None


class Server:
    """A connection, made when it is first needed and again after it broke. `dsn` is what libpq connects by."""

    def __init__(self, dsn: str, *, name: str, where: str) -> None:
        self._dsn, self._name, self.where = dsn, name, where
        self._open: Connection | None = None
        self._types: dict[int, Declared] = {}
        self._streaming = False

    @property
    def connection(self) -> Connection:
        """The open connection. Raises Unavailable where the server does not answer."""
        if self._open is None or self._open.closed:
            self._open = self._connect()
            with self.asking():
                _settle(self._open)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def rows(self, sql: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        connection = self.connection
        with self.asking():
            return connection.execute(sql, parameters).fetchall()

    def place(self) -> Place:
        """Where the server is. Raises Unavailable for a standby, DeclarationError for one that cannot be read."""
        reused = self._open is not None
        try:
            state = self.rows(STATE)
        except Unavailable:
            if not reused:
                raise
            state = self.rows(STATE)  # by a new connection: the server was started again since the last time
        [(system, standby, level, encoding, version, database, at)] = state
        if standby:
            raise Unavailable(
                "the server is a standby, which has no slots to read",
                where=self.where,
                fix="name the primary; after a failover try again once it is promoted",
            )
        if level != "logical":
            raise DeclarationError(
                f"wal_level is {level}",
                where=self.where,
                fix="ALTER SYSTEM SET wal_level = logical, and restart the server",
            )
        if encoding == "SQL_ASCII":
            raise DeclarationError(
                f"the database {database} does not say which encoding its text has",
                where=self.where,
                fix="a database with the encoding UTF8 is needed",
            )
        [(flushed, timeline)] = self.rows(PLACE)
        return Place(system, timeline, read_lsn(flushed), database, version, int(at * 1_000_000))

    def slot(self, name: str) -> Slot | None:
        rows = self.rows(SLOT, name)
        if not rows:
            return None
        plugin, database, _, active, _, confirmed, status, retained = rows[0]
        return Slot(plugin, database, active, read_lsn(confirmed) if confirmed else None, status, retained)

    def create_slot(self, name: str) -> int:
        """Makes a slot and returns where it begins. Waits until the transactions that are running have ended."""
        [(lsn,)] = self.rows("SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)", name, PLUGIN)
        return read_lsn(lsn)

    def drop_slot(self, name: str) -> None:
        self.rows("SELECT pg_drop_replication_slot(%s)", name)

    def advance(self, name: str, upto: str) -> None:
        """Tells the slot that everything before `upto` has been taken; it never goes back."""
        self.rows("SELECT pg_replication_slot_advance(%s, %s)", name, upto)

    def peek(self, slot: str, publication: str, upto: str, limit: int | None) -> Iterator[bytes]:
        """The messages of whole transactions from where the slot is to `upto`, as they stream in.

        No further transaction is begun after `limit` messages. The server keeps them on its disk until they are asked
        for: however large a transaction is, a few of them are in memory here. Raises Gap where the slot or the
        publication is gone.
        """
        connection = self.connection
        parameters = [slot, upto, limit, quoted_name(publication)]
        self._streaming = True
        try:
            with self.asking(), connection.cursor() as cursor, cursor.copy(PEEK, parameters) as copy:
                for (data,) in copy.rows():
                    yield data
        finally:
            self._streaming = False

    @contextmanager
    def at_most(self, time: timedelta) -> Iterator[None]:
        """Has the server give up what takes longer while the block lasts, as Unavailable."""
        limit: LiteralString = "SELECT set_config('statement_timeout', %s, false)"
        self.rows(limit, str(time // timedelta(milliseconds=1)))
        try:
            yield
        finally:
            if self._open is not None and not self._open.closed:
                self.rows(limit, SESSION["statement_timeout"])

    def declared(self, types: Sequence[int]) -> dict[int, Declared]:
        """What the server says of these types, and of those that they are made of."""
        wanted = set(types) - self._types.keys() - BUILT_IN.keys()
        while wanted:
            answer = [Declared(*row) for row in self._beside(TYPES, sorted(wanted))]
            self._types |= {number: Declared(number, 0, 0) for number in wanted} | {kind.id: kind for kind in answer}
            made_of = {part for kind in answer for part in (kind.base, kind.element) if part}
            wanted = made_of - self._types.keys() - BUILT_IN.keys()
        return self._types

    def _beside(self, sql: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """What a query gives, also while the connection streams."""
        if not self._streaming:
            return self.rows(sql, *parameters)
        with self.asking(), self._connect() as other:
            return other.execute(sql, parameters).fetchall()

    @contextmanager
    def exported(self, slot: str) -> Iterator[tuple[int, Connection]]:
        """A place, and a connection that sees the database exactly as of it, whatever is written meanwhile.

        It has everything of the transactions whose commit is before the place, which is what a temporary slot begins
        with. Waits until the transactions that are running have ended. Raises Unavailable.
        """
        with self.asking(), self._connect() as reading, self._connect(replication="database") as exporting:
            name = f"{slot[:40]}_{exporting.info.backend_pid}"
            create = f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT'
            created = exporting.execute(create.encode()).fetchone()
            assert created is not None
            _, lsn, snapshot, _ = created
            _settle(reading)
            reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reading.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            exporting.close()
            yield read_lsn(lsn), reading

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Raises what the server says as an error that says what to do."""
        import psycopg

        try:
            yield
        except LakeError:
            raise
        except psycopg.Error as error:
            raise self._as_error(error) from error

    def _connect(self, **more: str) -> Connection:
        return connect(self._dsn, self._name, self.where, **more)

    def _as_error(self, error: psycopg.Error) -> LakeError:
        import psycopg

        message = (error.diag.message_primary or str(error)).strip()
        if error.sqlstate == NO_RIGHT:
            return DeclarationError(
                f"PostgreSQL refused: {message}",
                where=self.where,
                fix="the role needs REPLICATION, and SELECT on the tables: docs/how-to/postgres.md",
            )
        if error.sqlstate == UNKNOWN:
            return Gap(
                f"what is to be read is gone: {message}",
                where=self.where,
                fix=f"lake ingest {self._name} --give-up copies the tables anew",
            )
        if error.sqlstate == NO_SLOT:
            fix = "raise max_replication_slots: a copy needs one more while it lasts"
            return Unavailable(f"PostgreSQL has no slot left: {message}", where=self.where, fix=fix)
        if error.sqlstate == IN_USE:
            fix = "another process reads it: end that one, or try again when it is done"
            return Unavailable(f"the slot is in use: {message}", where=self.where, fix=fix)
        if is_passing(error):
            with suppress(psycopg.Error):
                self.close()
            return unavailable(message, self.where)
        return failed(message, self.where)


def _settle(connection: Connection) -> None:
    names, values = list(SESSION), list(SESSION.values())
    connection.execute("SELECT set_config(n, v, false) FROM unnest(%s::text[], %s::text[]) AS s(n, v)", [names, values])


def quoted_name(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
