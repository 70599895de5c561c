"""Exact arithmetic in Spark's decimals, which have at most 38 digits and round what does not fit."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

DIGITS: Final = 38
# Spark keeps so many places of a wide result, however many digits it has before the point.
KEPT: Final = 6
# So many remain of 38 digits beside a multiple of a bigint, which has 19, and what adding and subtracting ask for.
MOST_PLACES: Final = 16

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def quotient(dividend: str, divisor: str, scale: int) -> str:
    """SQL of a decimal divided by a bigint above zero, as decimal(38, `scale`), rounded once, half up; null by zero.

    Spark rounds a quotient to six places or more, which a cast to fewer rounds again. So the remainder that a quotient
    of `scale` places leaves is taken away first, or what is missing to the next made up, and the division is even.
    Of more than 16 places the dividend is rounded to `scale` before it is divided.
    """
    by = f"cast(nullif({divisor}, 0) as decimal(19, 0))"
    unit, half = f"({by} * {_places(1, scale)})", f"({by} * {_places(5, scale + 1)})"
    rest = f"(({dividend}) % {unit})"
    missing = f"if(abs({rest}) < {half}, 0BD, if({rest} < 0, -{unit}, {unit}))"
    even = f"cast((({dividend}) - ({rest} - {missing})) / {by} as decimal(38, {scale}))"
    if scale <= KEPT:
        return even
    direct = f"cast(cast({dividend} as decimal(38, {scale})) / {by} as decimal(38, {scale}))"  # rounds once, to `scale`
    return direct if scale > MOST_PLACES else f"if(({dividend}) % {_places(1, scale)} = 0, {direct}, {even})"


def summed(combine: str, a: str, b: str, type_: str) -> str:
    """SQL of two sums of the SQL type `type_`, `a` and `b`, made one by `combine`, which adds them.

    Spark rounds a + b of decimal(38, 9) to eight places. Numbers that it would so round are added in units of their
    last place, as whole numbers, which it does not round.
    """
    scale = _rounded(type_, additions=1)
    if not scale:
        return combine.format(a=a, b=b)
    return _number(combine.format(a=_units(a, scale), b=_units(b, scale)), scale, type_)


def retracted(combine: str, a: str, b: str, gone: str, type_: str) -> str:
    """As `summed`, less `gone`, a decimal that is not null; all is added before the sum must fit `type_`."""
    scale = _rounded(type_, additions=3)
    if scale:
        a, b, gone = (_units(number, scale) for number in (a, b, gone))
    elif not _DECIMAL.fullmatch(type_):
        a, b = (f"cast({number} as decimal(38, 0))" for number in (a, b))
    left = f"(coalesce({a}, 0BD) + coalesce({b}, 0BD) - {gone})"
    return _number(combine.format(a=left, b="0BD"), scale, type_)


def as_decimal(value: str) -> str:
    """SQL of a number as a decimal, whose sum has more digits than that of integers."""
    return f"coalesce({value}, cast(null as decimal(1, 1)))"


def _rounded(type_: str, *, additions: int) -> int:
    """The decimal places of a type, where so many additions would make Spark round to fewer; else 0."""
    decimal = _DECIMAL.fullmatch(type_)
    precision, scale = map(int, decimal.groups()) if decimal else (0, 0)
    return scale if precision + additions > DIGITS and scale > KEPT else 0


def _units(number: str, scale: int) -> str:
    """SQL of a decimal in units of its last place, as a whole number."""
    return f"cast(concat(cast({number} as string), 'e{scale}') as decimal(38, 0))"


def _number(units: str, scale: int, type_: str) -> str:
    """SQL of so many units of the last of `scale` places, as a number of the SQL type `type_`."""
    return f"cast(concat(cast({units} as string), 'e-{scale}') as {type_})" if scale else f"cast({units} as {type_})"


def _places(number: int, places: int) -> str:
    """SQL of `number` in units of the last of so many decimal places."""
    return f"{Decimal(number).scaleb(-places):f}BD"
