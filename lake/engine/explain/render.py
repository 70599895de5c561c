"""Explanations and diffs as JSON, and as trees for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.text import Text
from rich.tree import Tree

from lake.engine.explain.causes import WEAK
from lake.engine.explain.edition_diff import EditionDiff, RowChange
from lake.engine.explain.explain import Cause, ExplainedRow, InputCauses, RowExplanation
from lake.engine.lookup import Values
from lake.ingest.events import Event
from lake.store.comparison import equal
from lake.text import counted, moment, plain, shown, some_of, span

CHANGE_STYLES: Final = {"insert": "green", "update": "yellow", "delete": "red"}


def as_data(explanation: RowExplanation) -> dict[str, Any]:
    """Instants are ISO 8601 in UTC, lateness is in seconds."""
    as_json: dict[str, Any] = plain(vars(explanation) | {"rows": [_row_data(row) for row in explanation.rows]})
    return as_json


def sides_data(sides: Sequence[InputCauses]) -> list[dict[str, Any]]:
    return [
        {
            "input": side.source,
            "count": side.count,
            "events" if side.is_log else "rows": [_cause_data(c) for c in side.causes],
        }
        for side in sides
    ]


def diff_data(diff: EditionDiff) -> dict[str, Any]:
    data = {
        "table": diff.table,
        "from": {"edition": diff.editions[0].number, "cut": diff.cuts[0]},
        "to": {"edition": diff.editions[1].number, "cut": diff.cuts[1]},
        **asdict(diff.counts),
        "columns": asdict(diff.columns),
        "sample": [
            {
                "change": row.change,
                "key": row.identity,
                "before": row.before,
                "after": row.after,
                "columns": list(row.columns),
                "from": sides_data(row.sides),
            }
            for row in diff.sample
        ],
        "notes": diff.notes,
    }
    as_json: dict[str, Any] = plain(data)
    return as_json


def diff_tree(diff: EditionDiff) -> Tree:
    (old, new), (was, now), counts = diff.editions, diff.cuts, diff.counts
    editions = f"edition {old.number} of cut {was} → edition {new.number} of cut {now}"
    summary = f"{counts.inserted} inserted, {counts.updated} updated, {counts.deleted} deleted"
    root = Tree(Text.assemble((diff.table, "bold"), f"  {editions}: {summary}"))
    for note in (*_columns(diff), *diff.notes):
        root.add(Text(note, "yellow"))
    changes = {"update": counts.updated, "insert": counts.inserted, "delete": counts.deleted}
    for change, count in changes.items():
        rows = [row for row in diff.sample if row.change == change]
        for row in rows:
            line = Text.assemble((f"{change}  ", CHANGE_STYLES[change]), _changed(row))
            add_sides(root.add(line), [side for side in row.sides if side.count], row.after or row.before or {})
        if count > len(rows):
            root.add(_more(count - len(rows)))
    return root


def _columns(diff: EditionDiff) -> Iterator[str]:
    columns = diff.columns
    if columns.added:
        yield f"columns added: {', '.join(columns.added)}"
    if columns.removed:
        yield f"columns removed: {', '.join(columns.removed)}"
    for name, (was, now) in columns.retyped.items():
        yield f"column {name} was {was.lower()}, now is {now.lower()}"


def _changed(row: RowChange) -> str:
    if row.change != "update":
        return _pairs(row.after or row.before or {})
    changed = (f"{name}: {shown(was)} → {shown(now)}" for name, (was, now) in row.columns.items())
    return "  ".join([_pairs(row.identity), *changed])


def as_tree(explanation: RowExplanation) -> Tree:
    summary = f"{counted(explanation.count, 'row')} at cut {explanation.cut}"
    root = Tree(Text.assemble((explanation.table, "bold"), f"  {_pairs(explanation.key)}  {summary}"))
    for note in explanation.notes:
        root.add(Text(note, "yellow"))
    left_out = explanation.count - len(explanation.rows)
    for number, row in enumerate(explanation.rows):
        if left_out > 0 and number == len(explanation.rows) - len(explanation.rows) // 2:
            root.add(_more(left_out))
        line = Text("no such row; events of its key", "red") if row.values is None else Text(_pairs(row.values), "bold")
        add_sides(root.add(line), row.sides, row.values or {})
    return root


def add_sides(branch: Tree, sides: Sequence[InputCauses], values: Values) -> None:
    for side in sides:
        count = counted(side.count, "event" if side.is_log else "row")
        inner = branch.add(Text.assemble((side.source, "cyan"), f"  {count}"))
        last = 0
        for cause in side.causes:
            if cause.nth > last + 1:
                inner.add(_more(cause.nth - last - 1))
            last = cause.nth
            _add_cause(inner, cause, values)
        if side.count > last:
            inner.add(_more(side.count - last))


def _add_cause(branch: Tree, cause: Cause, values: Values) -> None:
    role = f"{cause.role}  " if cause.role else ""
    if cause.event is not None:
        line = Text.assemble(cause.event.place, "  ", (role, _style(cause)), "  ".join(_facts(cause.event)))
        new = {
            name: value for name, value in cause.values.items() if name not in values or not equal(values[name], value)
        }
        branch.add(line.append(f"\n{_pairs(new)}", "dim") if new else line)
    elif cause.row is not None:
        row = branch.add(Text.assemble((role, _style(cause)), _pairs(cause.row.values or cause.row.identity)))
        add_sides(row, cause.row.sides, cause.row.values or {})


def _facts(event: Event) -> Iterator[str]:
    yield shown(event.source)
    if event.time is not None:
        yield f"of {moment(event.time)}"
    yield f"arrived {moment(event.arrived)}"
    if event.late:
        yield f"late by {span(event.late)}"
    yield f"contract {event.contract}"
    if event.again:
        yield f"again in {some_of([*map(shown, event.again)])}"
    if event.void is not None:
        yield f"void: {shown(event.void)}"


def _row_data(row: ExplainedRow) -> dict[str, Any]:
    return {"row": row.values, "from": sides_data(row.sides)}


def _cause_data(cause: Cause) -> dict[str, Any]:
    role = {"standing": cause.role}
    if cause.row is not None:
        return role | _row_data(cause.row)
    event = {} if cause.event is None else asdict(cause.event) | {"late": cause.event.late.total_seconds()}
    return role | event | {"values": cause.values}


def _style(cause: Cause) -> str:
    return "dim" if (cause.role or "").startswith(WEAK) else "green"


def _more(count: int) -> Text:
    return Text(f"… {count} more", "dim")


def _pairs(values: Values) -> str:
    return "  ".join(f"{name}={shown(value)}" for name, value in values.items())
