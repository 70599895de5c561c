"""Writing a table: rows that the gate has passed and the new head, in one commit."""

from __future__ import annotations

from dataclasses import replace

from lake.engine import content_proof
from lake.engine.compare import check_identity
from lake.engine.explain import causes
from lake.engine.inputs import Evaluation
from lake.engine.table_columns import columns_when_advanced, columns_when_built, meanings
from lake.kinds.columns import visible
from lake.lazy import pa
from lake.quality import gate
from lake.store import commit
from lake.store.ledger.runs import WHOLE
from lake.store.proof.fingerprints import Fingerprint
from lake.store.rows import Rows
from lake.store.scan import to_arrow
from lake.store.table_head import CHANGE, SPARK, Counts, TableHead
from lake.store.upkeep.compaction import pack_table


def first_rows(evaluation: Evaluation) -> Rows:
    """Return the whole table at the cut, in this process if DuckDB evaluates it or it cannot be large."""
    inputs, rows = evaluation.inputs, Rows(evaluation.all_rows())
    largest = max(inputs.size(source) for source in evaluation.declaration.inputs)
    return rows.collected(if_few=largest <= inputs.collected_rows)


def write_all(evaluation: Evaluation, rows: Rows, *, verb: str, engine: str = SPARK) -> TableHead:
    declaration, table = evaluation.declaration, evaluation.table
    rows = check_identity(declaration, rows)
    if not table.exists():
        table.create(arrow_types(rows), description=declaration.doc)
    suite = judge(evaluation, rows)
    counts = Counts() if rows.in_memory is None else Counts(inserted=rows.in_memory.num_rows)
    content = content_proof.of_rows(table, rows)
    head = replace(_next(evaluation, verb, counts, suite, content), engine=engine)
    comments = meanings(evaluation.inputs, declaration, head.columns)
    position = commit.replace(table, rows, declaration.kind.file_order, head.committed, meanings=comments)
    written = TableHead.of(position)
    # The number of rows that Spark has written is in the statistics of the files.
    return replace(written, counts=Counts(table.rows(position.version))) if rows.in_memory is None else written


def write(evaluation: Evaluation, diff: Rows, *, verb: str, engine: str = SPARK) -> TableHead:
    table, identity = evaluation.table, evaluation.identity
    suite, counts = judge(evaluation, diff), Counts.of(diff)
    content = content_proof.after_diff(table, evaluation.since, diff, identity, again=verb == "rebuild")
    head = replace(_next(evaluation, verb, counts, suite, content), engine=engine)
    declaration = evaluation.declaration
    commit.describe(table, declaration.doc, meanings(evaluation.inputs, declaration, head.columns))
    position = commit.commit(
        table, content_proof.without_hashes(diff), counts, identity, head.committed, evaluation.kind.current
    )
    pack_table(table.path, position)
    return TableHead.of(position)


def judge(evaluation: Evaluation, rows: Rows) -> str | None:
    """Check `rows` by the row-local expectations; return the hash of the suite, None without one or if it only warned.

    Raises QualityError with the events behind the rows.
    """
    if CHANGE in rows.columns:
        rows = rows.where(CHANGE, "insert", "update")
    rows = rows.select(visible(rows.columns))
    try:
        return gate.judge_diff(evaluation.table, evaluation.kind, rows, cut=evaluation.inputs.cut.number)
    except gate.GateStopped as stop:
        raise (causes.gate_error(evaluation.inputs, [stop.check]) or stop) from stop


def arrow_types(rows: Rows) -> pa.Schema:
    return to_arrow(rows.held.limit(0)).schema if rows.in_memory is None else rows.in_memory.schema


def _next(
    evaluation: Evaluation, verb: str, counts: Counts, suite_passed: str | None, content: Fingerprint | None
) -> TableHead:
    inputs, declaration, project = evaluation.inputs, evaluation.declaration, evaluation.inputs.project
    # The parts of the definition are recorded when they may have changed, not in every micro-batch.
    whole = verb in WHOLE
    columns = columns_when_built(evaluation) if whole else columns_when_advanced(evaluation)
    return TableHead(
        evaluation.head.position if evaluation.head else evaluation.table.position_or_start(),
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
