"""Measures of an Aggregate: how rows add up, how two sums combine, and what a reader sees of them.

A measure keeps *state* columns. Each is filled from signed rows by a SQL aggregate (`fill`), two of them combine by a
SQL expression over `{a}` and `{b}` (`combine`), and the value that readers see is a SQL expression over the state
columns (`value`). Additive state takes retractions; an extreme does not, and its group is evaluated again.
The scheme is that of Beam's combiners: create, add, merge, extract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol


@dataclass(frozen=True)
class State:
    """One state column."""

    fill: str
    combine: str


ADD: Final = "coalesce({a} + {b}, {a}, {b})"


class Measure(Protocol):
    """One column of an Aggregate."""

    retracts: ClassVar[bool]
    """Whether a row that is gone can be subtracted."""

    def state(self, name: str) -> Mapping[str, State]:
        """The state columns behind column `name`; one called `name` is seen by readers."""

    def value(self, name: str) -> str:
        """SQL over the state columns: the value of column `name`."""

    @property
    def summed(self) -> str | None:
        """SQL of what is added up, which must not be a float; None where nothing is."""


@dataclass(frozen=True)
class Count:
    """The number of rows (bigint)."""

    retracts: ClassVar[bool] = True
    summed: ClassVar[None] = None

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state."""
        return {name: State("sum(cast(_sign as bigint))", ADD)}

    def value(self, name: str) -> str:
        """See Measure.value."""
        return f"`{name}`"


@dataclass(frozen=True)
class CountIf:
    """The number of rows for which the SQL `condition` is true (bigint)."""

    condition: str
    retracts: ClassVar[bool] = True
    summed: ClassVar[None] = None

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state."""
        return {name: State(f"sum(cast(if({self.condition}, _sign, 0) as bigint))", ADD)}

    def value(self, name: str) -> str:
        """See Measure.value."""
        return f"`{name}`"


@dataclass(frozen=True)
class Sum:
    """The sum of the SQL expression `of`: bigint of integers, decimal(p + 10, s) of decimals; null of no values.

    Floats are refused: their sum depends on the order of adding.
    """

    of: str
    retracts: ClassVar[bool] = True

    @property
    def summed(self) -> str:
        return self.of

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state. The number of values tells a sum of nothing from a sum of zero."""
        return {name: State(_signed_sum(self.of), ADD), f"_{name}_n": State(_values(self.of), ADD)}

    def value(self, name: str) -> str:
        """See Measure.value."""
        return f"if(`_{name}_n` = 0, null, `{name}`)"


@dataclass(frozen=True)
class Avg:
    """The mean of `of`, SQL of integers or decimals, as decimal(38, `scale`), half up; null of no values."""

    of: str
    scale: int = 6
    retracts: ClassVar[bool] = True

    @property
    def summed(self) -> str:
        return self.of

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state."""
        return {f"_{name}_sum": State(_signed_sum(self.of), ADD), f"_{name}_n": State(_values(self.of), ADD)}

    def value(self, name: str) -> str:
        """See Measure.value."""
        total = f"cast(`_{name}_sum` as decimal(38, {self.scale}))"
        return f"cast({total} / nullif(`_{name}_n`, 0) as decimal(38, {self.scale}))"


@dataclass(frozen=True)
class Min:
    """The least value of the SQL expression `of`; null of no values."""

    of: str
    retracts: ClassVar[bool] = False
    summed: ClassVar[None] = None

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state."""
        return {name: State(f"min(if(_sign > 0, {self.of}, null))", "least({a}, {b})")}

    def value(self, name: str) -> str:
        """See Measure.value."""
        return f"`{name}`"


@dataclass(frozen=True)
class Max:
    """The greatest value of the SQL expression `of`; null of no values."""

    of: str
    retracts: ClassVar[bool] = False
    summed: ClassVar[None] = None

    def state(self, name: str) -> Mapping[str, State]:
        """See Measure.state."""
        return {name: State(f"max(if(_sign > 0, {self.of}, null))", "greatest({a}, {b})")}

    def value(self, name: str) -> str:
        """See Measure.value."""
        return f"`{name}`"


def _signed_sum(of: str) -> str:
    return f"sum(if(_sign > 0, {of}, -({of})))"


def _values(of: str) -> str:
    return f"sum(if(({of}) is null, 0L, cast(_sign as bigint)))"
