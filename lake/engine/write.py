"""Writing a table: rows that the gate has passed and the head that tells of them, in one commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.declaration import Declaration
from lake.engine import content_proof
from lake.engine.widening import built, followed
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.meaning import meanings
from lake.evaluation.unique import check_unique, unique
from lake.evaluation.validate import Tracing, python_faults
from lake.explain import causes
from lake.gate import gate
from lake.kinds.columns import visible
from lake.project import Project
from lake.store import commit
from lake.store.ledger.runs import WHOLE, record_run
from lake.store.locks.lease import lease
from lake.store.proof.fingerprints import Fingerprint
from lake.store.scan import to_arrow
from lake.store.table_head import CHANGE, Counts, TableHead
from lake.store.upkeep.compaction import pack_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Advanced:
    """What a verb did to one table: the Delta `version` it left, and the rows it changed."""

    table: str
    cut: int
    verb: str
    version: int
    inserted: int
    updated: int
    deleted: int
    seconds: float

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.deleted


@contextmanager
def writing(inputs: Inputs, declaration: Declaration) -> Iterator[Evaluation]:
    """The table as it stands, held by this process alone; what goes wrong in a job's function is told with its line."""
    table = inputs.table(declaration)
    with python_faults(declaration, Tracing(inputs, causes.places_behind)), lease(inputs.project.settings, table.lease):
        yield Evaluation.of(inputs, declaration)


def first_rows(evaluation: Evaluation) -> pa.Table | DataFrame:
    """The whole table at the cut, in memory where it cannot be large."""
    inputs, rows = evaluation.inputs, evaluation.all_rows()
    largest = max(inputs.size(source) for source in evaluation.declaration.inputs)
    return to_arrow(rows) if largest <= inputs.project.settings.small_diff_rows else rows


def write_all(evaluation: Evaluation, rows: pa.Table | DataFrame, *, verb: str) -> TableHead:
    """Makes `rows` the table, after the gate."""
    declaration, table = evaluation.declaration, evaluation.table
    if isinstance(rows, pa.Table):
        check_unique(declaration, rows)
    else:
        rows = unique(rows, evaluation.identity)
    if not table.exists():
        table.create(arrow_types(rows), description=declaration.doc)
    suite = judge(evaluation, rows)
    counts = Counts(inserted=rows.num_rows) if isinstance(rows, pa.Table) else Counts()
    head = _next(evaluation, verb, counts, suite, content_proof.of_rows(table, rows))
    comments = meanings(evaluation.inputs, declaration, head.columns)
    position = commit.replace(table, rows, evaluation.identity, head.committed, meanings=comments)
    written = TableHead.of(position)
    # How many rows Spark wrote is known from the files' statistics, once they are there.
    return written if isinstance(rows, pa.Table) else replace(written, counts=Counts(table.rows(position.version)))


def write(evaluation: Evaluation, diff: pa.Table | DataFrame, *, verb: str) -> TableHead:
    """Applies `diff` to the table, after the gate."""
    table, identity = evaluation.table, evaluation.identity
    suite, counts = judge(evaluation, diff), Counts.of(diff)
    content = content_proof.after(table, evaluation.since, diff, identity, again=verb == "rebuild")
    head = _next(evaluation, verb, counts, suite, content)
    if isinstance(diff, pa.Table):
        diff = content_proof.written(diff)
    declaration = evaluation.declaration
    commit.describe(table, declaration.doc, meanings(evaluation.inputs, declaration, head.columns))
    position = commit.commit(table, diff, counts, identity, head.committed)
    pack_table(table.path, position)
    return TableHead.of(position)


def judge(evaluation: Evaluation, rows: pa.Table | DataFrame) -> str | None:
    """Row-local expectations on the rows that are about to be written: the suite that they meet, see `judge_diff`.

    Raises QualityError, with places of events behind the rows, where one of them stops.
    """
    try:
        return _judged(evaluation, rows)
    except gate.GateStopped as stop:
        raise (causes.gate_error(evaluation.inputs, [stop.check]) or stop) from stop


def _judged(evaluation: Evaluation, rows: pa.Table | DataFrame) -> str | None:
    about, cut = (evaluation.table, evaluation.declaration), evaluation.inputs.cut.number
    if isinstance(rows, pa.Table):
        if CHANGE in rows.column_names:
            rows = rows.filter(pa.compute.not_equal(rows.column(CHANGE), "delete"))
        return gate.judge_diff(*about, rows.select(visible(rows.column_names)), cut=cut)
    if CHANGE in rows.columns:
        rows = rows.where(f"{CHANGE} <> 'delete'")
    return gate.judge_diff_frame(*about, rows.select(*visible(rows.columns)), cut=cut)


def arrow_types(rows: pa.Table | DataFrame) -> pa.Schema:
    """The columns of `rows` as Arrow types."""
    return rows.schema if isinstance(rows, pa.Table) else to_arrow(rows.limit(0)).schema


def same_definition(project: Project, declaration: Declaration, head: TableHead) -> None:
    """Raises DeclarationError where the table was built by another definition."""
    if not project.is_built(declaration, head):
        now = project.fingerprint(declaration, head.columns)
        raise declaration.fault(
            f"its definition has changed since it was built ({head.fingerprint}, now {now})",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def recorded(evaluation: Evaluation, head: TableHead, began: float) -> Advanced:
    """Records the run in the run book, and says what it did."""
    inputs, seconds = evaluation.inputs, round(time.monotonic() - began, 3)
    counts = asdict(head.counts)
    done = Advanced(evaluation.declaration.name, head.cut, head.verb, head.version, **counts, seconds=seconds)
    record_run(
        inputs.project.settings,
        verb=done.verb,
        subject=done.table,
        cut=done.cut,
        outcome="done",
        counts=counts | ({"read": inputs.rows(evaluation.declaration)} if done.verb in WHOLE else {}),
        started_at=datetime.now(UTC),
        seconds=seconds,
    )
    return done


def _next(
    evaluation: Evaluation, verb: str, counts: Counts, suite_passed: str | None, content: Fingerprint | None
) -> TableHead:
    """What the next commit says of the table, on top of its head."""
    inputs, declaration, project = evaluation.inputs, evaluation.declaration, evaluation.inputs.project
    # What the definition consisted of is said where it may have changed, not in every micro-batch.
    whole = verb in WHOLE
    columns = built(evaluation) if whole else followed(evaluation)
    return TableHead(
        evaluation.head.position if evaluation.head else evaluation.table.standing(),
        cut=inputs.cut.number,
        verb=verb,
        inputs=inputs.versions(declaration),
        fingerprint=project.fingerprint(declaration, columns),
        voids=inputs.cut.voids,
        physical=inputs.homes(declaration),
        columns=columns,
        counts=counts,
        suite_passed=suite_passed,
        definition=project.definition(declaration, columns) if whole else None,
        content=None if content is None else str(content),
    )
