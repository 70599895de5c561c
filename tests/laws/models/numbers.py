"""Measures of numbers by Python's fractions, without Spark's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Final

TOO_LARGE: Final = "too large"
INTEGERS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
DECIMAL: Final = 38

Number = Decimal | int


def digits(type_: str) -> tuple[int, int]:
    """Return precision and scale of a decimal type; 0, 0 for integers."""
    if type_ in INTEGERS:
        return 0, 0
    precision, scale = type_.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def extremes(type_: str) -> list[Any]:
    """Return values of `type_` at its ends, next to zero and in the middle, and None."""
    if type_ in INTEGERS:
        end = 2 ** INTEGERS[type_]
        return [None, -end, end - 1, -end + 1, end // 2, -1, 0, 1]
    precision, scale = digits(type_)
    units = [None, 10**precision - 1, 1 - 10**precision, 5 * 10 ** (precision - 1), -1, 0, 1, 10 ** (precision // 2)]
    with localcontext(prec=DECIMAL):
        return [None if unit is None else Decimal(unit).scaleb(-scale) for unit in units]


def total(values: Sequence[Number], type_: str, bigint: bool = True) -> Any:
    """Return the sum, or TOO_LARGE for the sum type; the sum of bigints is a bigint or a decimal."""
    exact = sum(map(Fraction, values), Fraction(0))
    precision, scale = digits(type_)
    if type_ in INTEGERS:
        fits = -(2**63) <= exact < 2**63 if bigint or type_ != "bigint" else abs(exact) < 10**DECIMAL
    else:
        fits = abs(exact) * 10**scale < 10 ** min(precision + 10, DECIMAL)
    return exact if fits else TOO_LARGE


def rounded(number: Fraction, scale: int) -> Any:
    """Return the number rounded to `scale` places, half away from zero; TOO_LARGE for a decimal(38, `scale`)."""
    units = math.floor(abs(number) * 10**scale + Fraction(1, 2))
    return Fraction(units if number >= 0 else -units, 10**scale) if units < 10**DECIMAL else TOO_LARGE


def mean(values: Sequence[Number], type_: str, scale: int) -> Any:
    """Return the mean; TOO_LARGE if it or the sum is."""
    if not values:
        return None
    exact = total(values, type_, bigint=False)
    return exact if exact == TOO_LARGE else rounded(exact / len(values), scale)


def variance(values: Sequence[Number], type_: str, scale: int, population: bool) -> Any:
    """Return the variance; TOO_LARGE if it or the sum is, or if the square of a value exceeds 38 digits."""
    freedom = len(values) - (not population)
    if freedom < 1:
        return None
    places = 2 * digits(type_)[1]
    if any(Fraction(value) ** 2 * 10**places >= 10**DECIMAL for value in values):
        return TOO_LARGE
    exact = total(values, type_, bigint=False)
    if exact == TOO_LARGE:
        return exact
    middle = exact / len(values)
    return rounded(sum(((Fraction(value) - middle) ** 2 for value in values), Fraction(0)) / freedom, scale)
