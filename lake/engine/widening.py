"""What a table's head says of its columns after each verb, and which columns wait for its next deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.evaluation.columns import IGNORED, WAITING, given, lost, recorded
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.evaluation.validate import analyse, check_clocks
from lake.store.table_head import HANDED_ON, Columns


def built(evaluation: Evaluation) -> Columns:
    """What the head of a table says that is built now."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    current = {source.name: inputs.columns(source) for source in declaration.inputs}
    if evaluation.head is None or not is_as_built(evaluation):
        return recorded(current, analyse(inputs, declaration))
    columns = evaluation.since.columns
    assert columns is not None
    return _with_handed_on(evaluation, columns)


def is_as_built(evaluation: Evaluation) -> bool:
    """Whether the table at `head` was built by its definition as it is now, of inputs with the columns of now."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = evaluation.since.columns
    if columns is None or not evaluation.is_built():
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
    columns = evaluation.since.columns or {}
    current = {s.name: inputs.columns(s) for s in declaration.inputs if not s.is_log and s.name in columns}
    if gone := list(lost(columns, current)):
        raise declaration.fault(
            f"what it reads has changed since it was built: {', '.join(gone)}",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def followed(evaluation: Evaluation) -> Columns:
    """What the head of a table says that follows its inputs: which columns have come to them since it was built."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns = _with_handed_on(evaluation, evaluation.since.columns or _unrecorded(evaluation))
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


def _with_handed_on(evaluation: Evaluation, columns: Columns) -> Columns:
    """`columns`, and what of them is handed on, where the table was built before heads said it and a session is there
    to ask.
    """
    inputs, declaration = evaluation.inputs, evaluation.declaration
    if all(HANDED_ON in of_input for of_input in columns.values()) or not inputs.connected:
        return columns
    handed_on: Mapping[str, Mapping[str, str]] = {}
    with suppress(DeclarationError):  # of what would not be built today: then its columns are nobody's
        handed_on = analyse(inputs, declaration).handed_on
    was = given(columns)
    return {
        name: {
            **of_input,
            HANDED_ON: {column: its for column, its in handed_on.get(name, {}).items() if its in was[name]},
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


def _unrecorded(evaluation: Evaluation) -> Columns:
    """What a head did not say when the table was built: what it reads of its logs as its fingerprint has it."""
    inputs, declaration = evaluation.inputs, evaluation.declaration
    columns, was = inputs.project.columns(declaration, evaluation.since) or {}, inputs.given(declaration)
    columns_of = {}
    for source in declaration.inputs:
        read = columns.get(source.name, {}).get("read", {})
        current = inputs.columns(source)
        kept = was.get(source.name, frozenset(current))
        columns_of[source.name] = {
            "read": read,
            "unread": [name for name in current if name in kept and name not in read],
        }
    return columns_of
