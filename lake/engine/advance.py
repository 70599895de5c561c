"""Advance a table to a cut: the rows of the touched keys, what differs in them, one commit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.declaration import Declaration
from lake.engine import content_proof
from lake.engine.incremental import difference
from lake.engine.scheduler import after_inputs
from lake.engine.verbs import books
from lake.engine.widening import built, followed, must_have
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import check_unique, unique
from lake.evaluation.validate import analyse, python_faults
from lake.explain import causes
from lake.gate import gate
from lake.project import Project
from lake.store.commit import CHANGE, Counts, commit, replace
from lake.store.compaction import pack_table
from lake.store.delta import Position, standing
from lake.store.fingerprints import Print
from lake.store.lease import lease
from lake.store.ledger import WHOLE, record_run
from lake.store.scan import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.store.tables import Table


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


@books("advance")
def advance(inputs: Inputs, declaration: Declaration) -> Advanced:
    """Brings one table to the cut in one commit; does nothing where it is there already.

    Raises DeclarationError for a changed definition or an input that is not at the cut, QualityError where the gate
    stopped the new rows, Unavailable where another writer was first.
    """
    began, table = time.monotonic(), inputs.table(declaration)
    with python_faults(declaration, inputs), lease(inputs.project.settings, table.lease):
        position = table.position()
        if position is not None:
            same_definition(inputs.project, declaration, position)
            if position.data["cut"] >= inputs.cut.number and _fresh(inputs, declaration, position):
                return Advanced(declaration.name, position.data["cut"], "none", position.version, 0, 0, 0, 0.0)
        if position is None:
            analyse(inputs, declaration)
            diff: pa.Table | DataFrame = first_rows(inputs, declaration)
            after = put_all(inputs, declaration, table, standing(table.path, table.app), diff, verb="build")
        else:
            must_have(inputs, declaration, position)
            diff = difference(inputs, declaration, table, position)
            after = put(inputs, declaration, table, position, diff, verb="advance")
    return told(inputs, declaration, after, began)


def advance_all(inputs: Inputs, names: Iterable[str] = (), *, tell: Callable[[Advanced], None]) -> list[Advanced]:
    """Brings the named tables (all, for none) to the cut, as `after_inputs` orders them."""

    def work(declaration: Declaration) -> Advanced:
        done = advance(inputs, declaration)
        tell(done)
        return done

    return after_inputs(inputs.project.pick(names), work, workers=inputs.project.settings.tables_at_once)


def first_rows(inputs: Inputs, declaration: Declaration) -> pa.Table | DataFrame:
    """The whole table at the cut, in memory where it cannot be large."""
    small = max(inputs.size(source) for source in declaration.inputs) <= inputs.project.settings.small_diff_rows
    evaluated = inputs.evaluate(declaration)
    return to_arrow(evaluated) if small else evaluated


def put_all(  # noqa: PLR0913 the parts of one commit
    inputs: Inputs,
    declaration: Declaration,
    table: Table,
    position: Position,
    rows: pa.Table | DataFrame,
    *,
    verb: str,
) -> Position:
    """Makes `rows` the table, after the gate, and records the position."""
    comments = inputs.comments(declaration)
    if isinstance(rows, pa.Table):
        check_unique(declaration, rows)
    else:
        rows = unique(rows, declaration.kind.identity)
    if not table.exists():
        table.create(arrow_types(rows), description=declaration.doc, comments=comments)
    met = judge(inputs, declaration, table, rows)
    counts = Counts(inserted=rows.num_rows) if isinstance(rows, pa.Table) else Counts()
    following = _next(inputs, declaration, position, verb, counts, met, content_proof.of_rows(table, rows))
    after = replace(table, rows, declaration.kind.identity, following, comments=comments)
    if isinstance(rows, pa.Table):
        return after
    # How many rows Spark wrote is known from the files' statistics, once they are there.
    return dataclasses.replace(after, data={**after.data, "counts": asdict(Counts(table.rows(after.version)))})


def put(  # noqa: PLR0913 the parts of one commit
    inputs: Inputs,
    declaration: Declaration,
    table: Table,
    position: Position,
    diff: pa.Table | DataFrame,
    *,
    verb: str,
) -> Position:
    """Applies `diff` to the table, after the gate, and records the position."""
    met = judge(inputs, declaration, table, diff)
    counts = Counts.of(diff)
    identity = declaration.kind.identity
    content = content_proof.after(table, position, diff, identity, again=verb == "rebuild")
    following = _next(inputs, declaration, position, verb, counts, met, content)
    if isinstance(diff, pa.Table):
        diff = content_proof.written(diff)
    after = commit(table, diff, counts, identity, following)
    pack_table(table.path, after)
    return after


def judge(inputs: Inputs, declaration: Declaration, table: Table, rows: pa.Table | DataFrame) -> str | None:
    """Row-local expectations on the rows that are about to be written: the suite that they meet, see `judge_diff`.

    Raises QualityError, with places of events behind the rows, where one of them stops.
    """
    try:
        return _judged(inputs, declaration, table, rows)
    except gate.Stopped as stop:
        raise (causes.stopped(inputs, [stop.check]) or stop) from stop


def _judged(inputs: Inputs, declaration: Declaration, table: Table, rows: pa.Table | DataFrame) -> str | None:
    from lake.kinds.kind import visible

    if isinstance(rows, pa.Table):
        if CHANGE in rows.column_names:
            rows = rows.filter(pa.compute.not_equal(rows.column(CHANGE), "delete"))
        return gate.judge_diff(table, declaration, rows.select(visible(rows.column_names)), cut=inputs.cut.number)
    if CHANGE in rows.columns:
        rows = rows.where(f"{CHANGE} <> 'delete'")
    return gate.judge_diff_frame(table, declaration, rows.select(*visible(rows.columns)), cut=inputs.cut.number)


def same_definition(project: Project, declaration: Declaration, position: Position) -> None:
    """Raises DeclarationError where the table was built by another definition."""
    if not project.is_built(declaration, position):
        now = project.fingerprint(declaration, position.data.get("columns"))
        raise declaration.fault(
            f"its definition has changed since it was built ({position.data['fingerprint']}, now {now})",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def arrow_types(rows: pa.Table | DataFrame) -> pa.Schema:
    """The columns of `rows` as Arrow types."""
    if isinstance(rows, pa.Table):
        return rows.schema
    return to_arrow(rows.limit(0)).schema


def told(inputs: Inputs, declaration: Declaration, after: Position, began: float) -> Advanced:
    """Records the run in the books, and says what it did."""
    seconds = round(time.monotonic() - began, 3)
    data = after.data
    done = Advanced(declaration.name, data["cut"], data["verb"], after.version, **data["counts"], seconds=seconds)
    record_run(
        inputs.project.settings,
        verb=done.verb,
        subject=done.table,
        cut=done.cut,
        outcome="done",
        counts=data["counts"] | ({"read": inputs.rows(declaration)} if done.verb in WHOLE else {}),
        started_at=datetime.now(UTC),
        seconds=seconds,
    )
    return done


def _fresh(inputs: Inputs, declaration: Declaration, position: Position) -> bool:
    """Whether the table already follows from what its inputs are now."""
    if position.data["cut"] > inputs.cut.number:
        return True
    then = position.data["voids"], position.data["inputs"], position.data.get("homes")
    return then == (inputs.cut.voids, inputs.versions(declaration), inputs.homes(declaration))


def _next(  # noqa: PLR0913, PLR0917 the parts of one position
    inputs: Inputs,
    declaration: Declaration,
    position: Position,
    verb: str,
    counts: Counts,
    met: str | None,
    content: Print | None,
) -> Position:
    project = inputs.project
    # What the definition consisted of is said where it may have changed, not in every micro-batch.
    if verb in WHOLE:
        columns = built(inputs, declaration, position)
        said = {"definition": project.definition(declaration, columns)}
    else:
        columns, said = followed(inputs, declaration, position), {}
    return position.next(
        verb=verb,
        cut=inputs.cut.number,
        voids=inputs.cut.voids,
        inputs=inputs.versions(declaration),
        homes=inputs.homes(declaration),
        fingerprint=project.fingerprint(declaration, columns),
        columns=columns,
        counts=asdict(counts),
        met=met,
        **said,
        **({} if content is None else {"content": str(content)}),
    )
