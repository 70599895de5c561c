"""Explain: a row of a table, and the events that made it, through the tables between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.declaration import Declaration, Input
from lake.errors import DeclarationError
from lake.kinds.kind import visible
from lake.project import Project
from lake.run.asking import asked, position_at, rows_of
from lake.run.events import Event, events_at
from lake.run.inputs import Inputs
from lake.run.lookup import Few, Finding, Found, Values
from lake.run.trace import trace
from lake.store.delta import Position
from lake.store.meta import get_cut, latest_cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Cause:
    """A row of an input that went into a row: an event of a log, or a row of a table. `nth` of all of that input."""

    standing: str | None
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

    `version` is the table's Delta version at `cut`; `notes` say what else a reader should know.
    """

    table: str
    kind: str
    asked: Values
    cut: int
    version: int
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
    table = project.table(declaration)
    position = position_at(declaration, table, at_cut)
    wanted = asked(declaration, table, position.version, texts)
    inputs = Inputs(connect, project, get_cut(project.settings, position.data["cut"]))
    found = rows_of(declaration, table, position, wanted)
    few, [key] = Few.of(limit), wanted.to_pylist()
    shown = _ends(_sorted(declaration, found), few)
    rows = _explained(inputs, declaration, shown, few) if found else [_missing(inputs, declaration, key, few)]
    return Explanation(
        declaration.name,
        declaration.kind.name,
        key,
        inputs.cut.number,
        position.version,
        len(found),
        tuple(rows),
        tuple(_notes(project, declaration, position, at_cut)),
    )


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
        for row, sides in zip(rows, _told(inputs, declaration, findings, few), strict=True)
    ]


def _told(
    inputs: Inputs, declaration: Declaration, findings: Sequence[Sequence[Finding]], few: Few
) -> list[tuple[Side, ...]]:
    return told(inputs, declaration, findings, lambda parent, shown: _parents(inputs, parent, shown, few))


def told(
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
        shown = [found for finding in of_rows for found in finding.shown]
        causes = _events(inputs, source, shown) if source.table is None else parents(source.table, shown)
        there = iter(causes)
        sides.append(
            [
                Side(source.name, source.is_log, finding.count, tuple(next(there) for _ in finding.shown))
                for finding in of_rows
            ]
        )
    return [tuple(each) for each in zip(*sides, strict=True)]


def _events(inputs: Inputs, source: Input, shown: Sequence[Found]) -> list[Cause]:
    places = {_place(found.order) for found in shown}
    events = events_at(inputs.project.settings, source.name, places, inputs.cut)
    return [Cause(each.standing, each.nth, each.values, event=events[_place(each.order)]) for each in shown]


def _parents(inputs: Inputs, parent: Declaration, shown: Sequence[Found], few: Few) -> list[Cause]:
    """The rows of a table that is an input, each explained in its turn."""
    if not shown:
        return []
    table, version = inputs.table(parent), inputs.version(Input(parent.name, parent))
    distinct = {_identity(found.order): found.order for found in shown}
    schema = pa.schema([table.schema().field(column) for column in parent.kind.identity])
    rows = table.rows_of(pa.Table.from_pylist(list(distinct.values()), schema=schema), version).to_pylist()
    explained = {_identity(each.identity): each for each in _explained(inputs, parent, rows, few.fewer())}
    return [Cause(each.standing, each.nth, each.values, row=explained[_identity(each.order)]) for each in shown]


def _missing(inputs: Inputs, declaration: Declaration, key: Values, few: Few) -> Explained:
    """A row that is not there, with the events that speak of it. Raises DeclarationError where none does.

    Of a view whose whole is one key, every event speaks, and none of this row.
    """
    kind, sides = declaration.kind, tuple[Side, ...]()
    if kind.key or kind.row_by_row:
        [sides] = _told(inputs, declaration, trace(inputs, declaration, [key], few), few)
    if not any(side.count for side in sides):
        what = ", ".join(f"{column}={value}" for column, value in key.items())
        raise DeclarationError(
            f"{declaration.name} has no row with {what} at cut {inputs.cut.number}, and no event speaks of it",
            where=declaration.where,
            fix=f'lake sql "select {", ".join(key)} from {declaration.name} limit 5" shows what there is',
        )
    return Explained(declaration.name, key, None, sides)


def _notes(project: Project, declaration: Declaration, position: Position, at_cut: int | None) -> Iterator[str]:
    if position.data["fingerprint"] != project.fingerprint(declaration):
        yield "its definition has changed since it was built; the events are told by the definition of today"
    latest = latest_cut(project.settings)
    if at_cut is None and latest is not None and latest.number > position.data["cut"]:
        yield f"there is a cut {latest.number} by now: lake advance {declaration.name}"


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
