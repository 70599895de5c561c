"""What is wrong with a declaration that only their plans show, told before any data is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lake import names
from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.kinds.keyed import fault_of
from lake.run import repeatable
from lake.run.inputs import Inputs
from lake.session import raise_if_gone


@contextmanager
def python_faults(declaration: Declaration) -> Iterator[None]:
    """What the declaration's Python function did wrong in a worker is told in one line, with the function's place."""
    try:
        yield
    except Exception as error:
        fault = fault_of(error)
        if fault is None:
            raise
        raise DeclarationError(f"{declaration.name}: {fault.what}", where=fault.where, fix=fault.fix) from error


def analyse(inputs: Inputs, declaration: Declaration) -> None:
    """Evaluates the declaration over inputs without rows.

    Raises DeclarationError: for unknown columns, wrong types, names that are none, what is not repeatable.
    """
    kind = declaration.kind
    frames = [inputs.nothing(source) for source in declaration.inputs]
    try:
        sides = inputs.sides(declaration, frames)
        for side, rows in enumerate(sides):
            names.check(rows.columns)
            repeatable.check(declaration, rows, [frames[side]] if kind.row_by_row else frames)
        columns = inputs.evaluated(declaration, sides).columns
        names.check(columns)
    except DeclarationError as fault:
        raise fault if fault.where else declaration.fault(fault.what, fix=fault.fix) from fault
    except Exception as error:
        raise_if_gone(error)
        raise declaration.fault(f"its {kind.name} fails: {repeatable.first_line(error)}") from error
    lost = [column for column in kind.identity if column not in columns]
    if lost:
        raise declaration.fault(f"its rows have no column {lost[0]!r}", fix="it tells them apart: return it")
