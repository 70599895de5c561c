"""Sessions: runs of events of one key, each less than a gap after the one before."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final

from attrs import frozen

from lake.errors import DeclarationError
from lake.kinds.spark import DataFrame, F
from lake.kinds.spark import Window as Over
from lake.kinds.windows.window import END, START, Window
from lake.kinds.windows.zones import interval

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
    upto = order.rowsBetween(Over.unboundedPreceding, Over.currentRow)
    spans = frame.withColumns({"_from": F.expr(start), "_to": F.expr(end)})
    spans = spans.withColumn("_reach", F.max("_to").over(before))
    opened = F.expr("if(_reach > _from, null, _from)")
    return (
        spans.withColumn("_opened", opened)
        .withColumn(SESSION, F.max("_opened").over(upto))
        .drop("_from", "_to", "_reach", "_opened")
    )
