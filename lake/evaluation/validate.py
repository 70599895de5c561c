"""What is wrong with a declaration that only their plans show, told before any data is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lake import quoting
from lake.declaration import Declaration, Input
from lake.errors import DeclarationError, LakeError
from lake.evaluation import determinism, function_output, unique
from lake.evaluation.columns import Analysed, read_of, tags
from lake.evaluation.failing_event import event_behind
from lake.evaluation.inputs import Inputs
from lake.kinds.columns import DELIVERED, visible
from lake.kinds.grouped_map import fault_of
from lake.session import first_line, raise_if_gone
from lake.store import delta
from lake.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


VALUES: Final = "make its function tolerate such values (try_cast, nullif, where), or void their events"


@contextmanager
def python_faults(declaration: Declaration, inputs: Inputs | None = None) -> Iterator[None]:
    """What the declaration made of its rows that Spark could not is told in one line, with its place.

    Of rows that cannot be made of `inputs`, the event that they cannot be made with is told too.
    """
    try:
        yield
    except Exception as error:
        fault = fault_of(error)
        if fault is None and (twice := unique.fault_of(declaration, error)):
            raise twice from error
        if fault is None and _about_rows(error):
            what, fix = f"{declaration.name}: its rows cannot be evaluated: {first_line(error)}", VALUES
            if inputs is not None and (behind := _event_behind(inputs, declaration)):
                what += f"; the event is {' '.join(behind)}"
                fix += f": lake void {' '.join(behind)} --reason …"
            raise LakeError(what, where=declaration.where, fix=fix) from error
        if fault is None:
            raise
        told, place = fault
        what, fix = f"{declaration.name}: {told.what}", told.fix
        if inputs is not None and (event := _event_at(inputs, declaration.inputs[0], place)):
            what += f"; the event is {event}"
            fix += f", or void it: lake void {event} --reason …"
        raise DeclarationError(what, where=told.where, fix=fix) from error


def _event_at(inputs: Inputs, source: Input, place: str) -> str:
    """`orders 12:3:4711`: the event of a log at a `place` as `fault_of` tells it; "" where there is none."""
    if not place or not source.is_log:
        return ""
    batch, bucket, last = place.split(":")
    if bucket:
        return f"{source.name} {place}"
    query = "SELECT _bucket, _offset FROM t WHERE _batch = $1 AND _arrival = $2"
    rows = delta.rows(Log(inputs.project.settings, source.name).path, query, int(batch), int(last))
    return next((f"{source.name} {batch}:{row['_bucket']}:{row['_offset']}" for row in rows), "")


def _event_behind(inputs: Inputs, declaration: Declaration) -> tuple[str, str] | None:
    try:
        return event_behind(inputs, declaration, _about_rows)
    except Exception as error:
        raise_if_gone(error)
        return None  # what is to be told is the fault itself


def _about_rows(error: Exception) -> bool:
    """Whether Spark could not evaluate an expression for some row: errors of SQL's classes 21 and 22."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and str(error.getSqlState() or "")[:2] in ("21", "22")


def analyse(inputs: Inputs, declaration: Declaration) -> Analysed:
    """Evaluates the declaration, as it is now, over inputs without rows; once for these inputs.

    Raises DeclarationError: for unknown columns, wrong types, names that are none, what is not repeatable.
    """
    if declaration.name not in inputs.analysed:
        inputs.analysed[declaration.name] = _analysed(inputs, declaration)
    return inputs.analysed[declaration.name]


def _analysed(inputs: Inputs, declaration: Declaration) -> Analysed:
    kind = declaration.kind
    frames = [inputs.blank(source, side) for side, source in enumerate(declaration.inputs)]
    sides: tuple[DataFrame, ...] = ()
    try:
        sides = inputs.called(declaration, frames)
        for side, rows in enumerate(sides):
            quoting.check(rows.columns)
            determinism.check(declaration, rows, [frames[side]] if kind.row_by_row else frames)
        determinism.check_together(declaration, sides)
        evaluated = inputs.evaluated(declaration, sides)
        columns = evaluated.columns
        quoting.check(columns)
    except DeclarationError as fault:
        raise fault if fault.where else declaration.fault(fault.what, fix=fault.fix) from fault
    except Exception as error:
        raise_if_gone(error)
        columns = [column for rows in sides for column in rows.columns]
        raise function_output.fault(declaration, error, columns, of=f"its {kind.name}") from error
    lost = [column for column in kind.identity if column not in columns]
    if lost:
        raise declaration.fault(f"its rows have no column {lost[0]!r}", fix="it is part of their identity: return it")
    read: dict[str, frozenset[str]] = {}
    scanned = read_of(determinism.physical(evaluated), [frame.columns for frame in frames])
    for source, names in zip(declaration.inputs, scanned, strict=True):
        read[source.name] = read.get(source.name, frozenset()) | frozenset(visible(names))
    return Analysed(read, dict(evaluated.dtypes), _handed_on(declaration, sides, evaluated))


def _handed_on(declaration: Declaration, sides: Sequence[DataFrame], evaluated: DataFrame) -> dict[str, dict[str, str]]:
    """Which visible columns of the `evaluated` table are columns of an input: {input: {column: column of the input}}.

    A union has the tags of its first part alone: nothing is known of what a function makes by one.
    """
    kind, made = declaration.kind, visible(evaluated.columns)
    of_sides = [tags(rows.schema) for rows in sides]
    found: dict[str, tuple[int, str]] = {}
    for column in made:
        if kind.chooses or (column in kind.key and len(sides) == 1):
            of_side = next((of for of, rows in zip(of_sides, sides, strict=True) if column in rows.columns), {})
            found |= {column: of_side[column]} if column in of_side else {}
    found |= {column: tag for column, tag in tags(evaluated.schema).items() if column in made}
    # What a log says of refusals comes below a side that has DELIVERED, and has no other column.
    mixed = [side for side, rows in enumerate(sides) if determinism.unions(rows) > (DELIVERED in rows.columns)]
    unsure = {number for side in mixed for number in (side, *(number for number, _ in of_sides[side].values()))}
    if mixed and not kind.row_by_row:
        return {}
    handed_on: dict[str, dict[str, str]] = {}
    for column, (number, its) in found.items():
        if number not in unsure:
            handed_on.setdefault(declaration.inputs[number].name, {})[column] = its
    return handed_on
