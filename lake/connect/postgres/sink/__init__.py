"""PostgreSQL as a target, a serving copy of tables. Options: docs/how-to/sink-postgres.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lake.connect.postgres.connection import NO_RIGHT, SETTINGS, Connection, PostgresSession, fetch
from lake.connect.postgres.sink import values
from lake.connect.postgres.sink.tables import PgTable, digest
from lake.errors import DeclarationError, Unavailable
from lake.lazy import pa
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, Target, TargetTable
from lake.store.snapshot import Column
from lake.text import literal, quoted

POSITIONS: Final = "_headwater"
SESSION: Final = {**SETTINGS, "lock_timeout": "30s"}
ERRORS_BY_STATE: Final = {
    NO_RIGHT: (
        DeclarationError,
        "PostgreSQL refused",
        "the role needs CREATE on the database, or to own the schema {session.schema}",
    ),
    "2BP01": (
        DeclarationError,
        "a table whose columns have changed cannot be replaced",
        "drop what depends on it, deliver, and create that again",
    ),
    "54000": (DeclarationError, "PostgreSQL refused", "leave out the index on that column, or the column"),
    "55P03": (Unavailable, "another session of PostgreSQL holds a lock", "try again when it is released"),
}


class PostgresTarget(PostgresSession):
    settings = SESSION
    errors_by_state = ERRORS_BY_STATE

    def __init__(self, dsn: str, *, name: str, where: str, schema: str, readers: Sequence[str]) -> None:
        super().__init__(dsn, name=name, where=where)
        self.schema, self.readers = schema, readers

    def configure(self, connection: Connection) -> None:
        super().configure(connection)
        if fetch(connection, "SHOW server_encoding") != [("UTF8",)]:
            raise DeclarationError(
                "the encoding of the database is not UTF8", where=self.where, fix="name a database in UTF8"
            )

    def position(self) -> SinkPosition | None:
        if not self._exists(POSITIONS):
            return None
        rows = self.rows(f"SELECT position FROM {self._positions} WHERE sink = %s", self.name)
        return SinkPosition.from_json(rows[0][0]) if rows else None

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        with self.translated_errors(), self.connection.transaction():
            self._make_schema()
            # Held until the end: another deliverer waits here, and then fails the check of the position.
            self.rows("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"{self._positions} {self.name}")
            if not delivery.anew:
                delivery.check_position(self.position())
            replacements = [(changes.table, self._apply(delivery, changes)) for changes in delivery.tables]
            for table, replacement in replacements:
                if replacement is not None:
                    replacement.replace_table(table.far)
            position = delivery.position()
            self.rows(
                f"INSERT INTO {self._positions} VALUES (%s, %s, %s, now(), %s)"
                " ON CONFLICT (sink) DO UPDATE SET edition = excluded.edition, cut = excluded.cut,"
                " delivered_at = excluded.delivered_at, position = excluded.position",
                self.name,
                position.edition,
                position.cut,
                position.to_json(),
            )
            return position

    def stored_as(self, column: Column) -> str:
        return values.stored_as(column)

    def fingerprint(self, table: TargetTable) -> str:
        return str(self.rows(values.fingerprint(table.types, self._table(table, table.far).title))[0][0])

    def hashes(self, table: TargetTable) -> pa.RecordBatchReader:
        numbers = [("_key", pa.int64()), ("_hash", pa.int64())]
        schema = pa.schema([*((name, pa.string()) for name in table.identity), *numbers])
        return pa.RecordBatchReader.from_batches(schema, self._hashes(table, schema))

    def _hashes(self, table: TargetTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        key = ", ".join(f"{quoted(name)}::text" for name in table.identity)
        with self.translated_errors(), self.connection.transaction(), self.connection.cursor("lake_hashes") as cursor:
            cursor.itersize = 10_000
            identity = {name: table.types[name] for name in table.identity}
            hashes = f"{values.row_hash(identity)}, {values.row_hash(table.types)}"
            cursor.execute(f"SELECT {key}, {hashes} FROM {self._table(table, table.far).title}".encode())
            while rows := cursor.fetchmany(10_000):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _apply(self, delivery: SinkDelivery, changes: TableChanges) -> PgTable | None:
        shape = delivery.shape_in_target(changes.table)
        live = self._table(changes.table, changes.table.far)
        exists = self._exists(changes.table.far)
        if exists and shape is None and not delivery.anew:
            raise self._not_ours(
                f"{live.title} is there already, and not of this sink", "give its table another `name`"
            )
        if exists and live.has_declared_shape and shape in {None, changes.table.shape}:
            if not changes.whole and live.appends:
                live.append(changes, delivery.edition)
            elif not changes.whole:
                live.change(changes)
            elif changes.table.mode == "mirror":
                live.sync_rows(changes)
            else:
                return self._build_replacement(delivery, changes)
            if changes.described:
                live.describe()
            live.grant(self.readers)
            return None
        if not changes.whole and shape is not None:
            raise self._not_ours(f"{live.title} was {'altered' if exists else 'removed'} there", "restore it")
        return self._build_replacement(delivery, changes)

    def _not_ours(self, what: str, fix: str) -> DeclarationError:
        resync = f"lake deliver {self.name} --resync builds it again, and replaces what is there"
        return DeclarationError(what, where=self.where, fix=f"{fix}; or {resync}")

    def _build_replacement(self, delivery: SinkDelivery, changes: TableChanges) -> PgTable:
        replacement = self._table(changes.table, f"_new_{digest(changes.table.far)[:16]}")
        self.rows(f"DROP TABLE IF EXISTS {replacement.title}")
        replacement.create()
        replacement.fill(changes, delivery.edition)
        replacement.describe()
        replacement.grant(self.readers)
        return replacement

    def _table(self, table: TargetTable, physical_name: str) -> PgTable:
        return PgTable(self.connection, self.schema, table, physical_name, self.where)

    def _make_schema(self) -> None:
        if not self.rows("SELECT 1 FROM pg_namespace WHERE nspname = %s", self.schema):
            self.rows(f"CREATE SCHEMA {quoted(self.schema)}")
        if not self._exists(POSITIONS):
            self.rows(
                f"CREATE TABLE IF NOT EXISTS {self._positions} (sink text PRIMARY KEY, edition bigint NOT NULL,"
                " cut bigint NOT NULL, delivered_at timestamptz NOT NULL, position text NOT NULL)"
            )
            comment = "The edition that each sink of Headwater has delivered to the tables of this schema."
            self.rows(f"COMMENT ON TABLE {self._positions} IS {literal(comment)}")
        for role in self.readers:
            if not self.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", role):
                raise DeclarationError(
                    f"readers: there is no role {role!r}",
                    where=self.where,
                    fix=f"CREATE ROLE {quoted(role)} LOGIN PASSWORD '…', there; or leave it out",
                )
            self.rows(f"GRANT USAGE ON SCHEMA {quoted(self.schema)} TO {quoted(role)}")
            self.rows(f"GRANT SELECT ON {self._positions} TO {quoted(role)}")

    def _exists(self, name: str) -> bool:
        sql = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s"
        return bool(self.rows(sql, self.schema, name))

    @property
    def _positions(self) -> str:
        return f"{quoted(self.schema)}.{POSITIONS}"


def _open(declaration: SinkDeclaration) -> Target:
    options, where = declaration.options, declaration.where
    if not all(isinstance(role, str) for role in options["readers"]):
        raise DeclarationError("readers: expected names of roles", where=where, fix='for example readers = ["bi"]')
    schema, readers = options["schema"], tuple(options["readers"])
    return PostgresTarget(options["url"], name=declaration.name, where=where, schema=schema, readers=readers)


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert", "append"),
    options={"url": (str, None), "schema": (str, "lake"), "readers": (list, [])},
    table_options={"indexes": (list, [])},
)
