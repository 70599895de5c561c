"""Backfill: evaluate the keys again that have events in a range of event time, and let derived tables follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING

from lake.declaration import Declaration
from lake.engine.advance import advance
from lake.engine.incremental import difference
from lake.engine.pending_change import of_diff
from lake.engine.rebuild import finish
from lake.engine.widening import must_have
from lake.engine.write import Advanced, same_definition, writing
from lake.errors import Unavailable
from lake.evaluation.inputs import Inputs
from lake.evaluation.pruning import read_at
from lake.evaluation.time_range import Between
from lake.graph import graph
from lake.ingest import integrity
from lake.progress import step
from lake.project import Project
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.runs import failing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def backfill(  # noqa: PLR0913 the range of one table, and how to tell of it
    connect: Callable[[], SparkSession],
    project: Project,
    declaration: Declaration,
    start: datetime,
    end: datetime,
    *,
    dry_run: bool = False,
    tell: Callable[[Advanced], None],
) -> list[Advanced]:
    """Makes the keys right that have an event with start <= time < end, at the table's own cut, in one commit.

    Tables derived from it follow at that cut, those that are there; a dry run leaves them out. Raises DeclarationError
    where the table was never built, by another definition, or from no log with event time.
    """
    if not any(project.contracts[stream].time for stream in project.logs(declaration)):
        raise declaration.fault("none of its logs has event time", fix=f"lake rebuild {declaration.name}")
    began = time.monotonic()
    book = nullcontext() if dry_run else failing(project.settings, "backfill", declaration.name)
    head = project.table(declaration).head()
    if head is None:
        raise declaration.fault("has not been built yet", fix=f"lake advance {declaration.name}")
    inputs = Inputs(connect, project, get_cut(project.settings, head.cut))
    between = Between(inputs, start, end)
    if between.suffice(declaration):
        integrity.must_be_whole_at(project, dict.fromkeys(project.logs(declaration), between.times))
    else:
        inputs.sound |= integrity.must_be_whole(project, [declaration])
    with step("backfill", declaration.name) as work, book, writing(inputs, declaration) as evaluation:
        if evaluation.since.cut != inputs.cut.number:
            raise Unavailable(f"{declaration.name} is being advanced", fix="run the command again")
        same_definition(project, declaration, evaluation.since)
        must_have(evaluation)
        affected = between.affected_keys(declaration)
        if affected.rows is not None and not inputs.sound:
            integrity.must_be_whole_at(project, read_at(inputs, declaration, affected.rows), known=between.times)
        change = of_diff(evaluation, difference(evaluation, affected))
        done: list[Advanced] = [finish(change, began, verb="backfill", dry_run=dry_run)]
        work.rows = done[0].rows
    tell(done[0])
    if dry_run:
        return done
    for name in graph(project).below(declaration.name):
        child = project.tables[name]
        head = project.table(child).head()
        if head is not None and head.cut == inputs.cut.number:
            done.append(advance(inputs, child))
            tell(done[-1])
    return done
