"""Test of a kind in memory: a table advanced by slices equals the table made of all rows at once.

Kinds are local to keys, so each key can be a history of its own: a few jobs test thousands. `parts` are slices in log
order: signed rows of the declared function, or one frame per input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.config import Settings
from lake.engine.affected_keys import affected_keys
from lake.engine.incremental import difference
from lake.engine.inputs import Evaluation
from lake.kinds.kind import Kind
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.store.delta import Position
from lake.store.ledger.cuts import Cut
from lake.store.scan import to_arrow, to_frame
from lake.store.table_head import TableHead
from lake.testing.in_memory import LogsInMemory, TableInMemory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Part = DataFrame | Sequence[DataFrame]

NOWHERE: Final = Project(Settings(project=Path()), {}, {}, {})


def at_once(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    """Return the table made of all parts together."""
    sliced = SlicedTable.of(kind, parts)
    return to_frame(sliced.spark, sliced.evaluated(len(parts)))


def by_slices(kind: Kind, parts: Sequence[Part]) -> DataFrame:
    """Return the table advanced part by part."""
    sliced = SlicedTable.of(kind, parts)
    name, settings = sliced.declaration.name, NOWHERE.settings
    table = TableInMemory(settings, "silver", name, name, content=sliced.evaluated(1))
    for number in range(2, len(parts) + 1):
        evaluation = Evaluation(sliced.inputs(number), sliced.declaration, table, sliced.head(number - 1))
        table = table.after(difference(evaluation, affected_keys(evaluation)).arrow(), kind.identity)
    return to_frame(sliced.spark, table.content)


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
