"""Inputs and a table in memory, on which the engine runs as on a warehouse."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake.engine.inputs import Inputs
from lake.kinds.columns import SIGN, TIME
from lake.project.declaration import Declaration, Input
from lake.quoting import quoted
from lake.store.duckdb_tables import connection
from lake.store.scan import Span, distinct, to_frame
from lake.store.table_head import CHANGE, TableHead
from lake.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class LogsInMemory(Inputs):
    """Logs as batches of signed rows, `{stream: batches}`."""

    logs: Mapping[str, Sequence[pa.Table]] = field(default_factory=dict)

    def check_integrity(self, declaration: Declaration) -> None:
        """Do nothing: there are no files to check."""

    def file_size(self, declaration: Declaration) -> int:
        return 0

    def whole(self, source: Input, times: Span | None = None) -> DataFrame:
        rows = to_frame(self.spark, _net_rows(pa.concat_tables(self.logs[source.name])))
        return rows if times is None else rows.where(f"unix_micros({TIME}) BETWEEN {times[0]} AND {times[1]}")

    def no_rows(self, source: Input) -> DataFrame:
        return to_frame(self.spark, self.logs[source.name][0].slice(0, 0))

    def changes(self, source: Input, head: TableHead) -> DataFrame | None:
        rows = self.logs[source.name][-1]
        return to_frame(self.spark, rows) if rows.num_rows else None

    def has_broadcasts(self, source: Input) -> bool:
        """Return False: kinds recognize broadcast events by their columns."""
        return False

    def refusals(self, source: Input) -> DataFrame | None:
        return None

    def horizon(self, source: Input) -> datetime | None:
        rows = pa.concat_tables(self.logs[source.name])
        latest: datetime | None = pc.max(rows.column(TIME)).as_py()
        return latest

    def size(self, source: Input, *, after: int = 0) -> int:
        return sum(batch.num_rows for batch in self.logs[source.name][after:])

    def size_of_voided(self, source: Input, head: TableHead) -> int:
        return 0


@dataclass(frozen=True)
class TableInMemory(Table):
    """A table with one version, whose rows are `content`."""

    content: pa.Table = field(kw_only=True)

    def after(self, diff: pa.Table, identity: Sequence[str]) -> TableInMemory:
        stay = self.rows_where("true", self.version(), without=diff.select(list(identity)))
        come = diff.filter(pc.not_equal(diff.column(CHANGE), "delete")).select(self.content.column_names)
        return replace(self, content=pa.concat_tables([stay, come.cast(self.content.schema)]))

    def version(self) -> int:
        return 0

    def schema(self) -> pa.Schema:
        return self.content.schema

    def rows(self, version: int) -> int:
        """Return a huge number, so that evaluating the whole table is never cheaper."""
        return sys.maxsize

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        return to_frame(spark, self.content)

    def rows_of(self, keys: pa.Table, version: int, *, limit: int | None = None) -> pa.Table:
        rows = _rows(self.content, f"EXISTS (SELECT 1 FROM k WHERE {_equal(keys)})", keys)
        return rows if limit is None else rows.slice(0, limit)

    def keys_where(
        self, key: Sequence[str], others: pa.Table, condition: str, version: int, *, limit: int
    ) -> pa.Table | None:
        return distinct(_rows(self.content, f"EXISTS (SELECT 1 FROM k WHERE {condition})", others).select(list(key)))

    def rows_where(
        self, condition: str, version: int, *, without: pa.Table | None, limit: int = sys.maxsize
    ) -> pa.Table:
        if without is None:
            return _rows(self.content, condition)
        return _rows(self.content, f"({condition}) AND NOT EXISTS (SELECT 1 FROM k WHERE {_equal(without)})", without)


def _equal(keys: pa.Table) -> str:
    columns = map(quoted, keys.column_names)
    return " AND ".join(f"k.{column} IS NOT DISTINCT FROM t.{column}" for column in columns)


def _rows(rows: pa.Table, condition: str, keys: pa.Table | None = None) -> pa.Table:
    with connection() as con:
        con.register("t", rows)
        if keys is not None:
            con.register("k", keys)
        return con.sql(f"SELECT * FROM t WHERE {condition}").to_arrow_table().cast(rows.schema)


def _net_rows(rows: pa.Table) -> pa.Table:
    with connection() as con:
        con.register("t", rows)
        netted = f"SELECT * REPLACE (1 AS {SIGN}) FROM t GROUP BY ALL HAVING sum(t.{SIGN}) > 0"
        return con.sql(netted).to_arrow_table().cast(rows.schema)
