"""Aggregate: measures per key, and per window where one is declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from lake.kinds.kind import AGAIN, SIGN, Kind, names, same
from lake.kinds.measures import ADD, Measure, State
from lake.kinds.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How many rows a group has: a group is there as long as it has one.
ROWS: Final = "_rows"
RETRACTED: Final = "_retracted"


@dataclass(frozen=True, init=False)
class Aggregate(Kind):
    """One row per `key` and window: the key's columns, the window's, and one column a measure."""

    name: ClassVar[str] = "Aggregate"
    version: ClassVar[int] = 1

    by: tuple[str, ...]
    measures: Mapping[str, Measure]
    window: Window | None

    def __init__(
        self, key: str | Sequence[str], measures: Mapping[str, Measure], *, window: Window | None = None
    ) -> None:
        object.__setattr__(self, "by", names(key))
        object.__setattr__(self, "measures", dict(measures))
        object.__setattr__(self, "window", window)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns given, and the window's first: an event touches one group."""
        return (*self.by, *list(self._window_columns())[:1])

    @property
    def identity(self) -> tuple[str, ...]:
        return self.key

    def requires(self, side: int = 0, /) -> dict[str, str]:
        """See Kind.requires."""
        return dict.fromkeys(self.by, "key") | ({self.window.on: "window"} if self.window else {})

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """See Kind.prepare. Rows without a time have no window and no group."""
        from pyspark.sql import functions as F

        if self.window is None:
            return rows
        rows = rows.where(F.col(self.window.on).isNotNull())
        return rows.withColumns({name: F.expr(sql) for name, sql in self._window_columns().items()})

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """See Kind.evaluate."""
        return self._finish(self._fill(rows).drop(RETRACTED))

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """See Kind.absorb. Only a measure that cannot retract makes a group evaluate again, when it lost a row."""
        from pyspark.sql import functions as F

        new = self._fill(changes).alias("b")
        held = old.alias("a")
        state = self._state()
        combined = [
            F.expr(each.combine.format(a=f"a.`{name}`", b=f"b.`{name}`")).cast(new.schema[name].dataType).alias(name)
            for name, each in state.items()
        ]
        again = F.lit(False) if all(m.retracts for m in self.measures.values()) else F.col(f"b.{RETRACTED}")
        groups = [new[name] for name in self._groups()]
        rows = new.join(held, same(new, held, self.identity), "left").select(*groups, *combined, again.alias(AGAIN))
        return self._finish(rows)

    def _fill(self, rows: DataFrame) -> DataFrame:
        """One row per group with the state that `rows` alone give."""
        from pyspark.sql import functions as F

        filled = [F.expr(each.fill).alias(name) for name, each in self._state().items()]
        return rows.groupBy(*self._groups()).agg(*filled, (F.min(SIGN) < 0).alias(RETRACTED))

    def _finish(self, groups: DataFrame) -> DataFrame:
        """Groups that still have rows, with the values that readers see beside the state."""
        from pyspark.sql import functions as F

        values = [F.expr(measure.value(name)).alias(name) for name, measure in self.measures.items()]
        state = [name for name in self._state() if name not in self.measures]
        marks = [AGAIN] if AGAIN in groups.columns else []
        there = groups.where(f"{ROWS} > 0" + (f" or {AGAIN}" if marks else ""))
        return there.select(*self._groups(), *values, *state, *marks)

    def _state(self) -> dict[str, State]:
        state = {ROWS: State("sum(cast(_sign as bigint))", ADD)}
        for name, measure in self.measures.items():
            state |= measure.state(name)
        return state

    def _groups(self) -> tuple[str, ...]:
        return (*self.by, *self._window_columns())

    def _window_columns(self) -> Mapping[str, str]:
        return self.window.columns() if self.window else {}
