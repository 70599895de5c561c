"""Explain: a row of a table, and the events that made it, through the tables between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.declaration import Declaration, Input
from lake.errors import DeclarationError
from lake.evaluation.affected_keys import restrict
from lake.evaluation.inputs import Inputs
from lake.evaluation.lookup import Few, Finding, Found, Values
from lake.explain.lineage import trace
from lake.explain.selector import asked, position_at, rows_of, schema_at
from lake.ingest.events import Event, events_at
from lake.kinds.columns import same, visible
from lake.project import Project
from lake.session import first_line, raise_if_gone
from lake.store.ledger.cuts import Cut, get_cut, latest_cut
from lake.store.scan import to_arrow, to_frame
from lake.store.table_head import TableHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Cause:
    """A row of an input that went into a row: an event of a log, or a row of a table. `nth` of all of that input."""

    role: str | None
    nth: int
    values: Values
    event: Event | None = None
    row: Explained | None = None


@dataclass(frozen=True)
class Side:
    """What went into a row from one input: how many rows, and some of them."""

    source: str
    is_log: bool
    count: int
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Explained:
    """A row, told apart by `identity`, and what made it; its `values` are None where there is no such row."""

    table: str
    identity: Values
    values: Values | None
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Explanation:
    """The rows of `table` that a person asked for: how many there are, and those that are explained.

    `version` is the table's Delta version at `cut`, None where it is not there; `notes` say what else a reader should
    know.
    """

    table: str
    kind: str
    asked: Values
    cut: int
    version: int | None
    count: int
    rows: tuple[Explained, ...]
    notes: tuple[str, ...]


def explain(  # noqa: PLR0913 what, when and how much
    project: Project,
    connect: Callable[[], SparkSession],
    name: str,
    texts: Sequence[str],
    *,
    at_cut: int | None = None,
    limit: int = 10,
) -> Explanation:
    """The rows of table `name` that `texts` (`column=value`) mean, as they were at a cut, or are.

    Of more than `limit` rows or events the first and the last are told, and of an input's inputs half as many.
    Raises DeclarationError for what is not there: table, column, cut, or both row and event.
    """
    [declaration] = project.pick([name])
    table, few = project.table(declaration), Few.of(limit)
    head, latest = position_at(table, at_cut), latest_cut(project.settings)
    if head is not None:
        wanted = asked(declaration, schema_at(table, head.version), texts)
        rows = rows_of(declaration, table, head, wanted)
        if rows or at_cut is not None or latest is None or latest.number <= head.cut:
            inputs = Inputs(connect, project, get_cut(project.settings, head.cut))
            return _of_table(inputs, declaration, head, wanted, rows, few, newest=at_cut is None)
    if at_cut is None and latest is None:
        raise declaration.fault("not built yet, and there is no cut", fix="lake run")
    cut = get_cut(project.settings, at_cut) if at_cut is not None else latest
    assert cut is not None
    return _of_logs(_recomputing(connect, project, cut), declaration, texts, few)


def _of_table(  # noqa: PLR0913, PLR0917  a table, and what is asked of it
    inputs: Inputs,
    declaration: Declaration,
    head: TableHead,
    wanted: pa.Table,
    stored: Sequence[Values],
    few: Few,
    *,
    newest: bool,
) -> Explanation:
    """The rows `found` in the table where it stands at `head`."""
    [key] = wanted.to_pylist()
    shown = _ends(_sorted(declaration, stored), few)
    rows = _explained(inputs, declaration, shown, few) if stored else [_missing(inputs, declaration, key, few)]
    return Explanation(
        declaration.name,
        declaration.kind.name,
        key,
        inputs.cut.number,
        head.version,
        len(stored),
        tuple(rows),
        tuple(_notes(inputs.project, declaration, head, newest=newest)),
    )


def _of_logs(inputs: Inputs, declaration: Declaration, texts: Sequence[str], few: Few) -> Explanation:
    """What the table, which is not at the cut, has to come from there: the events, and the row where it can be made."""
    schema = to_arrow(inputs.evaluate(declaration).limit(0)).schema
    wanted = asked(declaration, schema, texts)
    [key] = wanted.to_pylist()
    missing, evaluated = _missing(inputs, declaration, key, few), list[Values]()
    head = inputs.table(declaration).head()
    note = f"the table is not at cut {inputs.cut.number}: these are the events it will be derived from"
    if head is not None and head.cut > inputs.cut.number:
        note = (
            f"of cut {inputs.cut.number} nothing is kept: this is made of the logs, by definitions and contracts of now"
        )
    try:
        evaluated = _evaluated(inputs, declaration, wanted)
    except Exception as error:
        raise_if_gone(error)
        note += f"; the row cannot be evaluated: {first_line(error)}"
    rows = [
        replace(
            missing, identity={c: row[c] for c in declaration.kind.identity}, values={c: row[c] for c in visible(row)}
        )
        for row in _ends(_sorted(declaration, evaluated), few)
    ]
    return Explanation(
        declaration.name,
        declaration.kind.name,
        key,
        inputs.cut.number,
        None,
        len(evaluated),
        tuple(rows or [missing]),
        (note,),
    )


def _evaluated(inputs: Inputs, declaration: Declaration, wanted: pa.Table) -> list[Values]:
    """The rows with the values that are `wanted`, as an evaluation from the inputs makes them."""
    kind = declaration.kind
    if kind.key:
        rows = inputs.evaluated(declaration, restrict(inputs, declaration, wanted.select(list(kind.key))))
    else:
        rows = inputs.evaluate(declaration)
    keys = to_frame(inputs.spark, wanted)
    values: list[Values] = to_arrow(rows.join(keys, same(rows, keys, wanted.column_names), "left_semi")).to_pylist()
    return values


def _recomputing(connect: Callable[[], SparkSession], project: Project, cut: Cut) -> Inputs:
    """The inputs at a cut, whether or not the tables among them are there yet."""
    heads = {name: project.table(declaration).head_at(cut.number) for name, declaration in project.tables.items()}
    versions = {name: head.version for name, head in heads.items() if head is not None}
    return Inputs(connect, project, cut, recompute=True, proved=versions)


def _explained(inputs: Inputs, declaration: Declaration, rows: Sequence[Values], few: Few) -> list[Explained]:
    """`rows` of the table, with what went into each, down to the logs."""
    if not rows:
        return []
    findings = trace(inputs, declaration, rows, few)
    return [
        Explained(
            declaration.name,
            {column: row[column] for column in declaration.kind.identity},
            {column: row[column] for column in visible(row)},
            sides,
        )
        for row, sides in zip(rows, _sides_of(inputs, declaration, findings, few), strict=True)
    ]


def _sides_of(
    inputs: Inputs, declaration: Declaration, findings: Sequence[Sequence[Finding]], few: Few
) -> list[tuple[Side, ...]]:
    return sides_of(inputs, declaration, findings, lambda parent, shown: _parents(inputs, parent, shown, few))


def sides_of(
    inputs: Inputs,
    declaration: Declaration,
    findings: Sequence[Sequence[Finding]],
    parents: Callable[[Declaration, Sequence[Found]], list[Cause]],
) -> list[tuple[Side, ...]]:
    """The `findings` about some rows of a table, a list per row with one for each input, with all that made them.

    `parents` tells what made rows of a table that is an input.
    """
    sides = []
    for number, source in enumerate(declaration.inputs):
        of_rows = [finding[number] for finding in findings]
        shown = [entry for finding in of_rows for entry in finding.shown]
        causes = _events(inputs, source, shown) if source.table is None else parents(source.table, shown)
        remaining = iter(causes)
        sides.append(
            [
                Side(source.name, source.is_log, finding.count, tuple(next(remaining) for _ in finding.shown))
                for finding in of_rows
            ]
        )
    return [tuple(of_row) for of_row in zip(*sides, strict=True)]


def _events(inputs: Inputs, source: Input, shown: Sequence[Found]) -> list[Cause]:
    places = {_place(entry.order) for entry in shown}
    events = events_at(inputs.project.settings, source.name, places, inputs.cut)
    return [Cause(entry.role, entry.nth, entry.values, event=events[_place(entry.order)]) for entry in shown]


def _parents(inputs: Inputs, parent: Declaration, shown: Sequence[Found], few: Few) -> list[Cause]:
    """The rows of a table that is an input, each explained in its turn."""
    if not shown:
        return []
    distinct = {_identity(entry.order): entry.order for entry in shown}
    if not inputs.has(parent):
        made = {key: made_by(inputs, parent, order, few.fewer()) for key, order in distinct.items()}
        return [Cause(entry.role, entry.nth, entry.values, row=made[_identity(entry.order)]) for entry in shown]
    table, version = inputs.table(parent), inputs.version(Input(parent.name, parent))
    schema = pa.schema([table.schema().field(column) for column in parent.kind.identity])
    rows = table.rows_of(pa.Table.from_pylist(list(distinct.values()), schema=schema), version).to_pylist()
    explained = {_identity(row.identity): row for row in _explained(inputs, parent, rows, few.fewer())}
    return [Cause(entry.role, entry.nth, entry.values, row=explained[_identity(entry.order)]) for entry in shown]


def made_by(inputs: Inputs, declaration: Declaration, identity: Values, few: Few) -> Explained:
    """What made the row of that `identity` at the cut, whether or not the table has it."""
    [sides] = _sides_of(inputs, declaration, trace(inputs, declaration, [identity], few), few)
    return Explained(declaration.name, identity, None, sides)


def _missing(inputs: Inputs, declaration: Declaration, key: Values, few: Few) -> Explained:
    """A row that is not there, with the events that speak of it. Raises DeclarationError where none does.

    Of a view whose whole is one key, every event speaks, and none of this row.
    """
    kind, sides = declaration.kind, tuple[Side, ...]()
    if kind.key or kind.row_by_row:
        [sides] = _sides_of(inputs, declaration, trace(inputs, declaration, [key], few), few)
    if not any(side.count for side in sides):
        what = ", ".join(f"{column}={value}" for column, value in key.items())
        raise DeclarationError(
            f"{declaration.name} has no row with {what} at cut {inputs.cut.number}, and no event refers to that key",
            where=declaration.where,
            fix=f'lake sql "select {", ".join(key)} from {declaration.name} limit 5" shows rows that exist',
        )
    return Explained(declaration.name, key, None, sides)


def _notes(project: Project, declaration: Declaration, head: TableHead, *, newest: bool) -> Iterator[str]:
    if not project.is_built(declaration, head):
        yield "its definition has changed since it was built; the events are those by today's definition"
    latest = latest_cut(project.settings)
    if newest and latest is not None and latest.number > head.cut:
        yield f"there is a newer cut {latest.number}: lake advance {declaration.name}"


def _sorted(declaration: Declaration, rows: Sequence[Values]) -> list[Values]:
    """In the order of their identity, nulls first."""

    def place(row: Values) -> list[Any]:
        return [(row[column] is not None, row[column]) for column in declaration.kind.identity]

    return sorted(rows, key=place)


def _ends(rows: Sequence[Values], few: Few) -> Sequence[Values]:
    """The first and the last of `rows`."""
    if len(rows) <= few.first + few.last:
        return rows
    return [*rows[: few.first], *rows[len(rows) - few.last :]]


def _place(order: Values) -> tuple[int, int, int]:
    return order["_batch"], order["_bucket"], order["_offset"]


def _identity(values: Values) -> tuple[Any, ...]:
    return tuple(values.values())
