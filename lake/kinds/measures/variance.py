"""Variance and standard deviation, from exact sums of integers or decimals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lake.errors import DeclarationError
from lake.kinds.measures.decimals import BASE, WHOLE, cut_off, digits, divided, let, limbs, signed_sum
from lake.kinds.measures.measure import ADD, OfSums, StateColumn, Total
from lake.kinds.sql import rounding
from lake.lazy import DataFrame

# Decimal places that Spark keeps of squares and their sums.
MOST_PLACES: Final = 6


@dataclass(frozen=True)
class Variance(OfSums):
    """Variance of `of`, SQL of integers or decimals, as decimal(38, `scale`), half up.

    Divided by n - 1, null of fewer than two values; with `population` divided by n, null of none. Floats are refused,
    as are values of more than three decimal places. A square must fit 38 digits, as that of any bigint does.
    """

    scale: int = 6
    population: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= MOST_PLACES:
            raise DeclarationError(f"invalid scale {self.scale}", fix=f"use 0 to {MOST_PLACES} decimal places")

    @property
    def revised(self) -> int:
        """1: earlier, the sum of the squares had to fit 38 digits."""
        return 1

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        yield from super().faults(name, rows)
        places = rounding.places(rows, self.of)
        if places is not None and 2 * places > MOST_PLACES:
            yield DeclarationError(
                f"{name} squares {self.of}, which has {places} decimal places, so Spark would round the squares",
                fix="use values of at most 3: cast(… as decimal(18, 3)), or whole units",
            )

    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        exact = f"(({self.value_sql}) * cast(1 as decimal(1, 0)))"
        square = f"try_multiply({exact}, {exact})"
        unknown = f"({self.value_sql}) is not null and {square} is null"
        parts = {
            "squares_high": (cut_off(square), WHOLE),
            "squares": (f"({square} % {BASE})", f"decimal(38, {MOST_PLACES})"),
            "unknown": (f"if({unknown}, 1L, 0L)", "bigint"),
        }
        states = {f"_{name}_{part}": _nonzero(of, kind) for part, (of, kind) in parts.items()}
        return {f"_{name}_sum": Total(self.value_sql), **states, f"_{name}_n": self.value_count}

    def value(self, name: str) -> str:
        return self._of(name, f"try_cast({self._quotient(name, self.scale + 1)} as decimal(38, {self.scale}))")

    def required(self, name: str) -> tuple[str, str, str]:
        return f"`_{name}_n` > {0 if self.population else 1}", name, f"decimal(38,{self.scale})"

    def _of(self, name: str, value: str) -> str:
        return f"if(`_{name}_unknown` is null and {self.required(name)[0]}, {value}, null)"

    def _quotient(self, name: str, places: int) -> str:
        """Return SQL of the text of the variance, cut off after `places` decimal places.

        It is (n * squares - total ^ 2) / (n * (n - 1)), the dividend in units of 10^-6 and by powers of 10^19.
        """
        n = f"cast(`_{name}_n` as {WHOLE})"
        total = f"abs(cast(coalesce(`_{name}_sum`, 0) * 1000BD as {WHOLE}))"
        high = f"coalesce(`_{name}_squares_high`, 0) * 1000000BD"
        low = f"cast(coalesce(`_{name}_squares`, 0) * 1000000BD as {WHOLE})"
        parts = ["n * q[2] - t[1] * t[1]", "n * q[1] - 2BD * t[0] * t[1]", "n * q[0] - t[0] * t[0]"]
        text = let("n", n, let("t", limbs("0BD", total), let("q", limbs(high, low), digits(parts))))
        freedom = f"`_{name}_n`" + ("" if self.population else " - 1")
        return f"concat({divided(divided(text, f'`_{name}_n`', places), freedom, 0)}, 'e-{MOST_PLACES + places}')"


@dataclass(frozen=True)
class Stddev(Variance):
    """Standard deviation of `of`: the square root of its unrounded variance, as decimal(38, `scale`).

    It has the 15 digits of a double, from one fixed sequence of IEEE operations on exact sums.
    """

    @property
    def revised(self) -> int:
        """2: earlier, it was the root of a variance of six decimal places."""
        return 1 + super().revised

    def value(self, name: str) -> str:
        root = f"sqrt(cast({self._quotient(name, 36)} as double))"
        return self._of(name, f"try_cast({root} as decimal(38, {self.scale}))")


def _nonzero(of: str, type_: str) -> StateColumn:
    """Return the sum, null for zero, so that a sum of no rows is always alike."""
    return StateColumn(f"nullif(cast({signed_sum(of)} as {type_}), 0)", f"nullif(cast({ADD} as {type_}), 0)")
