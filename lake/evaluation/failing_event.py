"""The event without which the rows of a table could be made: what Spark says of a failing expression names no row.

Of a prefix of a log that fails and a shorter one that does not, the half between is looked at, until one event is left:
the rows can be made of all before it, and of it no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lake import cost
from lake.kinds.columns import ORDER
from lake.session import raise_if_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.declaration import Declaration, Input
    from lake.evaluation.inputs import Inputs

Prefix = Callable[["DataFrame"], "DataFrame"]


def event_behind(inputs: Inputs, declaration: Declaration, same: Callable[[Exception], bool]) -> tuple[str, str] | None:
    """The stream and the place of the event that a fault of the kind `same` comes with; None where none can be told."""
    logs = [source for source in declaration.inputs if source.is_log]
    if len({source.name for source in declaration.inputs}) != len(declaration.inputs):
        return None
    if not logs or inputs.rows(declaration) > cost.BLAMED_ROWS:
        return None
    for source in logs:
        search = _Search(inputs, declaration, source, same)
        if not search.fails(lambda rows: rows.where("false")):
            return source.name, search.place()
    return None


@dataclass(frozen=True)
class _Search:
    """The search through the log `source`, with all other inputs as they are."""

    inputs: Inputs
    declaration: Declaration
    source: Input
    same: Callable[[Exception], bool]

    def place(self) -> str:
        """The place of the last event of the shortest prefix that fails."""
        batches = range(1, self.inputs.version(self.source) + 1)
        batch = batches[self._first([_upto_batch(number) for number in batches])]
        places = self.inputs.whole(self.source).where(f"{ORDER}._batch = {batch}").select(f"{ORDER}.*").toArrow()
        rows = sorted(places.to_pylist(), key=lambda row: tuple((value is not None, value) for value in row.values()))
        event = rows[self._first([_upto_event(row) for row in rows])]
        return f"{event['_batch']}:{event['_bucket']}:{event['_offset']}"

    def _first(self, prefixes: Sequence[Prefix]) -> int:
        """Which of growing `prefixes`, the last of which fails, is the first to do so."""
        sound, failing = -1, len(prefixes) - 1
        while failing - sound > 1:
            middle = (sound + failing) // 2
            if self.fails(prefixes[middle]):
                failing = middle
            else:
                sound = middle
        return failing

    def fails(self, prefix: Prefix) -> bool:
        """Whether the table cannot be made of a `prefix` of the log."""
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


def _upto_event(place: dict[str, Any]) -> Prefix:
    """The rows up to the one at a place."""
    kinds = {"_bucket": "int"}
    values = ", ".join(
        f"cast({'null' if value is None else value} as {kinds.get(name, 'bigint')}) as {name}"
        for name, value in place.items()
    )
    return lambda rows: rows.where(f"{ORDER} <= struct({values})")
