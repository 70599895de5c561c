"""Backfill: evaluate the keys again that have events in a range of event time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from lake import cost
from lake.engine import integrity
from lake.engine.advance import advance
from lake.engine.affected_keys import ALL, NOTHING, AffectedKeys, keys_by_inputs, reached_keys
from lake.engine.incremental import difference
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.pending_change import PendingChange, change_by_diff
from lake.engine.pruning import times_read
from lake.engine.rebuild import Recomputed, recompute
from lake.engine.table_columns import check_columns
from lake.engine.verbs import Advanced, check_definition, run_verb
from lake.errors import Unavailable
from lake.lazy import DataFrame
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.session import SessionFactory
from lake.store.ledger.cuts import get_cut
from lake.store.rows import Rows
from lake.store.scan import Span
from lake.text import EPOCH, MICROSECOND


def backfill(  # noqa: PLR0913 the range of one table, and how to report
    connect: SessionFactory,
    project: Project,
    declaration: Declaration,
    times: tuple[datetime, datetime],
    *,
    dry_run: bool = False,
    on_progress: Callable[[Advanced], None],
) -> list[Advanced]:
    """Correct the keys with an event at times[0] <= time < times[1], at the table's own cut, in one commit.

    Advances derived tables at that cut. Raises DeclarationError if the table was never built, was built by another
    definition, or reads no log with event time.
    """
    if not any(project.contracts[stream].time for stream in project.logs(declaration)):
        raise declaration.fault("none of its logs has event time", fix=f"lake rebuild {declaration.name}")
    head = project.table(declaration).head()
    if head is None:
        raise declaration.fault("has not been built yet", fix=f"lake advance {declaration.name}")
    inputs = Inputs(connect, project, get_cut(project.settings, head.cut))
    first, after = ((instant - EPOCH) // MICROSECOND for instant in times)
    between = Between(inputs, (first, after - 1))
    between.check_logs(declaration)

    def work(evaluation: Evaluation, began: datetime) -> Recomputed:
        return recompute(evaluation, partial(_change, between), began, verb="backfill", dry_run=dry_run)

    done = run_verb("backfill", inputs, declaration, work, dry_run=dry_run)
    on_progress(done)
    return [done] if dry_run else [done, *_advance_children(inputs, declaration, on_progress)]


def _change(between: Between, evaluation: Evaluation) -> PendingChange:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    between = replace(between, inputs=inputs)
    if evaluation.since.cut != inputs.cut.number:
        raise Unavailable(f"{declaration.name} is being advanced", fix="run the command again")
    check_definition(inputs.project, declaration, evaluation.since)
    check_columns(evaluation)
    affected = between.affected_keys(declaration)
    if affected.rows is not None and not inputs.sound_logs:
        (first, last), read = between.times, times_read(inputs, declaration, affected.rows)
        unchecked = {stream: at for stream, at in read.items() if at is None or at[0] < first or at[1] > last}
        integrity.check_integrity_at(inputs.project, unchecked)
    return change_by_diff(evaluation, difference(evaluation, affected))


def _advance_children(
    inputs: Inputs, declaration: Declaration, on_progress: Callable[[Advanced], None]
) -> list[Advanced]:
    done: list[Advanced] = []
    for name in inputs.project.below(declaration.name):
        child = inputs.project.tables[name]
        head = inputs.table(child).head()
        if head is not None and head.cut == inputs.cut.number:
            done.append(advance(inputs, child))
            on_progress(done[-1])
    return done


@dataclass(frozen=True)
class Between:
    inputs: Inputs
    times: Span

    def check_logs(self, declaration: Declaration) -> None:
        """Raise LakeError if a log is damaged; only at these times if other events affect no keys."""
        project = self.inputs.project
        if self._is_sufficient(declaration):
            integrity.check_integrity_at(project, dict.fromkeys(project.logs(declaration), self.times))
        else:
            self.inputs.sound_logs |= integrity.check_integrity(project, [declaration])

    def _is_sufficient(self, declaration: Declaration) -> bool:
        """Return whether all rows of the inputs name their key, so that other events affect no keys."""
        kind, sources = declaration.kind, declaration.inputs
        named = not kind.row_by_row or all(kind.names_key(side) for side in range(len(sources)))
        return named and all(source.table is None or self._is_sufficient(source.table) for source in sources)

    def affected_keys(self, declaration: Declaration) -> AffectedKeys:
        frames = [self._rows(source) for source in declaration.inputs]
        if all(frame is None for frame in frames):
            return NOTHING
        table = self.inputs.table(declaration)
        evaluation = Evaluation(self.inputs, declaration, table, table.head_at(self.inputs.cut.number))
        if declaration.kind.row_by_row:
            return self._by_rows(evaluation, frames)
        return keys_by_inputs(evaluation, frames) if evaluation.head else ALL

    def _rows(self, source: Input) -> DataFrame | None:
        """Return the rows of an input that are events in the range or derive from them; None if there can be none."""
        if source.table is None:
            timed = self.inputs.project.contracts[source.name].time is not None
            return self.inputs.whole(source, self.times) if timed else None
        affected, rows = self.affected_keys(source.table), self.inputs.whole(source)
        if affected.rows is None:
            return None if affected is NOTHING else rows
        return affected.rows.matching(rows)

    def _by_rows(self, evaluation: Evaluation, frames: list[DataFrame | None]) -> AffectedKeys:
        declaration, kind, table = evaluation.declaration, evaluation.kind, evaluation.table
        sides = self.inputs.sides(declaration, self.inputs.filled(declaration, frames))
        if not kind.key:
            return NOTHING if all(rows.isEmpty() for rows in sides) else ALL
        if kind.broadcast is not None and not sides[0].where(kind.broadcast).isEmpty():
            return ALL
        first, *others = [
            Rows(rows).select(kind.key) if kind.names_key(side) else reached_keys(evaluation, side, rows)
            for side, rows in enumerate(sides)
            if frames[side] is not None
        ]
        share = int(cost.AFFECTED_SHARE * table.rows(table.version()))
        limit = min(share, self.inputs.project.settings.collected_rows)
        affected = first.union(*others).distinct().within(limit)
        if affected.is_empty:
            return NOTHING
        few = affected.in_memory is not None and affected.in_memory.num_rows <= limit
        return AffectedKeys(affected) if few or limit < share else ALL
