"""Measures with a number for each value or class of values: exact and approximate distinct counts, quantiles.

Their state is the same for any slicing and order of the input: counts that add and subtract, or maxima.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar, Final

from lake.errors import DeclarationError
from lake.kinds.measures.measure import ADD, COUNTED, GREATEST, OfValues, StateColumn

# Quantile: the classes of doubles have numbers within -MIDDLE to MIDDLE at the least error.
LEAST_ERROR: Final = 0.0001
MIDDLE: Final = 1 << 30


@dataclass(frozen=True)
class CountDistinct(OfValues):
    """Exact number of different values of `of` (bigint); the state holds each value with its count."""

    retracts: ClassVar[bool] = True

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {f"_{name}_values": StateColumn(COUNTED, ADD, per=self.value_sql)}

    def value(self, name: str) -> str:
        return f"cast(size(`_{name}_values`) as bigint)"


@dataclass(frozen=True)
class ApproxDistinct(OfValues):
    """Estimate of the number of different values of `of` (bigint): HyperLogLog, 2 ** `precision` registers, 4 to 16.

    The relative standard error is 1.04 / sqrt(2 ** precision): 1.6 % at 12. Registers are maxima, so the result does
    not depend on order or slicing. They cannot forget a value: a group that loses a row is evaluated again.
    Source: Flajolet, Fusy, Gandouet, Meunier 2007; the estimator, which needs no correction for small numbers, is
    Ertl, New cardinality estimation algorithms for HyperLogLog sketches, 2017.
    """

    precision: int = 12
    retracts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 4 <= self.precision <= 16:
            raise DeclarationError(f"invalid precision {self.precision}", fix="use 4 to 16 bits of registers")

    def state(self, name: str) -> Mapping[str, StateColumn]:
        bits = 64 - self.precision
        register = f"cast(xxhash64({self.value_sql}) & {2**self.precision - 1}L as int)"
        rest = f"shiftrightunsigned(xxhash64({self.value_sql}), {self.precision})"
        rank = f"least(bit_count(({rest} & -{rest}) - 1L), {bits}) + 1"  # trailing zeros, plus one
        hit = f"if(({self.value_sql}) is null, null, {register})"
        return {f"_{name}_registers": StateColumn(f"max(if(_sign > 0, {rank}, null))", GREATEST, per=hit)}

    def value(self, name: str) -> str:
        registers, number, most = f"`_{name}_registers`", 2**self.precision, 64 - self.precision + 1
        weight = f"cast(shiftleft(1L, {most} - r.value) as decimal(20, 0))"
        harmonic = f"aggregate({registers}, cast(0 as decimal(38, 0)), (s, r) -> cast(s + {weight} as decimal(38, 0)))"
        empty = f"(1d - size({registers}) / {float(number)}d)"
        sigma = (
            f"aggregate(sequence(1, {self.precision + 7}), named_struct('x', {empty}, 'y', 1d, 'z', {empty}),"
            " (s, k) -> named_struct('x', s.x * s.x, 'y', s.y * 2d, 'z', s.z + s.x * s.x * s.y), s -> s.z)"
        )
        mean = f"(cast({harmonic} as double) / {float(2**most)}d + {float(number)}d * {sigma})"
        estimate = f"{number**2 / (2 * math.log(2))!r}d / {mean}"
        return f"if(size({registers}) = 0, 0L, cast(round({estimate}) as bigint))"


@dataclass(frozen=True)
class Quantile(OfValues):
    """Quantiles `q` (0 to 1) of the numbers `of`, each within a relative `error` of the value of that rank.

    A double for one `q`, an array of doubles for several; null of no values. The rank is floor(q * (n - 1)), from 0.
    Values are counted by powers of (1 + error) / (1 - error), separately by sign, so counts add and subtract. NaN and
    infinities do not count. Source: Masson, Rim, Lee, DDSketch, 2019.
    """

    q: float | Sequence[float] = 0.5
    error: float = field(default=0.01, kw_only=True)
    retracts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wrong = [q for q in self._quantiles if not 0 <= q <= 1]
        if wrong or not self._quantiles:
            raise DeclarationError(f"invalid quantile {wrong or self.q}", fix="use numbers from 0 to 1")
        if not LEAST_ERROR <= self.error <= 0.5:
            raise DeclarationError(f"invalid relative error {self.error}", fix=f"use {LEAST_ERROR} to 0.5")
        if not isinstance(self.q, int | float):
            object.__setattr__(self, "q", tuple(self.q))

    def state(self, name: str) -> Mapping[str, StateColumn]:
        """A key is 0 for zero; MIDDLE more than a positive value's class; else minus such a key."""
        value = f"cast({self.value_sql} as double)"
        number = f"cast(ceil(ln(abs({value})) / {math.log(self._base)!r}d) as int) + {MIDDLE}"
        key = (
            f"case when {value} = 0d then 0 when abs({value}) <= {sys.float_info.max!r}d"
            f" then if({value} > 0d, {number}, -({number})) end"
        )
        return {f"_{name}_histogram": StateColumn(COUNTED, ADD, per=key)}

    def value(self, name: str) -> str:
        estimates = [self._estimate(f"`_{name}_histogram`", q) for q in self._quantiles]
        if isinstance(self.q, int | float):
            return estimates[0]
        return f"if(size(`_{name}_histogram`) = 0, null, array({', '.join(estimates)}))"

    @property
    def _quantiles(self) -> tuple[float, ...]:
        return (self.q,) if isinstance(self.q, int | float) else tuple(self.q)

    @property
    def _base(self) -> float:
        return (1 + self.error) / (1 - self.error)

    def _estimate(self, histogram: str, q: float) -> str:
        """Return SQL of the middle of the class that holds the value of rank floor(q * (n - 1))."""
        number = f"aggregate({histogram}, 0L, (n, e) -> n + e.value)"
        rank = f"cast(floor({Decimal(str(q)):f}BD * ({number} - 1)) as bigint)"
        step = (
            "(s, e) -> named_struct('left', s.left - e.value,"
            " 'key', if(s.key is null and s.left < e.value, e.key, s.key))"
        )
        start = f"named_struct('left', {rank}, 'key', cast(null as int))"
        middle = f"{1 + self.error!r}d * power({self._base!r}d, abs(s.key) - {MIDDLE + 1})"
        middle = f"least(greatest({middle}, {math.ulp(0.0)!r}d), {sys.float_info.max!r}d)"
        return f"aggregate({histogram}, {start}, {step}, s -> if(s.key = 0, 0d, sign(s.key) * {middle}))"
