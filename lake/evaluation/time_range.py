"""Which keys of a table have events in a range of event time, through all tables between it and its logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake import cost
from lake.declaration import Declaration, Input
from lake.evaluation.affected_keys import ALL, NOTHING, Keys, by_inputs, reached
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.kinds.columns import same
from lake.store.scan import Span, as_frame, within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Between:
    """The events with start <= time < end, in the logs up to the cut of `inputs`."""

    inputs: Inputs
    start: datetime
    end: datetime

    @property
    def times(self) -> Span:
        first, after = ((instant - EPOCH) // MICROSECOND for instant in (self.start, self.end))
        return first, after - 1

    def suffice(self, declaration: Declaration) -> bool:
        """Whether events at other times decide nothing about which keys are affected: they do where rows of an input
        do not name their keys, and what reaches these is looked up.
        """
        kind, sources = declaration.kind, declaration.inputs
        named = not kind.row_by_row or all(kind.names_key(side) for side in range(len(sources)))
        return named and all(source.table is None or self.suffice(source.table) for source in sources)

    def affected_keys(self, declaration: Declaration) -> Keys:
        """The keys of a table that is at the cut that are to be evaluated.

        Events of a log without event time affect nothing.
        """
        frames = [self._rows(source) for source in declaration.inputs]
        if all(frame is None for frame in frames):
            return NOTHING
        table = self.inputs.table(declaration)
        evaluation = Evaluation(self.inputs, declaration, table, table.head_at(self.inputs.cut.number))
        if declaration.kind.row_by_row:
            return self._by_rows(evaluation, frames)
        return by_inputs(evaluation, frames) if evaluation.head else ALL

    def _rows(self, source: Input) -> DataFrame | None:
        """The rows of an input that such events are, or made; None where it can have none."""
        from pyspark.sql import functions as F

        if source.table is None:
            timed = self.inputs.project.contracts[source.name].time is not None
            return self.inputs.whole(source, self.times) if timed else None
        affected, rows = self.affected_keys(source.table), self.inputs.whole(source)
        if affected.rows is None:
            return None if affected is NOTHING else rows
        keys = as_frame(self.inputs.spark, affected.rows)
        wanted = F.broadcast(keys) if isinstance(affected.rows, pa.Table) else keys
        return rows.join(wanted, same(rows, keys, keys.columns), "left_semi")

    def _by_rows(self, evaluation: Evaluation, frames: list[DataFrame | None]) -> Keys:
        declaration, kind, table = evaluation.declaration, evaluation.kind, evaluation.table
        filled = [
            self.inputs.nothing(source) if frame is None else frame
            for source, frame in zip(declaration.inputs, frames, strict=True)
        ]
        sides = self.inputs.sides(declaration, filled)
        if not kind.key:
            return NOTHING if all(rows.isEmpty() for rows in sides) else ALL
        if kind.broadcast is not None and not sides[0].where(kind.broadcast).isEmpty():
            return ALL
        keys = [
            rows.select(*kind.key)
            if kind.names_key(side)
            else as_frame(self.inputs.spark, reached(evaluation, side, rows))
            for side, rows in enumerate(sides)
            if frames[side] is not None
        ]
        share = int(cost.AFFECTED_SHARE * table.rows(table.version()))
        limit = min(share, self.inputs.project.settings.small_diff_rows)
        affected = within(reduce(lambda a, b: a.union(b), keys).distinct(), limit)
        if not isinstance(affected, pa.Table):
            return Keys(affected) if limit < share else ALL
        return Keys(affected) if affected.num_rows else NOTHING
