"""Rebuild: evaluate a table from its inputs at a cut, and commit only the difference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from lake.engine import integrity
from lake.engine.analysis import analyse
from lake.engine.engines import by_rows
from lake.engine.inputs import Evaluation, Inputs
from lake.engine.pending_change import PendingChange, change_of_all, check_columns_kept, first_build
from lake.engine.table_columns import is_as_built
from lake.engine.verbs import Advanced, after_inputs, record_done, run_verb
from lake.project.declaration import Declaration
from lake.session.spark_session import first_line, raise_if_gone
from lake.store.damage import damage
from lake.store.ledger.runs import seconds_since

DRY_RUN = "dry run"


@dataclass(frozen=True)
class Recomputed(Advanced):
    """With the verb DRY_RUN nothing was committed."""

    sample: tuple[dict[str, Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


def rebuild_all(
    inputs: Inputs,
    names: Iterable[str],
    *,
    dry_run: bool = False,
    yes: bool = False,
    on_progress: Callable[[Recomputed], None],
) -> list[Recomputed]:
    picked = inputs.project.pick(names)
    inputs.sound_logs |= integrity.check_integrity(inputs.project, picked)
    work = partial(rebuild, inputs, dry_run=dry_run, yes=yes)
    return after_inputs(inputs.project.settings, picked, work, on_progress)


def rebuild(inputs: Inputs, declaration: Declaration, *, dry_run: bool = False, yes: bool = False) -> Recomputed:
    """Make the table equal to its current definition at the cut; adopt a changed definition in place.

    Raises as `advance` does; without `yes` and `dry_run`, DeclarationError if a published column would be removed or
    change its type.
    """
    inputs.declared.add(declaration.name)

    def work(evaluation: Evaluation, began: datetime) -> Recomputed:
        _check_cut(evaluation)
        # A definition that has built the table was analysed then; analysing it takes 0.2 s.
        is_changed = evaluation.head is None or not is_as_built(evaluation)

        def find(by_engine: Evaluation) -> PendingChange:
            if is_changed:
                analyse(by_engine.inputs, declaration)
                if not (yes or dry_run):
                    check_columns_kept(by_engine.inputs, [declaration])
            return _change(by_engine)

        return recompute(evaluation, find, began, verb="rebuild", dry_run=dry_run)

    return run_verb("rebuild", inputs, declaration, work, dry_run=dry_run)


def _change(evaluation: Evaluation) -> PendingChange:
    if evaluation.head is None:
        return first_build(evaluation)
    found = damage(evaluation.table.path)
    why = found.found if found else None
    if why is None:
        try:
            return change_of_all(evaluation)
        except Exception as error:
            raise_if_gone(error)
            if (why := _reading_fault(evaluation)) is None:
                raise
    logging.getLogger("lake").warning(
        "%s cannot be read (%s): all its rows are written again", evaluation.declaration.name, why
    )
    return first_build(evaluation)


def _reading_fault(evaluation: Evaluation) -> str | None:
    try:
        evaluation.table.content(evaluation.table.version())
    except Exception as error:
        return first_line(error)
    return None


def recompute(
    evaluation: Evaluation, find: Callable[[Evaluation], PendingChange], began: datetime, *, verb: str, dry_run: bool
) -> Recomputed:
    def change_of(by_engine: Evaluation) -> PendingChange:
        change = find(by_engine)
        return replace(change, rows=change.rows.collected())

    change, engine, why = by_rows(evaluation, evaluation.inputs.rows(evaluation.declaration), change_of)
    counts = asdict(change.counts)
    if dry_run:
        done = Advanced(
            evaluation.declaration.name,
            evaluation.inputs.cut.number,
            DRY_RUN,
            evaluation.head.version if evaluation.head else -1,
            **counts,
            seconds=seconds_since(began),
        )
    else:
        head = change.commit(evaluation, verb=verb, engine=engine)
        done = record_done(evaluation, head, began, why)
    kept = counts if change.counts.total else {}
    return Recomputed(**{**asdict(done), **kept}, sample=change.sample, columns=change.columns)


def _check_cut(evaluation: Evaluation) -> None:
    head, cut = evaluation.head, evaluation.inputs.cut.number
    if head is not None and head.cut > cut:
        raise evaluation.declaration.fault(
            f"is at cut {head.cut}, later than cut {cut}",
            fix="leave out --cut to rebuild at the newest cut",
        )
