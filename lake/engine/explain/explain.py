"""Lineage of a row: the events that made it, through the tables in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lake.engine.affected_keys import restrict
from lake.engine.engines import by_either
from lake.engine.explain.lineage import trace
from lake.engine.explain.selector import parse_key
from lake.engine.inputs import Inputs
from lake.engine.lookup import Few, Finding, Found, Values
from lake.errors import DeclarationError
from lake.ingest.events import Event, events_at
from lake.kinds.columns import same, visible
from lake.lazy import pa
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.session import SessionFactory
from lake.session.spark_session import first_line, raise_if_gone
from lake.store.comparison import comparison_key
from lake.store.ledger.cuts import Cut, get_cut, latest_cut
from lake.store.rows import Rows
from lake.store.scan import to_arrow, to_frame
from lake.store.table_head import TableHead


@dataclass(frozen=True)
class Cause:
    """Row of an input behind a table's row: an event, or a row of a table; number `nth` of its input."""

    role: str | None
    nth: int
    values: Values
    event: Event | None = None
    row: ExplainedRow | None = None


@dataclass(frozen=True)
class InputCauses:
    source: str
    is_log: bool
    count: int
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class ExplainedRow:
    """`values` are None if the table has no such row."""

    table: str
    identity: Values
    values: Values | None
    sides: tuple[InputCauses, ...]

    @classmethod
    def of(cls, declaration: Declaration, row: Values, sides: tuple[InputCauses, ...]) -> ExplainedRow:
        identity = {column: row[column] for column in declaration.kind.identity}
        return cls(declaration.name, identity, {column: row[column] for column in visible(row)}, sides)


@dataclass(frozen=True)
class RowExplanation:
    """`count` rows have the `key`; `rows` are those explained. `version` is None if the table is not built at `cut`."""

    table: str
    kind: str
    key: Values
    cut: int
    version: int | None
    count: int
    rows: tuple[ExplainedRow, ...]
    notes: tuple[str, ...]


def explain(  # noqa: PLR0913 what, when and how much
    project: Project,
    connect: SessionFactory,
    name: str,
    texts: Sequence[str],
    *,
    at_cut: int | None = None,
    limit: int = 10,
) -> RowExplanation:
    """Explain rows of table `name` that match `texts` (`column=value`), at `at_cut` or now.

    Returns the first and last of more than `limit` rows, half as many at each level. Raises DeclarationError if table,
    column, cut, or both row and events do not exist.
    """
    [declaration] = project.pick([name])
    few = Few.of(limit)
    return by_either(
        project.settings, connect, lambda session: _explained(project, session, declaration, texts, at_cut, few)
    )


def _explained(  # noqa: PLR0913, PLR0917 what, when and how much
    project: Project,
    connect: SessionFactory,
    declaration: Declaration,
    texts: Sequence[str],
    at_cut: int | None,
    few: Few,
) -> RowExplanation:
    table, latest = project.table(declaration), latest_cut(project.settings)
    asked = None if at_cut is None else get_cut(project.settings, at_cut)
    head = table.head() if at_cut is None else table.readable_head_at(at_cut)
    if head is not None:
        wanted = parse_key(declaration, table.schema(head.version), texts)
        rows: list[Values] = table.rows_of(wanted, head.version).to_pylist()
        if rows or asked is not None or latest is None or latest.number <= head.cut:
            inputs = (
                Inputs(connect, project, get_cut(project.settings, head.cut))
                if asked is None
                else _inputs_at(connect, project, asked)
            )
            [key] = wanted.to_pylist()
            shown = _first_and_last(_by_identity(declaration, rows), few)
            explained = _explain_rows(inputs, declaration, shown, few) or [
                _explain_missing(inputs, declaration, key, few)
            ]
            notes = tuple(_notes(project, declaration, head, newest=asked is None))
            name, kind = declaration.name, declaration.kind.name
            return RowExplanation(name, kind, key, head.cut, head.version, len(rows), tuple(explained), notes)
    if asked is None and latest is None:
        raise declaration.fault("not built yet, and there is no cut", fix="lake run")
    cut = asked or latest
    assert cut is not None
    return _explain_from_logs(_inputs_at(connect, project, cut), declaration, texts, few)


def _explain_from_logs(inputs: Inputs, declaration: Declaration, texts: Sequence[str], few: Few) -> RowExplanation:
    schema = to_arrow(inputs.evaluate(declaration).limit(0)).schema
    wanted = parse_key(declaration, schema, texts)
    [key] = wanted.to_pylist()
    missing, evaluated = _explain_missing(inputs, declaration, key, few), list[Values]()
    head = inputs.table(declaration).head()
    note = f"the table is not at cut {inputs.cut.number}: these are the events it will be derived from"
    if head is not None and head.cut > inputs.cut.number:
        note = f"cut {inputs.cut.number} is not kept: this is made of the logs, by definitions and contracts of now"
    try:
        evaluated = _evaluate_rows(inputs, declaration, wanted)
    except Exception as error:
        raise_if_gone(error)
        note += f"; the row cannot be evaluated: {first_line(error)}"
    shown = _first_and_last(_by_identity(declaration, evaluated), few)
    rows = tuple(ExplainedRow.of(declaration, row, missing.sides) for row in shown) or (missing,)
    name, kind = declaration.name, declaration.kind.name
    return RowExplanation(name, kind, key, inputs.cut.number, None, len(evaluated), rows, (note,))


def _evaluate_rows(inputs: Inputs, declaration: Declaration, wanted: pa.Table) -> list[Values]:
    kind = declaration.kind
    if kind.key:
        rows = inputs.evaluated(declaration, restrict(inputs, declaration, Rows(wanted.select(list(kind.key)))))
    else:
        rows = inputs.evaluate(declaration)
    keys = to_frame(inputs.spark, wanted)
    values: list[Values] = to_arrow(rows.join(keys, same(rows, keys, wanted.column_names), "left_semi")).to_pylist()
    return values


def _inputs_at(connect: SessionFactory, project: Project, cut: Cut) -> Inputs:
    """Return inputs at an old cut; tables that are not kept there are evaluated from the logs."""
    tables = {name: project.table(declaration) for name, declaration in project.tables.items()}
    heads = {name: table.readable_head_at(cut.number) for name, table in tables.items()}
    versions = {name: head.version for name, head in heads.items() if head is not None}
    return Inputs(connect, project, cut, recompute=True, proved=versions)


def _explain_rows(inputs: Inputs, declaration: Declaration, rows: Sequence[Values], few: Few) -> list[ExplainedRow]:
    if not rows:
        return []
    return [
        ExplainedRow.of(declaration, row, sides)
        for row, sides in zip(rows, _causes(inputs, declaration, rows, few), strict=True)
    ]


def _causes(
    inputs: Inputs, declaration: Declaration, rows: Sequence[Values], few: Few
) -> list[tuple[InputCauses, ...]]:
    findings = trace(inputs, declaration, rows, few)
    return attach_causes(inputs, declaration, findings, lambda parent, shown: _table_causes(inputs, parent, shown, few))


def attach_causes(
    inputs: Inputs,
    declaration: Declaration,
    findings: Sequence[Sequence[Finding]],
    parents: Callable[[Declaration, Sequence[Found]], list[Cause]],
) -> list[tuple[InputCauses, ...]]:
    """Return the causes of each row, per input, from `findings` by input, then by row.

    `parents` explains rows of an input that is a table.
    """
    sides = []
    for source, of_rows in zip(declaration.inputs, findings, strict=True):
        shown = [entry for finding in of_rows for entry in finding.shown]
        causes = _event_causes(inputs, source, shown) if source.table is None else parents(source.table, shown)
        remaining = iter(causes)
        sides.append(
            [
                InputCauses(source.name, source.is_log, finding.count, tuple(next(remaining) for _ in finding.shown))
                for finding in of_rows
            ]
        )
    return [tuple(of_row) for of_row in zip(*sides, strict=True)]


def _event_causes(inputs: Inputs, source: Input, shown: Sequence[Found]) -> list[Cause]:
    places = {_place(entry.order) for entry in shown}
    events = events_at(inputs.project.settings, source.name, places, inputs.cut)
    return [Cause(entry.role, entry.nth, entry.values, event=events[_place(entry.order)]) for entry in shown]


def _table_causes(inputs: Inputs, parent: Declaration, shown: Sequence[Found], few: Few) -> list[Cause]:
    if not shown:
        return []
    distinct = {key_values(entry.order): entry.order for entry in shown}
    if not inputs.has(parent):
        made = {key: explain_identity(inputs, parent, order, few.fewer()) for key, order in distinct.items()}
        return [Cause(entry.role, entry.nth, entry.values, row=made[key_values(entry.order)]) for entry in shown]
    table, version = inputs.table(parent), inputs.version(Input(parent.name, parent))
    schema = pa.schema([table.schema(version).field(column) for column in parent.kind.identity])
    rows = table.rows_of(pa.Table.from_pylist(list(distinct.values()), schema=schema), version).to_pylist()
    explained = {key_values(row.identity): row for row in _explain_rows(inputs, parent, rows, few.fewer())}
    return [Cause(entry.role, entry.nth, entry.values, row=explained[key_values(entry.order)]) for entry in shown]


def explain_identity(inputs: Inputs, declaration: Declaration, identity: Values, few: Few) -> ExplainedRow:
    """Explain the row with this identity, even if the table lacks it."""
    [sides] = _causes(inputs, declaration, [identity], few)
    return ExplainedRow(declaration.name, identity, None, sides)


def _explain_missing(inputs: Inputs, declaration: Declaration, key: Values, few: Few) -> ExplainedRow:
    """Return the events of a key without a row; none for a view without a key, to which all belong."""
    kind, sides = declaration.kind, tuple[InputCauses, ...]()
    if kind.key or kind.row_by_row:
        [sides] = _causes(inputs, declaration, [key], few)
    if not any(side.count for side in sides):
        what = ", ".join(f"{column}={value}" for column, value in key.items())
        raise DeclarationError(
            f"{declaration.name} has no row with {what} at cut {inputs.cut.number}, and no event refers to that key",
            where=declaration.where,
            fix=f'lake sql "select {", ".join(key)} from {declaration.name} limit 5" shows rows that exist',
        )
    return ExplainedRow(declaration.name, key, None, sides)


def _notes(project: Project, declaration: Declaration, head: TableHead, *, newest: bool) -> Iterator[str]:
    if not project.is_built(declaration, head):
        yield "its definition has changed since it was built; the events are those by today's definition"
    latest = latest_cut(project.settings)
    if newest and latest is not None and latest.number > head.cut:
        yield f"there is a newer cut {latest.number}: lake advance {declaration.name}"


def _by_identity(declaration: Declaration, rows: Sequence[Values]) -> list[Values]:
    return sorted(rows, key=lambda row: key_values({column: row[column] for column in declaration.kind.identity}))


def _first_and_last(rows: Sequence[Values], few: Few) -> Sequence[Values]:
    if len(rows) <= few.first + few.last:
        return rows
    return [*rows[: few.first], *rows[len(rows) - few.last :]]


def _place(order: Values) -> tuple[int, int, int]:
    return order["_batch"], order["_bucket"], order["_offset"]


def key_values(values: Values) -> tuple[Any, ...]:
    return comparison_key(values)
