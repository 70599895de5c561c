"""Errors about a declaration's rows, each in one line with the events behind it.

Spark names no row, so prefixes of an input in the order of its rows are bisected until one row is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from lake import cost
from lake.engine import compare
from lake.engine.explain.causes import places_behind
from lake.engine.inputs import Inputs
from lake.errors import DeclarationError, LakeError
from lake.kinds.columns import ORDER
from lake.kinds.grouped_map import Place, fault_of, place_of
from lake.kinds.sql_errors import NoRoom, no_room
from lake.lazy import DataFrame
from lake.project.declaration import Declaration, Input
from lake.session.spark_session import first_line, raise_if_gone
from lake.store import duckdb_tables
from lake.store.log import Log

VALUES: Final = "make its function tolerate such values (try_cast, nullif, where), or void their events"


@contextmanager
def python_faults(declaration: Declaration, inputs: Inputs | None = None) -> Iterator[None]:
    """Raise errors about rows in one line, with the place in the job, and with `inputs` the events behind them."""
    try:
        yield
    except Exception as error:
        if fault := fault_of(error):
            wrong, side, place = fault
            events = _traced(inputs, lambda by: _events_at(by, declaration.inputs[side], place))
            what, void = _with_events(f"{declaration.name}: {wrong.what}", events)
            fix = wrong.fix + (f", or void it: {void}" if void else "")
            raise DeclarationError(what, where=wrong.where, fix=fix) from error
        if twice := compare.fault_of(declaration, error):
            identity = twice.identity
            events = _traced(inputs, lambda by: places_behind(by, declaration, identity))
            what, void = _with_events(twice.what, events)
            raise LakeError(what, where=twice.where, fix=twice.fix + (f": {void}" if void else "")) from error
        if number := no_room(error):
            raise _no_room(declaration, number) from error
        if not _about_rows(error):
            raise
        events = _traced(inputs, lambda by: _events_behind(by, declaration))
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


def _traced(inputs: Inputs | None, find: Callable[[Inputs], Sequence[str]]) -> Sequence[str]:
    try:
        return find(inputs) if inputs else ()
    except Exception as error:  # the fault itself has to be reported
        raise_if_gone(error)
        return ()


def _with_events(what: str, events: Sequence[str]) -> tuple[str, str]:
    if not events:
        return what, ""
    stream, place = events[0].split(" ")[:2]
    several = f"; the events behind it are {', '.join(events)}" if len(events) > 1 else f"; the event is {events[0]}"
    return what + several, f"lake void {stream} {place} --reason …"


def _events_at(inputs: Inputs, source: Input, place: Place) -> Sequence[str]:
    if not place:
        return ()
    if not isinstance(place, str):
        return places_behind(inputs, source.table, place) if source.table else ()
    batch, bucket, last = place.split(":")
    if bucket:
        return (f"{source.name} {place}",)
    query = "SELECT _bucket, _offset FROM t WHERE _batch = $1 AND _arrival = $2"
    rows = duckdb_tables.rows(Log(inputs.project.settings, source.name).path, query, int(batch), int(last))
    return [f"{source.name} {batch}:{row['_bucket']}:{row['_offset']}" for row in rows[:1]]


def _events_behind(inputs: Inputs, declaration: Declaration) -> Sequence[str]:
    """Return the event on which the evaluation fails, or the events behind such a row of a table; () if not found."""
    if len({source.name for source in declaration.inputs}) != len(declaration.inputs):
        return ()
    if inputs.rows(declaration) > cost.BLAMED_ROWS:
        return ()
    for source in sorted(declaration.inputs, key=lambda source: not source.is_log):
        if not _fails(inputs, declaration, source, 0):
            return _events_at(inputs, source, _first_failing(inputs, declaration, source))
    return ()


def _about_rows(error: Exception) -> bool:
    """Match errors of Python functions, SQL's error classes 21 and 22, and P0 of raise_error."""
    from pyspark.errors import PySparkException, PythonException

    if not isinstance(error, PySparkException):
        return False
    return isinstance(error, PythonException) or str(error.getSqlState() or "")[:2] in ("21", "22", "P0")


def _first_failing(inputs: Inputs, declaration: Declaration, source: Input) -> Place:
    rows = _numbered(inputs.whole(source))
    sound, failing = 0, rows.count()
    while failing - sound > 1:
        middle = (sound + failing) // 2
        if _fails(inputs, declaration, source, middle):
            failing = middle
        else:
            sound = middle
    [row] = rows.where(f"_number = {failing}").select(f"{ORDER}.*").toArrow().to_pylist()
    return place_of(row)


def _fails(inputs: Inputs, declaration: Declaration, source: Input, count: int) -> bool:
    frames = [inputs.whole(each) for each in declaration.inputs]
    side = declaration.inputs.index(source)
    frames[side] = _numbered(frames[side]).where(f"_number <= {count}").drop("_number")
    try:
        rows = inputs.evaluated(declaration, inputs.sides(declaration, frames))
        rows.selectExpr("max(length(to_json(struct(*))))").collect()
    except Exception as error:
        raise_if_gone(error)
        if not _about_rows(error):
            raise
        return True
    return False


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", f"row_number() over (order by {ORDER}) as _number")
