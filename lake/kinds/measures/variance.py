"""Variance and standard deviation, from exact sums of integers or decimals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from lake.errors import DeclarationError
from lake.kinds.measures.decimals import KEPT, quotient
from lake.kinds.measures.measure import OfValues, State, nonzero_sum
from lake.kinds.sql import rounding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of squares and their sums Spark keeps six places.
MOST_PLACES: Final = KEPT


@dataclass(frozen=True)
class Variance(OfValues):
    """The variance of `of`, SQL of integers or decimals, as decimal(38, `scale`), half up.

    Of a sample, divided by n - 1 and null of fewer than two values; with `population`, divided by n and null of none.
    From exact sums of values and squares, so that rows can be subtracted. Floats are refused when a table is built,
    and values of more than three decimal places, of whose squares Spark keeps six.
    """

    scale: int = 6
    population: bool = field(default=False, kw_only=True)
    retracts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= MOST_PLACES:
            raise DeclarationError(f"invalid scale {self.scale}", fix=f"use 0 to {MOST_PLACES} decimal places")

    @property
    def summed(self) -> str:
        return self.of

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        yield from super().faults(name, rows)
        places = rounding.places(rows, self.of)
        if places is not None and 2 * places > KEPT:
            yield DeclarationError(
                f"{name} squares {self.of}, which has {places} decimal places, so Spark would round the squares",
                fix=f"use values of at most {KEPT // 2}: cast(… as decimal(18, {KEPT // 2})), or whole units",
            )

    def state(self, name: str) -> Mapping[str, State]:
        exact = f"(({self.taken}) * cast(1 as decimal(1, 0)))"
        return {
            f"_{name}_sum": nonzero_sum(exact),
            f"_{name}_squares": nonzero_sum(f"{exact} * {exact}"),
            f"_{name}_n": self.values,
        }

    def value(self, name: str) -> str:
        return quotient(*self._parts(name), self.scale)

    def _parts(self, name: str) -> tuple[str, str]:
        """SQL of the exact dividend and divisor."""
        n, total, squares = f"`_{name}_n`", f"coalesce(`_{name}_sum`, 0)", f"coalesce(`_{name}_squares`, 0)"
        freedom = n if self.population else f"({n} - 1)"
        return f"({n} * {squares} - {total} * {total})", f"{n} * {freedom}"


@dataclass(frozen=True)
class Stddev(Variance):
    """The standard deviation of `of`: the square root of its variance before that is rounded, as decimal(38, `scale`).

    It has the 15 digits of a double, from one fixed sequence of IEEE operations on exact sums.
    """

    @property
    def revised(self) -> int:
        """Once, it was the root of a variance of six decimal places."""
        return 1

    def value(self, name: str) -> str:
        dividend, divisor = self._parts(name)
        variance = f"cast(greatest({dividend}, 0BD) as double) / cast(nullif({divisor}, 0L) as double)"
        return f"cast(sqrt({variance}) as decimal(38, {self.scale}))"
