"""Columns of a derived table: their entry in its head, and their meanings.

The meaning of a column is the first of these. Its unit is that of the contract's field which is handed on as it.

1. a line `column: meaning` in the docstring of the table's job;
2. the meaning of the input's column that is handed on as this one: by a contract, or by another table;
3. that of the kind, for a column that the kind makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake.engine.analysis import analyse, check_clocks
from lake.engine.columns import IGNORED, WAITING, given_columns, head_columns, lost_columns
from lake.engine.engines import by_either
from lake.engine.inputs import Evaluation, Inputs
from lake.errors import DeclarationError
from lake.project.declaration import Declaration
from lake.quality.parking import COLUMN_COMMENTS
from lake.store.table_head import COMMENT, HANDED_ON, UNIT, Columns, Meanings


def columns_when_built(evaluation: Evaluation) -> Columns:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    if evaluation.head is None or not is_as_built(evaluation):
        current = {source.name: inputs.columns(source) for source in declaration.inputs}
        return head_columns(current, analyse(inputs, declaration))
    return evaluation.since.columns


def is_as_built(evaluation: Evaluation) -> bool:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = evaluation.since.columns
    if not evaluation.is_built():
        return False
    current, was = {source.name: inputs.columns(source) for source in declaration.inputs}, given_columns(columns)
    return all(
        set(types) == was[name] and columns[name]["read"].items() <= types.items() for name, types in current.items()
    )


def check_columns(evaluation: Evaluation) -> None:
    """Raise DeclarationError as `check_clocks` does, or if an input table has lost a column that is read."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    check_clocks(inputs, declaration)
    columns = evaluation.since.columns
    current = {s.name: inputs.columns(s) for s in declaration.inputs if not s.is_log and s.name in columns}
    if gone := list(lost_columns(columns, current)):
        raise declaration.fault(
            f"what it reads has changed since it was built: {', '.join(gone)}",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def columns_when_advanced(evaluation: Evaluation) -> Columns:
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = evaluation.since.columns
    held = inputs.withheld.get(declaration.name, {})
    if all(set(some) <= listed_new_columns(columns[name]) for name, some in held.items()):
        return columns
    waiting = entering(inputs, declaration, held)
    return {
        name: {
            **of_input,
            WAITING: waiting.get(name, []),
            IGNORED: [column for column in held.get(name, []) if column not in waiting[name]],
        }
        for name, of_input in columns.items()
    }


def listed_new_columns(columns: Mapping[str, Any]) -> set[str]:
    return {*columns.get(WAITING, ()), *columns.get(IGNORED, ())}


def entering(inputs: Inputs, declaration: Declaration, held: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns `held` back, {input: columns}, that a function would read; all if it fails."""
    settings, connect = inputs.project.settings, inputs.connect
    try:
        read = by_either(settings, connect, lambda session: analyse(inputs.connected(session), declaration).read)
    except DeclarationError:
        return {name: list(columns) for name, columns in held.items()}
    return {name: [column for column in columns if column in read[name]] for name, columns in held.items()}


def meanings(inputs: Inputs, declaration: Declaration, columns: Columns) -> Meanings:
    lines = declaration.comments
    handed_on = _handed_on(inputs, declaration, columns)
    of_kind = COLUMN_COMMENTS if declaration.parked_of is not None else declaration.kind.meanings
    texts = {name: {COMMENT: text} for name, text in {**of_kind, **lines}.items()}
    for name, meaning in handed_on.items():
        texts[name] = {**meaning, **({COMMENT: lines[name]} if name in lines else {})}
    return {name: meaning for name, meaning in texts.items() if meaning}


def _handed_on(inputs: Inputs, declaration: Declaration, columns: Columns) -> dict[str, Mapping[str, str]]:
    handed_on: dict[str, Mapping[str, str]] = {}
    for source in declaration.inputs:
        of_input = _of_log(inputs, source.name) if source.table is None else _of_table(inputs, source.table)
        for column, original in columns.get(source.name, {}).get(HANDED_ON, {}).items():
            handed_on[column] = of_input.get(original, {})
    return handed_on


def _of_log(inputs: Inputs, stream: str) -> Meanings:
    fields = inputs.project.contracts[stream].fields
    documented = {field.name: {COMMENT: field.doc, UNIT: field.unit} for field in fields}
    return {name: {key: text for key, text in meaning.items() if text} for name, meaning in documented.items()}


def _of_table(inputs: Inputs, declaration: Declaration) -> Meanings:
    if declaration.name not in inputs.meanings:
        head = inputs.table(declaration).head()
        inputs.meanings[declaration.name] = meanings(inputs, declaration, head.columns if head else {})
    return inputs.meanings[declaration.name]
