"""Table in PostgreSQL, created and changed within a delivery's transaction."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from lake.connect.postgres.connection import Connection, fetch
from lake.connect.postgres.sink.values import JSON, pg_type, reason, text
from lake.errors import DeclarationError
from lake.lazy import pa
from lake.session.duck import connect
from lake.sinks.sink import TableChanges, TargetTable, key_of
from lake.text import literal, quoted

CHANGE, EDITION = "_change", "_edition"
"""Staged tables have CHANGE, tables of mode append have both."""
STAGED = "pg_temp.lake_staged"
NAME_BYTES = 63


@dataclass(frozen=True)
class PgTable:
    """`physical_name` is not that of `table` while this is built to replace another."""

    connection: Connection
    schema: str
    table: TargetTable
    physical_name: str
    where: str

    @property
    def title(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.physical_name)}"

    @property
    def appends(self) -> bool:
        return self.table.mode == "append"

    @property
    def has_declared_shape(self) -> bool:
        existing = self._run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            self.title,
        )
        return dict(existing) == self.column_types and (self.appends or self._has_key)

    @property
    def _has_key(self) -> bool:
        """A key with JSON is of expressions, whose column has the number 0."""
        keys = self._run(
            "SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY(indkey))"
            " FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL"
            " AND indnkeyatts = %s",
            self.title,
            len(self.table.identity),
        )
        return any({*columns} <= {*self.table.identity} for (columns,) in keys)

    @cached_property
    def types(self) -> dict[str, str]:
        return {column.name: pg_type(column.type) for column in self.table.columns}

    def create(self) -> None:
        names = [self.table.far, *self.types]
        if long := [name for name in names if len(name.encode()) > NAME_BYTES]:
            raise DeclarationError(
                f"the name {long[0]!r} is longer than {NAME_BYTES} bytes, PostgreSQL's limit",
                where=self.where,
                fix="give the table another `name`, or leave the column out",
            )
        self._run(f"CREATE TABLE {self.title} ({_columns(self.column_types)})")

    @property
    def column_types(self) -> dict[str, str]:
        return self.types | ({EDITION: "bigint", CHANGE: "text"} if self.appends else {})

    def fill(self, changes: TableChanges, edition: int) -> None:
        self.append(changes, edition)
        if not self.appends:
            self._create_key()
        else:
            self._run(f"CREATE INDEX {self._index('key')} ON {self.title} ({self._indexed(self.table.identity)})")
        for number, columns in enumerate(self.table.options.get("indexes", []), start=1):
            self._check_columns(columns)
            self._run(f"CREATE INDEX {self._index(str(number))} ON {self.title} ({self._indexed(columns)})")

    def append(self, changes: TableChanges, edition: int) -> None:
        self._copy(self.title, changes, [*self.column_types], edition)

    def change(self, changes: TableChanges) -> None:
        """Apply net changes; idempotent."""
        self._stage(changes)
        self._allow_null_keys()
        for same in self._matches():
            self._run(f"DELETE FROM {self.title} t USING {STAGED} s WHERE s.{CHANGE} = 'delete' AND {same}")
            if others := [c for c in self.types if c not in self.table.identity]:
                values = ", ".join(f"{quoted(c)} = s.{quoted(c)}" for c in others)
                self._run(f"UPDATE {self.title} t SET {values} FROM {STAGED} s WHERE s.{CHANGE} <> 'delete' AND {same}")
        names = ", ".join(map(quoted, self.types))
        unmatched = " AND ".join(f"NOT EXISTS (SELECT FROM {self.title} t WHERE {same})" for same in self._matches())
        self._run(
            f"INSERT INTO {self.title} ({names})"
            f" SELECT {names} FROM {STAGED} s WHERE s.{CHANGE} <> 'delete' AND {unmatched}"
        )
        self._run(f"DROP TABLE {STAGED}")

    def sync_rows(self, changes: TableChanges) -> None:
        """Make the table equal to all rows. Rows that are equal are not touched, so readers wait for no lock."""
        self._stage(changes)
        self._allow_null_keys()
        names = ", ".join(map(quoted, self.types))
        row_t, row_s = (f"ROW({', '.join(f'{side}.{quoted(c)}' for c in self.types)})::text" for side in "ts")
        self._run(f"DELETE FROM {self.title} t WHERE NOT EXISTS (SELECT FROM {STAGED} s WHERE {row_s} = {row_t})")
        self._run(
            f"INSERT INTO {self.title} ({names}) SELECT {names} FROM {STAGED} s"
            f" WHERE NOT EXISTS (SELECT FROM {self.title} t WHERE {row_t} = {row_s})"
        )
        self._run(f"DROP TABLE {STAGED}")

    def describe(self) -> None:
        self._run(f"COMMENT ON TABLE {self.title} IS {literal(self.table.doc.replace(chr(0), ''))}")
        for column in self.table.columns:
            comment = literal(column.description.replace("\0", "")) if column.description else "NULL"
            self._run(f"COMMENT ON COLUMN {self.title}.{quoted(column.name)} IS {comment}")

    def grant(self, readers: Iterable[str]) -> None:
        for role in readers:
            self._run(f"GRANT SELECT ON {self.title} TO {quoted(role)}")

    def replace_table(self, name: str) -> None:
        self._run(f"DROP TABLE IF EXISTS {quoted(self.schema)}.{quoted(name)}")
        own = replace(self, physical_name=name)
        for index in ("key", *(str(number + 1) for number in range(len(self.table.options.get("indexes", []))))):
            self._run(f"ALTER INDEX {quoted(self.schema)}.{self._index(index)} RENAME TO {own._index(index)}")
        self._run(f"ALTER TABLE {self.title} RENAME TO {quoted(name)}")

    def _run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return fetch(self.connection, sql, *parameters)

    def _stage(self, changes: TableChanges) -> None:
        self._run(f"CREATE TEMP TABLE lake_staged ({_columns({**self.types, CHANGE: 'text'})}) ON COMMIT DROP")
        self._copy(STAGED, changes, [*self.types, CHANGE])
        self._run(f"ANALYZE {STAGED}")

    def _copy(self, to: str, changes: TableChanges, columns: Sequence[str], edition: int = 0) -> None:
        from pyarrow import csv

        options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
        copy_sql = f"COPY {to} ({', '.join(map(quoted, columns))}) FROM STDIN (FORMAT csv)"
        with self.connection.cursor() as cursor, cursor.copy(copy_sql.encode()) as copy:
            for rows in self._text_batches(changes, columns, edition):
                buffer = io.BytesIO()
                csv.write_csv(rows, buffer, options)
                copy.write(buffer.getvalue())

    def _text_batches(self, changes: TableChanges, columns: Sequence[str], edition: int) -> Iterator[pa.Table]:
        with connect() as con:
            for batch in changes.batches():
                con.register("batch", batch)
                con.execute(self._checked_sql)
                rejected = f"SELECT image, reason FROM checked WHERE reason IS NOT NULL AND NOT {self._is_delete}"
                for image, why in con.sql(rejected).fetchall():
                    changes.reject(key_of(image, self.table.identity), why)
                wanted = "reason" if changes.whole or self.appends else "key_reason"
                yield con.sql(
                    f"SELECT {self._as_texts(columns, edition)} FROM checked WHERE {wanted} IS NULL"
                ).to_arrow_table()

    @property
    def _is_delete(self) -> str:
        return "false" if self.appends else "change = 'delete'"

    @property
    def _checked_sql(self) -> str:
        table = self.table
        key = [column for column in table.columns if column.name in table.identity]
        wanted = "change <> 'delete'" if table.mode == "upsert" else "true"
        why, why_not_key = (reason(columns, table.identity, "image") for columns in (table.columns, key))
        return (
            f"CREATE OR REPLACE TEMP TABLE checked AS SELECT *, {why} AS reason, {why_not_key} AS key_reason"
            f" FROM (SELECT change, coalesce(after, before) AS image FROM batch WHERE {wanted})"
        )

    def _as_texts(self, columns: Sequence[str], edition: int) -> str:
        is_deleted = f"(reason IS NOT NULL OR {self._is_delete})"
        extra = {EDITION: f"'{edition}'", CHANGE: "CASE WHEN reason IS NULL THEN change ELSE 'delete' END"}
        values = []
        for column in columns:
            value = extra.get(column) or text(f"image.{quoted(column)}", self.table.types[column])
            is_kept = column in extra or column in self.table.identity
            values.append(f"{value if is_kept else f'CASE WHEN NOT {is_deleted} THEN {value} END'} AS {quoted(column)}")
        return ", ".join(values)

    def _create_key(self) -> None:
        identity = self.table.identity
        any_null = " OR ".join(f"{quoted(c)} IS NULL" for c in identity)
        has_null = self._run(f"SELECT EXISTS (SELECT FROM {self.title} WHERE {any_null})")[0][0]
        if has_null or JSON in {self.types[c] for c in identity}:
            self._create_unique_index()
        else:
            columns = ", ".join(map(quoted, identity))
            self._run(f"ALTER TABLE {self.title} ADD CONSTRAINT {self._index('key')} PRIMARY KEY ({columns})")

    def _create_unique_index(self) -> None:
        nulls = " NULLS NOT DISTINCT" if self.connection.info.server_version >= 150000 else ""
        indexed = self._indexed(self.table.identity)
        self._run(f"CREATE UNIQUE INDEX {self._index('key')} ON {self.title} ({indexed}){nulls}")

    def _allow_null_keys(self) -> None:
        identity = self.table.identity
        any_null = " OR ".join(f"{quoted(c)} IS NULL" for c in identity)
        if not self._run(f"SELECT EXISTS (SELECT FROM {STAGED} WHERE {any_null})")[0][0]:
            return
        keys = self._run(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", self.title
        )
        for (name,) in keys:
            self._run(f"ALTER TABLE {self.title} DROP CONSTRAINT {quoted(name)}")
            for column in identity:
                self._run(f"ALTER TABLE {self.title} ALTER COLUMN {quoted(column)} DROP NOT NULL")
            self._create_unique_index()

    def _matches(self) -> list[str]:
        """Return SQL that compares the keys of `t` and `s`: those without a null, and those with one.

        The latter are compared as texts, which distinguishes nulls and allows a hash join.
        """
        identity = self.table.identity
        same = " AND ".join(f"{self._comparable(c, 't')} = {self._comparable(c, 's')}" for c in identity)
        row_t, row_s = (f"ROW({', '.join(self._comparable(c, side) for c in identity)})::text" for side in "ts")
        null_t, null_s = ("(" + " OR ".join(f"{s}.{quoted(c)} IS NULL" for c in identity) + ")" for s in "ts")
        return [same, f"{null_t} AND {null_s} AND {row_t} = {row_s}"]

    def _comparable(self, column: str, of: str = "") -> str:
        name = f"{of}.{quoted(column)}" if of else quoted(column)
        return f"{name}::text" if self.types[column] == JSON else name

    def _indexed(self, columns: Iterable[str]) -> str:
        return ", ".join(f"({self._comparable(c)})" if self.types[c] == JSON else quoted(c) for c in columns)

    def _index(self, name: str) -> str:
        """Return a name that differs from those of tables, which PostgreSQL keeps in the same namespace."""
        end = f"_{name}_{digest(self.physical_name)[:8]}"
        return quoted(self.physical_name.encode()[: NAME_BYTES - len(end)].decode(errors="ignore") + end)

    def _check_columns(self, columns: object) -> None:
        if not isinstance(columns, list) or not columns or any(c not in self.types for c in columns):
            raise DeclarationError(
                f"indexes: {columns!r} is no list of columns of {self.table.name}",
                where=self.where,
                fix=f'for example indexes = [["{next(iter(self.types))}"]]',
            )


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _columns(types: dict[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
