"""Errors about a declaration's rows, each in one line with the events behind it.

Spark names no row, so prefixes of the input are bisected until one row is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lake import cost
from lake.engine import compare
from lake.engine.inputs import Inputs
from lake.engine.lookup import Values
from lake.errors import DeclarationError, LakeError
from lake.kinds.columns import ORDER
from lake.kinds.grouped_map import Place, fault_of, place_of
from lake.kinds.sql_errors import NoRoom, no_room
from lake.project.declaration import Declaration, Input
from lake.session.spark_session import first_line, raise_if_gone
from lake.store import duckdb_tables
from lake.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Prefix = Callable[["DataFrame"], "DataFrame"]
VALUES: Final = "make its function tolerate such values (try_cast, nullif, where), or void their events"


@dataclass(frozen=True)
class Tracing:
    """`places` returns the events behind a row of a table, such as `orders 12:3:4711 (orders/a.jsonl:7)`."""

    inputs: Inputs
    places: Callable[[Inputs, Declaration, Values], Sequence[str]]


@contextmanager
def python_faults(declaration: Declaration, tracing: Tracing | None = None) -> Iterator[None]:
    """Raise errors about rows in one line, with the place in the job, and by `tracing` the events behind them."""
    try:
        yield
    except Exception as error:
        if fault := fault_of(error):
            wrong, side, place = fault
            events = _traced(tracing, lambda by: _events_at(by, declaration.inputs[side], place))
            what, void = _with_events(f"{declaration.name}: {wrong.what}", events)
            fix = wrong.fix + (f", or void it: {void}" if void else "")
            raise DeclarationError(what, where=wrong.where, fix=fix) from error
        if twice := compare.fault_of(declaration, error):
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
    try:
        return find(tracing) if tracing else ()
    except Exception as error:  # the fault itself has to be reported
        raise_if_gone(error)
        return ()


def _with_events(what: str, events: Sequence[str]) -> tuple[str, str]:
    if not events:
        return what, ""
    stream, place = events[0].split(" ")[:2]
    several = f"; the events behind it are {', '.join(events)}" if len(events) > 1 else f"; the event is {events[0]}"
    return what + several, f"lake void {stream} {place} --reason …"


def _events_at(tracing: Tracing, source: Input, place: Place) -> Sequence[str]:
    if not place:
        return ()
    if not isinstance(place, str):
        return tracing.places(tracing.inputs, source.table, place) if source.table else ()
    batch, bucket, last = place.split(":")
    if bucket:
        return (f"{source.name} {place}",)
    query = "SELECT _bucket, _offset FROM t WHERE _batch = $1 AND _arrival = $2"
    rows = duckdb_tables.rows(Log(tracing.inputs.project.settings, source.name).path, query, int(batch), int(last))
    return [f"{source.name} {batch}:{row['_bucket']}:{row['_offset']}" for row in rows[:1]]


def _events_behind(tracing: Tracing, declaration: Declaration) -> Sequence[str]:
    row = row_behind(tracing.inputs, declaration, _about_rows)
    return _events_at(tracing, *row) if row else ()


def _about_rows(error: Exception) -> bool:
    """Match SQL's error classes 21 and 22, and P0 of raise_error."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) and str(error.getSqlState() or "")[:2] in ("21", "22", "P0")


def row_behind(
    inputs: Inputs, declaration: Declaration, same: Callable[[Exception], bool]
) -> tuple[Input, Place] | None:
    """Return the input and place of the row with a fault accepted by `same`, if found."""
    if len({source.name for source in declaration.inputs}) != len(declaration.inputs):
        return None
    if inputs.rows(declaration) > cost.BLAMED_ROWS:
        return None
    for source in sorted(declaration.inputs, key=lambda source: not source.is_log):
        search = _Search(inputs, declaration, source, same)
        if not search.fails(lambda rows: rows.where("false")):
            return source, search.place()
    return None


@dataclass(frozen=True)
class _Search:
    inputs: Inputs
    declaration: Declaration
    source: Input
    same: Callable[[Exception], bool]

    def place(self) -> Place:
        return self._of_event() if self.source.is_log else self._of_row()

    def _of_row(self) -> Place:
        rows = self.inputs.whole(self.source)
        number = self._first(rows.count(), lambda nth: _upto_number(nth + 1)) + 1
        [row] = _numbered(rows).where(f"_number = {number}").select(f"{ORDER}.*").toArrow().to_pylist()
        return place_of(row)

    def _of_event(self) -> Place:
        batch = self._first(self.inputs.version(self.source), lambda nth: _upto_batch(nth + 1)) + 1
        places = self.inputs.whole(self.source).where(f"{ORDER}._batch = {batch}").select(f"{ORDER}.*").toArrow()
        rows = sorted(places.to_pylist(), key=lambda row: tuple((value is not None, value) for value in row.values()))
        event = rows[self._first(len(rows), lambda nth: _upto_event(rows[nth]))]
        return f"{event['_batch']}:{event['_bucket']}:{event['_offset']}"

    def _first(self, count: int, prefix: Callable[[int], Prefix]) -> int:
        sound, failing = -1, count - 1
        while failing - sound > 1:
            middle = (sound + failing) // 2
            if self.fails(prefix(middle)):
                failing = middle
            else:
                sound = middle
        return failing

    def fails(self, prefix: Prefix) -> bool:
        frames = [
            prefix(self.inputs.whole(source)) if source == self.source else self.inputs.whole(source)
            for source in self.declaration.inputs
        ]
        try:
            rows = self.inputs.evaluated(self.declaration, self.inputs.sides(self.declaration, frames))
            rows.selectExpr("max(length(to_json(struct(*))))").collect()
        except Exception as error:
            raise_if_gone(error)
            if not self.same(error):
                raise
            return True
        return False


def _upto_batch(number: int) -> Prefix:
    return lambda rows: rows.where(f"{ORDER}._batch <= {number}")


def _upto_number(number: int) -> Prefix:
    return lambda rows: _numbered(rows).where(f"_number <= {number}").drop("_number")


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", f"row_number() over (order by {ORDER}) as _number")


def _upto_event(place: dict[str, Any]) -> Prefix:
    kinds = {"_bucket": "int"}
    values = ", ".join(
        f"cast({'null' if value is None else value} as {kinds.get(name, 'bigint')}) as {name}"
        for name, value in place.items()
    )
    return lambda rows: rows.where(f"{ORDER} <= struct({values})")
