"""Which keys of a table have events in a range of event time, through all tables between it and its logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.declaration import Declaration, Input
from lake.evaluation.affected_keys import LARGE_SHARE, Touched, by_view, reached
from lake.evaluation.inputs import Inputs
from lake.kinds.kind import same
from lake.kinds.view import View
from lake.store.scan import to_arrow, to_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Between:
    """The events with start <= time < end, in the logs up to the cut of `inputs`."""

    inputs: Inputs
    start: datetime
    end: datetime

    def touched(self, declaration: Declaration) -> Touched | None:
        """The keys of a table that is at the cut, to be evaluated; None where there are no such events.

        Events of a log without event time touch nothing.
        """
        frames = [self._rows(source) for source in declaration.inputs]
        if all(frame is None for frame in frames):
            return None
        if not isinstance(declaration.kind, View):
            return self._by_rows(declaration, frames)
        table = self.inputs.table(declaration)
        position = table.position_at(self.inputs.cut.number)
        return by_view(self.inputs, declaration, table, position, frames) if position else Touched(None)

    def _rows(self, source: Input) -> DataFrame | None:
        """The rows of an input that such events are, or made; None where it can have none."""
        from pyspark.sql import functions as F

        rows = self.inputs.whole(source)
        if source.table is None:
            if self.inputs.project.contracts[source.name].time is None:
                return None
            return rows.where((F.col("_time") >= F.lit(self.start)) & (F.col("_time") < F.lit(self.end)))
        found = self.touched(source.table)
        if found is None or found.keys is None:
            return None if found is None else rows
        keys = to_frame(self.inputs.spark, found.keys) if isinstance(found.keys, pa.Table) else found.keys
        return rows.join(F.broadcast(keys), same(rows, keys, keys.columns), "left_semi")

    def _by_rows(self, declaration: Declaration, frames: list[DataFrame | None]) -> Touched | None:
        kind, table = declaration.kind, self.inputs.table(declaration)
        there = [
            self.inputs.nothing(source) if frame is None else frame
            for source, frame in zip(declaration.inputs, frames, strict=True)
        ]
        sides = self.inputs.sides(declaration, there)
        if not kind.key:
            return None if all(rows.isEmpty() for rows in sides) else Touched(None)
        if kind.broadcast is not None and not sides[0].where(kind.broadcast).isEmpty():
            return Touched(None)
        keys = [
            rows.select(*kind.key)
            if kind.names_key(side)
            else to_frame(self.inputs.spark, reached(self.inputs, declaration, table, side, rows))
            for side, rows in enumerate(sides)
            if frames[side] is not None
        ]
        limit = int(LARGE_SHARE * table.rows(table.version()))
        found = to_arrow(reduce(lambda a, b: a.union(b), keys).distinct().limit(limit + 1))
        if not found.num_rows:
            return None
        return Touched(found if found.num_rows <= limit else None)
