"""PostgreSQL server of a source: position, slots, and exported snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, LiteralString

from lake.connect.postgres.connection import NO_RIGHT, Connection, PostgresSession, fetch
from lake.connect.postgres.source.messages import read_lsn
from lake.connect.postgres.source.values import BUILT_IN, FORMATS, PgType
from lake.errors import DeclarationError, Unavailable
from lake.sources.source import Gap
from lake.text import quoted

PLUGIN: Final = "pgoutput"
SESSION: Final = {
    **FORMATS,
    "row_security": "off",  # a copy fails instead of omitting rows hidden by a policy
    "search_path": "pg_catalog",
}
ERRORS_BY_STATE: Final = {
    NO_RIGHT: (
        DeclarationError,
        "PostgreSQL refused",
        "the role needs REPLICATION, and SELECT on the tables: docs/how-to/postgres.md",
    ),
    "42704": (Gap, "what is to be read is gone", "lake ingest {session.name} --give-up copies the tables anew"),
    "53400": (
        Unavailable,
        "PostgreSQL has no slot left",
        "raise max_replication_slots: a copy needs one more while it lasts",
    ),
    "55006": (
        Unavailable,
        "the slot is in use",
        "another process reads it: end that one, or try again when it is done",
    ),
}

STATE: Final[LiteralString] = """
    SELECT (SELECT system_identifier FROM pg_control_system())::text, pg_is_in_recovery(),
           current_setting('wal_level'), current_setting('server_encoding'), current_setting('server_version_num')::int,
           current_database(), extract(epoch FROM clock_timestamp())::numeric
"""
PLACE: Final[LiteralString] = """
    SELECT pg_current_wal_flush_lsn(), ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
"""
SLOT: Final[LiteralString] = """
    SELECT plugin, database, active_pid, pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint, wal_status,
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
class ServerPosition:
    """Everything before `flushed` is on disk. `at` is the server's clock, in microseconds since 1970."""

    system: str
    timeline: int
    flushed: int
    database: str
    version: int
    at: int


@dataclass(frozen=True)
class ReplicationSlot:
    plugin: str | None
    database: str | None
    active: int | None
    confirmed: int | None
    status: str | None
    retained: int | None

    @property
    def lost(self) -> bool:
        return self.status == "lost" or self.confirmed is None


class PostgresServer(PostgresSession):
    settings = SESSION
    errors_by_state = ERRORS_BY_STATE

    def __init__(self, dsn: str, *, name: str, where: str) -> None:
        super().__init__(dsn, name=name, where=where)
        self._types: dict[int, PgType] = {}

    def current(self) -> ServerPosition:
        reused = self._open is not None
        try:
            state = self.rows(STATE)
        except Unavailable:
            if not reused:
                raise
            state = self.rows(STATE)  # by a new connection: the server was restarted
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
                f"the database {database} has no encoding (SQL_ASCII)",
                where=self.where,
                fix="a database with the encoding UTF8 is needed",
            )
        [(flushed, timeline)] = self.rows(PLACE)
        return ServerPosition(system, timeline, read_lsn(flushed), database, version, int(at * 1_000_000))

    def slot(self, name: str) -> ReplicationSlot | None:
        rows = self.rows(SLOT, name)
        return ReplicationSlot(*rows[0]) if rows else None

    def create_slot(self, name: str) -> int:
        """Return the first LSN. Waits for running transactions to end."""
        [(lsn,)] = self.rows("SELECT lsn FROM pg_create_logical_replication_slot(%s, %s)", name, PLUGIN)
        return read_lsn(lsn)

    def drop_slot(self, name: str) -> None:
        self.rows("SELECT pg_drop_replication_slot(%s)", name)

    def advance(self, name: str, upto: str) -> None:
        self.rows("SELECT pg_replication_slot_advance(%s, %s)", name, upto)

    def peek(self, slot: str, publication: str, upto: str, limit: int | None) -> Iterator[bytes]:
        """Stream the messages of whole transactions up to `upto`; none begins after `limit` messages.

        The server spills large transactions, so few messages are in memory here.
        """
        connection = self.connection
        parameters = [slot, upto, limit, quoted(publication)]
        with self.translated_errors(), connection.cursor() as cursor, cursor.copy(PEEK, parameters) as copy:
            for (data,) in copy.rows():
                yield data

    @contextmanager
    def at_most(self, time: timedelta) -> Iterator[None]:
        limit: LiteralString = "SELECT set_config('statement_timeout', %s, false)"
        self.rows(limit, str(time // timedelta(milliseconds=1)))
        try:
            yield
        finally:
            if self._open is not None and not self._open.closed:
                self.rows(limit, SESSION["statement_timeout"])

    def types(self, types: Sequence[int]) -> dict[int, PgType]:
        """Use a connection of its own, since the session's may be streaming."""
        wanted = set(types) - self._types.keys() - BUILT_IN.keys()
        while wanted:
            with self.translated_errors(), self.connect() as other:
                answer = [PgType(*row) for row in fetch(other, TYPES, sorted(wanted))]
            self._types |= {number: PgType(number, 0, 0) for number in wanted} | {kind.id: kind for kind in answer}
            parts = {part for kind in answer for part in (kind.base, kind.element) if part}
            wanted = parts - self._types.keys() - BUILT_IN.keys()
        return self._types

    @contextmanager
    def export_snapshot(self, slot: str) -> Iterator[tuple[int, Connection]]:
        """Yield an LSN, and a connection whose snapshot has exactly the transactions committed before it.

        A temporary slot provides both. Waits for running transactions to end.
        """
        with self.translated_errors(), self.connect() as reading, self.connect(replication="database") as exporting:
            name = f"{slot[:40]}_{exporting.info.backend_pid}"
            create = f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL {PLUGIN} EXPORT_SNAPSHOT'
            created = exporting.execute(create.encode()).fetchone()
            assert created is not None
            _, lsn, snapshot, _ = created
            self.configure(reading)
            reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reading.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
            exporting.close()
            yield read_lsn(lsn), reading
