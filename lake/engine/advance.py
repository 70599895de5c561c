"""Advance a table to a cut: the affected keys, the diff of their rows, one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from lake import cost
from lake.engine.affected_keys import affected_keys
from lake.engine.analysis import analyse
from lake.engine.engines import by_rows
from lake.engine.incremental import difference
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.table_columns import check_columns
from lake.engine.verbs import Advanced, after_inputs, check_definition, record_done, run_verb
from lake.engine.write import first_rows, write, write_all
from lake.project.declaration import Declaration
from lake.store import delta
from lake.store.ledger import runs
from lake.store.ledger.editions import EDITIONS
from lake.store.locks.lease import leases
from lake.store.log import Log
from lake.store.rows import Rows
from lake.store.view import view
from lake.store.voids import ERASURES


def advance(inputs: Inputs, declaration: Declaration) -> Advanced:
    """Bring one table to the cut in one commit; do nothing if it is there already.

    Raises DeclarationError for a changed definition or an input behind the cut, QualityError if the gate stops it, and
    Unavailable if another writer was first.
    """
    return run_verb("advance", inputs, declaration, _advance)


def _advance(evaluation: Evaluation, began: datetime) -> Advanced:
    inputs, declaration, head = evaluation.inputs, evaluation.declaration, evaluation.head
    if head is None:
        rows, engine, why = by_rows(evaluation, inputs.rows(declaration), _first_rows)
        return record_done(evaluation, write_all(evaluation, rows, verb="build", engine=engine), began, why)
    check_definition(inputs.project, declaration, head)
    if _is_current(evaluation):
        return Advanced(declaration.name, head.cut, "none", head.version, 0, 0, 0, 0.0)
    most = max(inputs.size_of_changes(source, head) for source in declaration.inputs)
    diff, engine, why = by_rows(evaluation, most, _difference, limit=cost.IN_PROCESS_CHANGES)
    return record_done(evaluation, write(evaluation, diff, verb="advance", engine=engine), began, why)


def _first_rows(evaluation: Evaluation) -> Rows:
    analyse(evaluation.inputs, evaluation.declaration)
    return first_rows(evaluation)


def _difference(evaluation: Evaluation) -> Rows:
    check_columns(evaluation)
    return difference(evaluation, affected_keys(evaluation))


@view()
def advance_all(
    inputs: Inputs, names: Iterable[str] = (), *, on_progress: Callable[[Advanced], None]
) -> list[Advanced]:
    settings = inputs.project.settings
    ledgers = (ledger.location(settings).path for ledger in (EDITIONS, ERASURES))
    logs = (Log(settings, stream).path for stream in inputs.cut.batches)
    delta.prefetch([*logs, *ledgers], beside=partial(leases(settings).prefetch, "table"))
    done = after_inputs(settings, inputs.project.pick(names), partial(advance, inputs), on_progress)
    runs.record_nothing_to_do(
        settings, runs.ADVANCE, [table.table for table in done if table.verb == "none"], inputs.cut.number
    )
    return done


def _is_current(evaluation: Evaluation) -> bool:
    inputs, head = evaluation.inputs, evaluation.since
    if head.cut != inputs.cut.number:
        return head.cut > inputs.cut.number
    now = inputs.cut.voids, inputs.versions(evaluation.declaration), inputs.homes(evaluation.declaration)
    return now == (head.voids, head.inputs, head.physical)
