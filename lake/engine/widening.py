"""What a table's head says of its columns after each verb, and which columns wait for its next deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.evaluation.columns import IGNORED, WAITING, given, lost, recorded
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.validate import analyse, check_clocks
from lake.store.table_head import Columns


def built(evaluation: Evaluation) -> Columns:
    """What the head of a table says that is built now."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    current = {source.name: inputs.columns(source) for source in declaration.inputs}
    if evaluation.head is None or not is_as_built(evaluation):
        return recorded(current, analyse(inputs, declaration))
    return evaluation.since.columns


def is_as_built(evaluation: Evaluation) -> bool:
    """Whether the table at `head` was built by its definition as it is now, of inputs with the columns of now."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = evaluation.since.columns
    if not evaluation.is_built():
        return False
    current, was = {source.name: inputs.columns(source) for source in declaration.inputs}, given(columns)
    return all(
        set(types) == was[name] and columns[name]["read"].items() <= types.items() for name, types in current.items()
    )


def must_have(evaluation: Evaluation) -> None:
    """Raise DeclarationError if a table that the declared one is derived from has lost what it reads, or its times are
    are those of wrong clocks.
    """
    inputs, declaration = evaluation.inputs, evaluation.declaration
    check_clocks(inputs, declaration)
    columns = evaluation.since.columns
    current = {s.name: inputs.columns(s) for s in declaration.inputs if not s.is_log and s.name in columns}
    if gone := list(lost(columns, current)):
        raise declaration.fault(
            f"what it reads has changed since it was built: {', '.join(gone)}",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def followed(evaluation: Evaluation) -> Columns:
    """What the head of a table says that follows its inputs: which columns have come to them since it was built."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = evaluation.since.columns
    held = inputs.withheld.get(declaration.name, {})
    if all(came <= known(columns[name]) for name, came in ((name, set(some)) for name, some in held.items())):
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


def known(columns: Mapping[str, Any]) -> set[str]:
    """The columns of one input of which a head says whether they wait."""
    return {*columns.get(WAITING, ()), *columns.get(IGNORED, ())}


def entering(inputs: Inputs, declaration: Declaration, held: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Which of the columns that a function is not given, {input: columns}, it would read if it were.

    All of them where it cannot do with them: then a build says why.
    """
    try:
        read = analyse(inputs, declaration).read
    except DeclarationError:
        return {name: list(columns) for name, columns in held.items()}
    return {name: [column for column in columns if column in read[name]] for name, columns in held.items()}
