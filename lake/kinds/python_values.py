"""Normal form of Python values: a value from a Python function equals the same value read back from a table.

Decimals have the zeros of their scale, arrays are lists, times are in UTC, and -0.0 is 0.0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, Inexact, localcontext
from functools import partial
from typing import Any, Final

import pyarrow as pa

Normal = Callable[[Any], Any]

DIGITS: Final = 1000
"""Precision of decimals in Python steps; the sum of any two values of columns has 77, the product of ten 380."""

SHOWN_DIGITS: Final = 40

many_digits: Final = partial(localcontext, prec=DIGITS)
"""Context in which this thread calculates decimals with DIGITS."""


def normal(kind: pa.DataType) -> Normal:
    """Return a function that gives a value its normal form as `kind`; null stays.

    It raises TypeError or ValueError if the value is not of that type, or would lose something.
    """
    convert = _normal(kind)

    def apply(value: Any) -> Any:
        return None if value is None else convert(value)

    return apply


def _normal(kind: pa.DataType) -> Normal:  # noqa: PLR0911 one type after the other
    if pa.types.is_list(kind):
        element = normal(kind.value_type)
        return lambda value: [element(item) for item in _instance_of(value, list, tuple)]
    if pa.types.is_struct(kind):
        parts = {field.name: normal(field.type) for field in kind}
        return lambda value: _record(value, parts)
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        return lambda value: _whole(value, limit)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if pa.types.is_float32(kind):
        return _single
    if pa.types.is_floating(kind):
        return _double
    if pa.types.is_timestamp(kind):
        return partial(_moment, is_aware=bool(kind.tz))
    types = {pa.types.is_boolean: bool, pa.types.is_string: str, pa.types.is_binary: bytes, pa.types.is_date: date}
    wanted = next((python for is_kind, python in types.items() if is_kind(kind)), None)
    return lambda value: _exactly(value, wanted)


def _instance_of(value: Any, *types: type) -> Any:
    if not isinstance(value, types) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {types[0].__name__}")
    return value


def _exactly(value: Any, wanted: type | None) -> Any:
    if wanted is not None and type(value) is not wanted:
        raise TypeError(f"{value!r} is not of type {wanted.__name__}")
    return value


def _whole(value: Any, limit: int) -> int:
    whole: int = _instance_of(value, int)
    if not -limit <= whole < limit:
        raise ValueError(f"{whole} is too large")
    return whole


def _single(value: Any) -> float:
    try:
        [number] = struct.unpack("<f", struct.pack("<f", _instance_of(value, float, int)))
    except (OverflowError, struct.error):
        raise ValueError(f"{value} does not fit a float: it is too large") from None
    return float(number) + 0.0  # one zero


def _double(value: Any) -> float:
    try:
        number = float(_instance_of(value, float, int))
    except OverflowError:
        raise ValueError(f"{value} does not fit a double: it is too large") from None
    if isinstance(value, int) and number != value:
        raise ValueError(f"{value} does not fit a double: it has too many digits")
    return number + 0.0  # one zero


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    number = Decimal(_instance_of(value, Decimal, int))
    with localcontext(prec=precision) as context:
        context.traps[Inexact] = True
        try:
            if number.is_finite():
                return number.quantize(Decimal(1).scaleb(-scale))
        except ArithmeticError:
            pass
    shown = f"{number:.{SHOWN_DIGITS}g} …" if len(number.as_tuple().digits) > SHOWN_DIGITS else number
    raise ValueError(
        f"{shown} does not fit decimal({precision}, {scale}): round it, for example value.quantize(Decimal('0.01'))"
    )


def too_long(value: Any, kind: pa.DataType) -> Any:
    """Return a number in `value` that a column of type `kind` would round or not hold, if any."""
    if isinstance(value, Mapping) and pa.types.is_struct(kind):
        parts = (too_long(value[field.name], field.type) for field in kind if field.name in value)
        return next((part for part in parts if part is not None), None)
    if isinstance(value, list | tuple) and pa.types.is_list(kind):
        parts = (too_long(item, kind.value_type) for item in value)
        return next((part for part in parts if part is not None), None)
    numeric = pa.types.is_decimal(kind) or pa.types.is_integer(kind)
    if not numeric or not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        return None
    try:
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        _normal(kind)(int(exact) if pa.types.is_integer(kind) and exact == exact.to_integral_value() else exact)
    except (ValueError, TypeError, ArithmeticError):
        return value
    return None


def _record(value: Any, parts: Mapping[str, Normal]) -> dict[str, Any]:
    record: dict[str, Any] = _instance_of(value, dict)
    if record.keys() != parts.keys():
        raise ValueError(f"found fields {', '.join(map(str, record))}, not {', '.join(parts)}")
    return {name: part(record[name]) for name, part in parts.items()}


def _moment(value: Any, *, is_aware: bool) -> datetime:
    at: datetime = _instance_of(value, datetime)
    if (at.tzinfo is not None) is not is_aware:
        raise ValueError(f"{at} has {'no' if is_aware else 'a'} time zone")
    return at.astimezone(UTC) if is_aware else at
