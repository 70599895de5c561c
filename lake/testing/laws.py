"""Test of a kind in memory: whether a table advanced by slices equals the table made of all rows at once.

Kinds are local to keys, so each key can have a history of its own, and one evaluation tests thousands. `parts` are
slices in log order, each with the signed rows of the only input or a frame per input.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.config import Settings
from lake.engine.affected_keys import affected_keys
from lake.engine.engines import by_rows
from lake.engine.incremental import difference
from lake.engine.inputs import Evaluation, Inputs
from lake.kinds.columns import SIGN, TIME
from lake.kinds.kind import Kind
from lake.lazy import DataFrame, SparkSession
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.store.delta import Position
from lake.store.duckdb_tables import connection
from lake.store.ledger.cuts import Cut
from lake.store.scan import Span, distinct, to_arrow, to_frame
from lake.store.table_head import CHANGE, TableHead
from lake.store.tables import Table
from lake.text import quoted

if TYPE_CHECKING:
    Part = DataFrame | Sequence[DataFrame]
SHARE_OF_DUCKDB: Final = 0.6
NOWHERE: Final = Project(Settings(project=Path()), {}, {}, {})


@dataclass
class LogsInMemory(Inputs):
    logs: Mapping[str, Sequence[pa.Table]] = field(default_factory=dict)

    def check_integrity(self, declaration: Declaration) -> None:
        pass

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
    content: pa.Table = field(kw_only=True)

    def after(self, diff: pa.Table, identity: Sequence[str]) -> TableInMemory:
        kept = self.rows_where("true", self.version(), without=diff.select(list(identity)))
        added = diff.filter(pc.not_equal(diff.column(CHANGE), "delete")).select(self.content.column_names)
        return replace(self, content=pa.concat_tables([kept, added.cast(self.content.schema)]))

    def version(self) -> int:
        return 0

    def schema(self, version: int | None = None) -> pa.Schema:
        return self.content.schema

    def rows(self, version: int) -> int:
        """Return a huge number: the whole table is never cheaper to evaluate than its changes."""
        return sys.maxsize

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        return to_frame(spark, self.content)

    def rows_of(self, keys: pa.Table, version: int, *, limit: int | None = None) -> pa.Table:
        rows = _rows(self.content, f"EXISTS (SELECT 1 FROM k WHERE {_same_key(keys)})", keys)
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
        return _rows(
            self.content, f"({condition}) AND NOT EXISTS (SELECT 1 FROM k WHERE {_same_key(without)})", without
        )


def _same_key(keys: pa.Table) -> str:
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


def at_once(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    sliced = SlicedTable.of(kind, parts)
    return to_frame(sliced.spark, sliced.evaluated(len(parts)))


def by_slices(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    """Return the table advanced by one part after another.

    DuckDB evaluates about `SHARE_OF_DUCKDB` of them, Spark the others and those that DuckDB refuses.
    """
    sliced = SlicedTable.of(kind, parts)
    chance, name = Random(len(parts)), sliced.declaration.name
    table = TableInMemory(NOWHERE.settings, "silver", name, name, content=pa.table({}))
    for number in range(1, len(parts) + 1):
        head = sliced.head(number - 1) if number > 1 else None
        evaluation = Evaluation(sliced.inputs(number), sliced.declaration, table, head)
        counted = 0 if chance.random() < SHARE_OF_DUCKDB else sys.maxsize  # Spark evaluates many rows
        rows, _, _ = by_rows(evaluation, counted, _rows_or_diff)
        table = table.after(rows, kind.identity) if head else replace(table, content=rows)
    return to_frame(sliced.spark, table.content)


def _rows_or_diff(evaluation: Evaluation) -> pa.Table:
    if evaluation.head is None:
        return to_arrow(evaluation.all_rows())
    return difference(evaluation, affected_keys(evaluation)).arrow()


@dataclass(frozen=True)
class SlicedTable:
    """A table whose function returns its input rows, each input a log of several batches."""

    spark: SparkSession
    declaration: Declaration
    batches: Sequence[Sequence[pa.Table]]

    @classmethod
    def of(cls, kind: Kind, parts: Sequence[Part]) -> SlicedTable:
        frames = [list(part) if isinstance(part, Sequence) else [part] for part in parts]
        inputs = tuple(Input(f"input_{side}") for side in range(len(frames[0])))
        declaration = Declaration("sliced", kind, inputs, lambda *rows: rows)
        return cls(frames[0][0].sparkSession, declaration, [[to_arrow(rows) for rows in part] for part in frames])

    def inputs(self, cut: int) -> LogsInMemory:
        logs = zip(*self.batches[:cut], strict=True)
        return LogsInMemory(
            lambda: self.spark,
            NOWHERE,
            Cut(cut, {}, 0, datetime(2000, 1, 1, tzinfo=UTC)),
            declared={self.declaration.name},
            logs={source.name: log for source, log in zip(self.declaration.inputs, logs, strict=True)},
        )

    def evaluated(self, cut: int) -> pa.Table:
        return to_arrow(self.inputs(cut).evaluate(self.declaration))

    def head(self, cut: int) -> TableHead:
        read = {source.name: cut for source in self.declaration.inputs}
        return TableHead(Position(self.declaration.name, cut), cut, "advance", read, fingerprint="")
