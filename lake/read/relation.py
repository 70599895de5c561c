"""Log or ledger in a query: a view of files, or a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

import duckdb

from lake.errors import StorageError
from lake.store import delta
from lake.store.snapshot import Column
from lake.store.storage import Address
from lake.text import literal, parquet_rows, quoted

FILE: Final = "_file"


@dataclass(frozen=True)
class SystemRelation:
    """View `schema.name` of `query`, DuckDB SQL over `files` of the warehouse at `root`.

    A `copied` one is read before the connection is locked: a query cannot reach its files. An `optional` one is
    skipped if unreadable. `create_functions` creates the functions of its query; `con` must be closed afterwards.
    """

    schema: str
    name: str
    doc: str
    columns: tuple[Column, ...]
    query: str
    root: Address
    files: tuple[str, ...] = ()
    copied: bool = False
    optional: bool = False
    create_functions: Callable[[duckdb.DuckDBPyConnection], None] = lambda _: None

    @property
    def title(self) -> str:
        return f"{self.schema}.{self.name}"

    def fault(self, error: duckdb.Error) -> StorageError | None:
        """Return the fault if a file is gone or named by `error`."""
        gone = self.root.missing(self.files)
        wrong = gone or [file for file in self.files if file in str(error)]
        if not wrong or self.optional:
            return None
        return StorageError(
            f"{self.title} cannot be read: a file is {'gone' if gone else 'damaged'}",
            where=wrong[0],
            fix="restore it from a backup of the warehouse; lake status lists all damage",
        )

    def create(self, con: duckdb.DuckDBPyConnection) -> None:
        """Create it with comments, also as its title in `main`, for SHOW TABLES. Raises duckdb.Error."""
        home, kind = f"{quoted(self.schema)}.{quoted(self.name)}", "TABLE" if self.copied else "VIEW"
        with suppress(duckdb.Error) if self.optional else nullcontext():
            con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self.schema)}")
            self.create_functions(con)
            con.execute(f"CREATE {kind} {home} AS {self.query}")
            con.execute(f"CREATE VIEW {quoted(self.title)} AS FROM {home}")
            con.execute(f"COMMENT ON {kind} {home} IS {literal(self.doc)}")
            for column in self.columns:
                if column.description:
                    con.execute(f"COMMENT ON COLUMN {home}.{quoted(column.name)} IS {literal(column.description)}")


def stored_files(path: Address) -> list[str]:
    if not delta.exists(path):
        return []
    with delta.opened(path) as table:
        return delta.files(table)


def rows_sql(files: Iterable[str], columns: Mapping[str, str]) -> str:
    """Return SQL of the rows of `files` with `columns` (name: type) and FILE, null if a file lacks one."""
    wanted = {**columns, FILE: "VARCHAR"}
    nothing = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in wanted.items())
    if not (files := [*files]):
        return f"(SELECT {nothing} WHERE false)"
    read = parquet_rows(files, f"filename = {literal(FILE)}")
    return f"(FROM {read} UNION ALL BY NAME SELECT {nothing} WHERE false)"
