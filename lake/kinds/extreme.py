"""Latest and First: of each key's rows the one at the end, or the start, of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lake.kinds.kind import AGAIN, ORDER, SIGN, Kind, names, visible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, init=False)
class Extreme(Kind):
    """One row per `key`: the row at one end of the total order (`sequence`, log order)."""

    name: ClassVar[str]
    newest: ClassVar[bool]
    version: ClassVar[int] = 1

    key: tuple[str, ...]
    sequence: tuple[str, ...]

    def __init__(self, key: str | Sequence[str], *, sequence: str | Sequence[str] = ()) -> None:
        object.__setattr__(self, "key", names(key))
        object.__setattr__(self, "sequence", names(sequence))

    @property
    def identity(self) -> tuple[str, ...]:
        return self.key

    def requires(self, side: int = 0, /) -> dict[str, str]:
        """See Kind.requires."""
        return dict.fromkeys(self.sequence, "sequence") | dict.fromkeys(self.key, "key")

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """See Kind.evaluate. State: the winner's place in the order."""
        return self._winners(rows.select(*visible(rows.columns), ORDER))

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """See Kind.absorb. A key that lost a row is evaluated again: the row may have been its winner."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        columns = [*visible(changes.columns), ORDER]
        rows = old.select(*columns, F.lit(1).alias(SIGN)).unionByName(changes.select(*columns, SIGN))
        lost = F.min(SIGN).over(Window.partitionBy(*self.key)) < 0
        return self._winners(rows.withColumn(AGAIN, lost)).drop(SIGN)

    def _winners(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        window = Window.partitionBy(*self.key).orderBy(*self._order())
        return rows.withColumn("_rank", F.row_number().over(window)).where("_rank = 1").drop("_rank")

    def _order(self) -> list[Column]:
        """Winner first. A null in the sequence is older than any value."""
        from pyspark.sql import functions as F

        columns = (*self.sequence, ORDER)
        return [F.desc_nulls_last(c) if self.newest else F.asc_nulls_first(c) for c in columns]


class Latest(Extreme):
    """One row per `key`: its newest row by `sequence`, ties by log order; compaction as a table.

    `sequence` names columns of the function's result, most significant first; without one, log order decides.
    """

    name: ClassVar[str] = "Latest"
    newest: ClassVar[bool] = True


class First(Extreme):
    """One row per `key`: its oldest row by `sequence`, ties by log order.

    Without a sequence the first event in the log wins, and no later event ever revokes it.
    """

    name: ClassVar[str] = "First"
    newest: ClassVar[bool] = False
