"""Windows placed by events: sessions of a key, and for each event the events up to a time before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final

from attrs import field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import names
from lake.kinds.windows.window import END, START, Window
from lake.kinds.windows.zones import interval, micros
from lake.lazy import DataFrame, F
from lake.lazy import Window as Over

# Start of a gathered row's session; its own columns may have the names of a window's.
SESSION: Final = "_session_start"


@frozen(kw_only=True)
class Session(Window):
    """Run of events, each less than `gap` after the one before: columns `window_start` and `window_end`.

    `window_end` is the last event's time plus `gap`, exclusive, as in Flink and Spark. Both have the type of `on`, but
    a session of dates ends at a timestamp.
    """

    gap: timedelta

    names: ClassVar[tuple[str, ...]] = (START, END)
    key: ClassVar[tuple[str, ...]] = ()
    identity: ClassVar[tuple[str, ...]] = (START,)
    sources: ClassVar[dict[str, str]] = {START: SESSION}
    merges: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        if self.gap <= timedelta(0):
            raise DeclarationError(f"invalid gap {self.gap}", fix="use a gap above zero")

    @property
    def ends(self) -> str:
        return f"max(`{self.on}`) + {interval(self.gap)}"

    def gather(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        return with_sessions(rows, by, f"`{self.on}`", f"`{self.on}` + {interval(self.gap)}")


def with_sessions(frame: DataFrame, by: Sequence[str], start: str, end: str) -> DataFrame:
    """Add SESSION to `frame`: the start of the union of overlapping spans [start, end) with a row's own.

    `start` and `end` are SQL over the frame. Spans that only touch stay separate.
    """
    order = Over.partitionBy(*by).orderBy("_from")
    before = order.rowsBetween(Over.unboundedPreceding, -1)
    spans = frame.withColumns({"_from": F.expr(start), "_to": F.expr(end)})
    spans = spans.withColumn("_reach", F.max("_to").over(before))
    opened = F.expr("if(_reach > _from, null, _from)")
    return (
        spans.withColumn("_opened", opened)
        # Without rowsBetween, of spans with one start all are included: any of them may have opened the session.
        .withColumn(SESSION, F.max("_opened").over(order))
        .drop("_from", "_to", "_reach", "_opened")
    )


@frozen(kw_only=True)
class Sliding(Window):
    """One row per event: measures over the look-back (t - length, t] of its time t, itself included.

    `id` identifies an event; events of the same time see each other. The row's columns are the key, `id`, and `on`. A
    new event changes the rows of those that follow it, so keys are evaluated again.
    """

    length: timedelta
    id: tuple[str, ...] = field(converter=names)

    absorbs: ClassVar[bool] = False
    closed: ClassVar[bool] = True
    key: ClassVar[tuple[str, ...]] = ()

    def __attrs_post_init__(self) -> None:
        if self.length <= timedelta(0):
            raise DeclarationError(f"invalid length {self.length}", fix="use a length above zero")
        if not self.id or self.on in self.id:
            raise DeclarationError("a sliding window needs the columns that identify an event", fix="id='order_id'")

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.id, self.on)

    @property
    def identity(self) -> tuple[str, ...]:
        return self.names

    @property
    def requires(self) -> dict[str, str]:
        return dict.fromkeys(self.id, "id of a sliding window") | {self.on: "window"}

    @property
    def sources(self) -> dict[str, str]:
        return {name: f"_of_{name}" for name in self.names}

    @property
    def end(self) -> str:
        return f"`{self.on}`"

    def gather(self, rows: DataFrame, by: Sequence[str]) -> DataFrame:
        length = micros(self.length)
        columns = {name: f"_of_{name}" for name in (*by, *self.names)}
        events = rows.select(*[F.col(name).alias(alias) for name, alias in columns.items()]).distinct()
        own, at = (f"unix_micros(cast(`{of}{self.on}` as timestamp))" for of in ("", "_of_"))
        spans = f"array({_span(at, length)}, {_span(at, length)} - {length})"
        events = events.withColumn("_of", F.explode(F.expr(spans)))
        seen = rows.withColumn("_span", F.expr(_span(own, length)))
        back = f"`{self.on}` <= `_of_{self.on}` and {own} > {at} - {length}"
        meet = " and ".join(["_span = _of", *[f"`{name}` <=> `_of_{name}`" for name in by], back])
        return seen.join(events, F.expr(meet)).drop("_of", "_span", *[f"_of_{name}" for name in by])


def _span(at: str, length: str) -> str:
    return f"({at} - pmod({at}, {length}))"
