"""Rows of a diff or a table, in this process (Arrow) or in Spark. `within` and `collected` fetch them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from lake.lazy import DataFrame, F, SparkSession, pa, pc
from lake.session.in_process.mode import in_process
from lake.store.scan import distinct, to_arrow, to_frame


@dataclass(frozen=True)
class Rows:
    held: pa.Table | DataFrame

    @property
    def in_memory(self) -> pa.Table | None:
        return self.held if isinstance(self.held, pa.Table) else None

    @property
    def columns(self) -> list[str]:
        return list(self.held.columns if self.in_memory is None else self.in_memory.column_names)

    @property
    def is_empty(self) -> bool:
        """True if the rows are in this process and there are none."""
        return self.in_memory is not None and not self.in_memory.num_rows

    def select(self, columns: Sequence[str]) -> Rows:
        return Rows(self.held.select([*columns]))

    def where(self, column: str, *values: str | bool) -> Rows:
        if self.in_memory is None:
            return Rows(self.held.where(f"{column} in ({', '.join(map(repr, values))})"))
        return Rows(self.in_memory.filter(pc.is_in(self.in_memory.column(column), pa.array(values))))

    def distinct(self) -> Rows:
        return Rows(self.held.distinct() if self.in_memory is None else distinct(self.in_memory))

    def union(self, *others: Rows) -> Rows:
        """Return the rows of all, by column names; in this process if all of them are."""
        parts = (self, *others)
        local = [part.in_memory.select(self.columns) for part in parts if part.in_memory is not None]
        frames = [part.held for part in parts if part.in_memory is None]
        tables = [pa.concat_tables(local, promote_options="permissive")] if local else []
        if not frames:
            return Rows(tables[0])
        frames += [to_frame(frames[0].sparkSession, table) for table in tables]
        return Rows(reduce(lambda rows, more: rows.unionByName(more), frames)).select(self.columns)

    def matching(self, rows: DataFrame) -> DataFrame:
        """Return those of `rows` that equal one of these, nulls included."""
        from lake.kinds.columns import same

        wanted = self.join_frame(rows.sparkSession)
        return rows.join(wanted, same(rows, wanted, self.columns), "left_semi")

    def join_frame(self, spark: SparkSession) -> DataFrame:
        frame = self.frame(spark)
        return F.broadcast(frame) if self.in_memory is not None else frame

    def within(self, limit: int) -> Rows:
        """Return the rows in this process if they are at most `limit`, or if DuckDB evaluates them."""
        if self.in_memory is not None or in_process(self.held.sparkSession):
            return Rows(self.arrow())
        few = to_arrow(self.held.limit(limit + 1))
        return Rows(few) if few.num_rows <= limit else self

    def collected(self, *, if_few: bool = False) -> Rows:
        """Return the rows in this process if DuckDB evaluates them or if they are few."""
        stays = self.in_memory is not None or not (if_few or in_process(self.held.sparkSession))
        return self if stays else Rows(self.arrow())

    def counts(self, *by: str) -> pa.Table:
        """Return how often each value of the columns `by` occurs: these columns and `count`."""
        if self.in_memory is None:
            return to_arrow(self.held.groupBy(*by).count())
        return self.in_memory.group_by([*by]).aggregate([([], "count_all")]).rename_columns([*by, "count"])

    def count(self) -> int:
        return self.held.count() if self.in_memory is None else self.in_memory.num_rows

    def arrow(self) -> pa.Table:
        return to_arrow(self.held) if self.in_memory is None else self.in_memory

    def frame(self, spark: SparkSession) -> DataFrame:
        return self.held if self.in_memory is None else to_frame(spark, self.in_memory)


def sortable(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    return [name for name in columns if not pa.types.is_nested(schema.field(name).type)]
