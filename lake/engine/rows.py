"""Rows in this process (Arrow) or in Spark, as one type: only this module asks where they are.

Limits of `lake.cost` and the setting `in_process_rows` decide: `within` collects rows if they are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake.kinds.columns import same
from lake.session.in_process.mode import in_process
from lake.store.scan import as_frame, distinct, to_arrow, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Rows:
    held: pa.Table | DataFrame

    @property
    def in_memory(self) -> pa.Table | None:
        return self.held if isinstance(self.held, pa.Table) else None

    @property
    def columns(self) -> list[str]:
        names: list[str] = self.held.column_names if isinstance(self.held, pa.Table) else self.held.columns
        return names

    @property
    def is_empty(self) -> bool:
        """True if the rows are in this process and there are none."""
        return self.in_memory is not None and not self.in_memory.num_rows

    def select(self, columns: Sequence[str]) -> Rows:
        if isinstance(self.held, pa.Table):
            return Rows(self.held.select(list(columns)))
        return Rows(self.held.select(*columns))

    def where(self, column: str, *values: str | bool) -> Rows:
        if isinstance(self.held, pa.Table):
            return Rows(self.held.filter(pc.is_in(self.held.column(column), pa.array(values))))
        return Rows(self.held.where(f"{column} in ({', '.join(map(repr, values))})"))

    def distinct(self) -> Rows:
        return Rows(distinct(self.held) if isinstance(self.held, pa.Table) else self.held.distinct())

    def union(self, *others: Rows) -> Rows:
        """Return the rows of all, by column names; in this process if all of them are."""
        parts = (self, *others)
        local = [part.in_memory.select(self.columns) for part in parts if part.in_memory is not None]
        frames = [part.held for part in parts if not isinstance(part.held, pa.Table)]
        tables = [pa.concat_tables(local, promote_options="permissive")] if local else []
        if not frames:
            return Rows(tables[0])
        frames += [as_frame(frames[0].sparkSession, table) for table in tables]
        return Rows(reduce(lambda rows, more: rows.unionByName(more), frames)).select(self.columns)

    def matching(self, rows: DataFrame) -> DataFrame:
        """Return those of `rows` that equal one of these, nulls included."""
        wanted = self.join_frame(rows.sparkSession)
        return rows.join(wanted, same(rows, wanted, self.columns), "left_semi")

    def join_frame(self, spark: SparkSession) -> DataFrame:
        """Return the right side of a join, broadcast if the rows are in this process."""
        from pyspark.sql import functions as F

        frame = self.frame(spark)
        return F.broadcast(frame) if self.in_memory is not None else frame

    def within(self, limit: int) -> Rows:
        return self if isinstance(self.held, pa.Table) else Rows(within(self.held, limit))

    def collected(self, *, if_few: bool = False) -> Rows:
        """Return the rows in this process if DuckDB evaluates them or if they are few."""
        in_memory = isinstance(self.held, pa.Table)
        return self if in_memory or not (if_few or in_process(self.held.sparkSession)) else Rows(self.arrow())

    def count(self) -> int:
        return self.held.num_rows if isinstance(self.held, pa.Table) else self.held.count()

    def arrow(self) -> pa.Table:
        return self.held if isinstance(self.held, pa.Table) else to_arrow(self.held)

    def frame(self, spark: SparkSession) -> DataFrame:
        return as_frame(spark, self.held)
