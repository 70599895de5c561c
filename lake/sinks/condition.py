"""Condition on changed rows: SQL over `change` and the rows `before` and `after`, of which either may be null.

DuckDB evaluates it without access to files, other tables or extensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import duckdb

from lake.errors import DeclarationError, did_you_mean
from lake.lazy import pa
from lake.session.duck import connect
from lake.session.spark_session import first_line
from lake.sinks.sink import CHANGES
from lake.text import literal

LOCKED: Final = """SET enable_external_access = false; SET autoinstall_known_extensions = false;
    SET autoload_known_extensions = false; SET python_enable_replacements = false; SET lock_configuration = true"""


@dataclass(frozen=True)
class Condition:
    """Changes of the kinds `on` (empty: all) that satisfy the SQL `when`. Messages name its place `where`."""

    on: tuple[str, ...] = ()
    when: str = ""
    where: str = ""

    def __bool__(self) -> bool:
        return bool(self.on or self.when)

    def faults(self) -> Iterator[DeclarationError]:
        for change in self.on:
            if change not in CHANGES:
                fix = did_you_mean(str(change), CHANGES)
                yield DeclarationError(f"on: no change is called {change!r}", where=self.where, fix=fix)
        if self.when:
            with closing(_locked_connection()) as con:
                try:
                    # Alone too: it might close the bracket around it.
                    texts = (f"SELECT {self.when}", replace(self, on=())._sql)
                    if any(len(con.extract_statements(text)) != 1 for text in texts):
                        yield self._fault("it is more than one condition")
                except duckdb.Error as error:
                    yield self._fault(first_line(error))

    @property
    def _sql(self) -> str:
        kinds = f"change IN ({', '.join(map(literal, self.on))})" if self.on else "true"
        return f"SELECT * FROM changes WHERE {kinds} AND (\n{self.when or 'true'}\n)"

    def of(self, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield the changes that satisfy it, after one empty batch with the schema. Raises DeclarationError."""
        with closing(_locked_connection()) as con:
            yield self._matching(con, pa.RecordBatch.from_pylist([], schema=batches.schema))
            for batch in batches:
                if matching := self._matching(con, batch):
                    yield matching

    def _matching(self, con: duckdb.DuckDBPyConnection, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return query_batch(con, batch, self._sql)
        except duckdb.Error as error:
            raise self._fault(first_line(error)) from None

    def _fault(self, what: str) -> DeclarationError:
        return DeclarationError(
            f"when: {what}",
            where=self.where,
            fix="write SQL over change, before and after, as in after.amount > 10 and before is null",
        )


def query_batch(con: duckdb.DuckDBPyConnection, batch: pa.RecordBatch, sql: str) -> pa.RecordBatch:
    """Return the result of a query of the table `changes`, which has the rows of `batch`."""
    result = con.from_arrow(pa.Table.from_batches([batch])).query("changes", sql)
    rows = result.to_arrow_table().combine_chunks()  # type: ignore[union-attr]  # it is a query
    return rows.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], schema=rows.schema)


def condition_of(on: Collection[str], when: str, where: str) -> Condition:
    """Raises DeclarationError with every fault."""
    condition = Condition(tuple(on), when, where)
    DeclarationError.raise_any(condition.faults())
    return condition


def _locked_connection() -> duckdb.DuckDBPyConnection:
    con = connect()
    con.execute(LOCKED)
    return con
