"""The row of an input without which those of a table could be made: what Spark says of a failing expression names none.

Of a prefix of an input that fails and a shorter one that does not, the half between is looked at, until one row is
left: the rows can be made of all before it, and of it no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lake import cost
from lake.kinds.columns import ORDER
from lake.kinds.grouped_map import Place, place_of
from lake.session import raise_if_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.declaration import Declaration, Input
    from lake.evaluation.inputs import Inputs

Prefix = Callable[["DataFrame"], "DataFrame"]


def row_behind(
    inputs: Inputs, declaration: Declaration, same: Callable[[Exception], bool]
) -> tuple[Input, Place] | None:
    """The input and the place there of the row that a fault of the kind `same` comes with; None where none can be told.

    Logs are looked at before tables.
    """
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
    """The search through the input `source`, with all others as they are."""

    inputs: Inputs
    declaration: Declaration
    source: Input
    same: Callable[[Exception], bool]

    def place(self) -> Place:
        """The place of the last row of the shortest prefix that fails."""
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
        """Which of `count` growing prefixes, the last of which fails, is the first to do so."""
        sound, failing = -1, count - 1
        while failing - sound > 1:
            middle = (sound + failing) // 2
            if self.fails(prefix(middle)):
                failing = middle
            else:
                sound = middle
        return failing

    def fails(self, prefix: Prefix) -> bool:
        """Whether the table cannot be made of a `prefix` of the input."""
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
    """The rows of a table, numbered in the order of their identity."""
    return rows.selectExpr("*", f"row_number() over (order by {ORDER}) as _number")


def _upto_event(place: dict[str, Any]) -> Prefix:
    """The rows up to the one at a place."""
    kinds = {"_bucket": "int"}
    values = ", ".join(
        f"cast({'null' if value is None else value} as {kinds.get(name, 'bigint')}) as {name}"
        for name, value in place.items()
    )
    return lambda rows: rows.where(f"{ORDER} <= struct({values})")
