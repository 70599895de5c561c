"""What is wrong with a declaration that only their plans show, told before any data is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lake import quoting
from lake.declaration import Declaration, Input
from lake.errors import DeclarationError, LakeError
from lake.evaluation import determinism, function_output, unique
from lake.evaluation.carrying_frame import CarryingFrame
from lake.evaluation.columns import Analysed, read_of, tags
from lake.evaluation.failing_event import row_behind
from lake.evaluation.inputs import Inputs
from lake.evaluation.lookup import Values
from lake.kinds.columns import DELIVERED, TIME, visible
from lake.kinds.grouped_map import Place, fault_of
from lake.kinds.raised import NoRoom, no_room
from lake.session import first_line, raise_if_gone
from lake.store import small
from lake.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


VALUES: Final = "make its function tolerate such values (try_cast, nullif, where), or void their events"


@dataclass(frozen=True)
class Tracing:
    """What tells the events behind a fault: the `inputs` that rows were made of, and how a row of a table at their cut
    is followed to the `places` of its events, `orders 12:3:4711 (orders/a.jsonl:7)`.
    """

    inputs: Inputs
    places: Callable[[Inputs, Declaration, Values], Sequence[str]]


@contextmanager
def python_faults(declaration: Declaration, tracing: Tracing | None = None) -> Iterator[None]:
    """What the declaration made of its rows that Spark could not is told in one line, with its place.

    Where it can be told by `tracing`, so are the events that the rows cannot be made with.
    """
    try:
        yield
    except Exception as error:
        if fault := fault_of(error):
            wrong, side, place = fault
            events = _traced(tracing, lambda by: _events_at(by, declaration.inputs[side], place))
            what, void = _with_events(f"{declaration.name}: {wrong.what}", events)
            fix = wrong.fix + (f", or void it: {void}" if void else "")
            raise DeclarationError(what, where=wrong.where, fix=fix) from error
        if twice := unique.fault_of(declaration, error):
            identity = twice.identity
            events = _traced(tracing, lambda by: by.places(by.inputs, declaration, identity))
            what, void = _with_events(twice.what, events)
            raise LakeError(what, where=twice.where, fix=twice.fix + (f": {void}" if void else "")) from error
        if number := no_room(error):
            raise _no_room(declaration, number) from error
        if not _about_rows(error):
            raise
        events = _traced(tracing, lambda by: _events_behind(by, declaration))
        what, void = _with_events(f"{declaration.name}: its rows cannot be evaluated: {first_line(error)}", events)
        raise LakeError(what, where=declaration.where, fix=VALUES + (f": {void}" if void else "")) from error


def _no_room(declaration: Declaration, number: NoRoom) -> LakeError:
    key = ", ".join(f"{name}={'null' if value is None else value}" for name, value in number.key.items())
    of = f" of {key}" if key else ""
    return LakeError(
        f"{declaration.name}: {number.measure}{of}, or a sum that it is made of, does not fit {number.type}",
        where=declaration.where,
        fix="void the events that are too large, or measure smaller or wider numbers (cast to decimal)",
    )


def _traced(tracing: Tracing | None, find: Callable[[Tracing], Sequence[str]]) -> Sequence[str]:
    """The events that are found; none where that fails, as what is to be told is the fault itself."""
    try:
        return find(tracing) if tracing else ()
    except Exception as error:
        raise_if_gone(error)
        return ()


def _with_events(what: str, events: Sequence[str]) -> tuple[str, str]:
    """`what` went wrong with the `events` behind it, and the command that voids the first; "" where none is told."""
    if not events:
        return what, ""
    stream, place = events[0].split(" ")[:2]
    several = f"; the events behind it are {', '.join(events)}" if len(events) > 1 else f"; the event is {events[0]}"
    return what + several, f"lake void {stream} {place} --reason …"


def _events_at(tracing: Tracing, source: Input, place: Place) -> Sequence[str]:
    """The event of a log at a `place` as `fault_of` tells it, or those behind a table's row; none where none is."""
    if not place:
        return ()
    if not isinstance(place, str):
        return tracing.places(tracing.inputs, source.table, place) if source.table else ()
    batch, bucket, last = place.split(":")
    if bucket:
        return (f"{source.name} {place}",)
    query = "SELECT _bucket, _offset FROM t WHERE _batch = $1 AND _arrival = $2"
    rows = small.rows(Log(tracing.inputs.project.settings, source.name).path, query, int(batch), int(last))
    return [f"{source.name} {batch}:{row['_bucket']}:{row['_offset']}" for row in rows[:1]]


def _events_behind(tracing: Tracing, declaration: Declaration) -> Sequence[str]:
    row = row_behind(tracing.inputs, declaration, _about_rows)
    return _events_at(tracing, *row) if row else ()


def _about_rows(error: Exception) -> bool:
    """Return whether an expression failed for some row: SQL's classes 21 and 22, and P0 for raise_error."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and str(error.getSqlState() or "")[:2] in ("21", "22", "P0")


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
        check_clocks(inputs, declaration)
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


def check_clocks(inputs: Inputs, declaration: Declaration) -> None:
    """Raise DeclarationError if a time that the kind goes by is made of a field that a clock corrects.

    Reads no data: only plans, and those only over logs with a clock.
    """
    kind, corrected = declaration.kind, _corrected_fields(inputs, declaration)
    if not corrected:
        return
    frames = [inputs.blank(source, side) for side, source in enumerate(declaration.inputs)]
    result = declaration(*map(CarryingFrame, frames))
    sides = function_output.frames(declaration, result, len(frames))
    for side, fields in corrected.items():
        for column in kind.compared_times(side):
            wrong = fields & _columns_behind(sides[side], column, frames, side) if column in sides[side].columns else ()
            for field in sorted(wrong):
                stream = declaration.inputs[side].name
                raise declaration.fault(
                    f"its {kind.name} goes by {column!r}, which is made of {field!r} as the producer told it, and the"
                    f" contract of {stream} has a clock that corrects it",
                    fix=f"return the corrected event time: {TIME} as {column}",
                )


def _corrected_fields(inputs: Inputs, declaration: Declaration) -> dict[int, frozenset[str]]:
    """Return the fields of event times that a clock corrects, for each input whose times are compared."""
    corrected = {}
    for side, source in enumerate(declaration.inputs):
        contract = inputs.project.contracts[source.name] if source.is_log else None
        if contract is not None and contract.clock is not None and declaration.kind.compared_times(side):
            words = {*re.findall(r"\w+", contract.time or "")}
            corrected[side] = frozenset(field.name for field in contract.fields if field.name in words)
    return corrected


def _columns_behind(rows: DataFrame, column: str, frames: list[DataFrame], side: int) -> frozenset[str]:
    """Return the columns of input number `side` that `column` is made of.

    A column that filters of `rows` read too counts only if `column` is not made of the event time.
    """
    from pyspark.sql import functions as F

    def read(selected: Column) -> frozenset[str]:
        return read_of(determinism.physical(rows.select(selected)), [frame.columns for frame in frames])[side]

    of_column, of_filters = read(F.col(f"`{column}`")), read(F.lit(1))
    return of_column - of_filters if TIME in of_column else of_column


def _handed_on(declaration: Declaration, sides: Sequence[DataFrame], evaluated: DataFrame) -> dict[str, dict[str, str]]:
    """Which visible columns of the `evaluated` table are columns of an input: {input: {column: column of the input}}.

    A union has the tags of its first part alone: nothing is known of what a function makes by one.
    """
    kind, made = declaration.kind, visible(evaluated.columns)
    of_sides = [tags(rows.schema) for rows in sides]
    origins: dict[str, tuple[int, str]] = {}
    for column in made:
        if kind.chooses or (column in kind.key and len(sides) == 1):
            of_side = next((of for of, rows in zip(of_sides, sides, strict=True) if column in rows.columns), {})
            origins |= {column: of_side[column]} if column in of_side else {}
    origins |= {column: tag for column, tag in tags(evaluated.schema).items() if column in made}
    # What a log says of refusals comes below a side that has DELIVERED, and has no other column.
    mixed = [side for side, rows in enumerate(sides) if determinism.unions(rows) > (DELIVERED in rows.columns)]
    unsure = {number for side in mixed for number in (side, *(number for number, _ in of_sides[side].values()))}
    if mixed and not kind.row_by_row:
        return {}
    handed_on: dict[str, dict[str, str]] = {}
    for column, (number, its) in origins.items():
        if number not in unsure:
            handed_on.setdefault(declaration.inputs[number].name, {})[column] = its
    return handed_on
