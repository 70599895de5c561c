"""Functions of numbers of Spark that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import DOUBLE, INT, LONG, Function
from lake.session.in_process.texts import typed
from lake.session.in_process.types import MOST, Value, cast, is_integer, once


def _ln(values: Sequence[Value]) -> Value:
    [x] = (cast(value, DOUBLE).sql for value in values)
    return Value(once(x, lambda x: f"CASE WHEN {x} > 0 THEN spark_ln({x}) END"), DOUBLE)


def _power(values: Sequence[Value]) -> Value:
    x, y = (cast(value, DOUBLE).sql for value in values)
    return Value(f"spark_power({x}, {y})", DOUBLE)


def _sign(values: Sequence[Value]) -> Value:
    [of] = values
    if not is_integer(of.type):
        raise unsupported(f"the sign of a {of.type.simpleString()}")
    return Value(f"CAST(sign({of.sql}) AS DOUBLE)", DOUBLE)


def _whole(name: str) -> Function:
    """Return `ceil` or `floor`, a bigint of a double."""

    def compute(values: Sequence[Value]) -> Value:
        [of] = values
        if isinstance(of.type, T.DoubleType):
            return Value(f"CAST({name}({of.sql}) AS BIGINT)", LONG)
        if not isinstance(of.type, T.DecimalType):
            raise unsupported(f"{name} of a {of.type.simpleString()}")
        digits = of.type.precision - of.type.scale + bool(of.type.scale)
        return cast(Value(f"{name}({of.sql})", T.DecimalType(MOST, 0)), T.DecimalType(digits, 0))

    return compute


def _shift(template: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        if values[0].type != LONG:
            raise unsupported("a shift of other values")
        return typed(template, LONG, LONG, INT)(values)

    return compute


def _shift_right_unsigned(values: Sequence[Value]) -> Value:
    of, by = values
    if not by.is_literal or not 0 < int(by.sql) < 64:
        raise unsupported("a shift by other numbers")
    return _shift(f"(({{0}} >> {{1}}) & {(1 << 64 - int(by.sql)) - 1})")([of, by])


FUNCTIONS: Final[dict[str, Function]] = {
    "ln": _ln,
    "power": _power,
    "sign": _sign,
    "ceil": _whole("ceil"),
    "floor": _whole("floor"),
    "bit_count": typed("CAST(bit_count({0}) AS INTEGER)", INT, LONG),
    "shiftleft": _shift("({0} << {1})"),
    "shiftright": _shift("({0} >> ({1} & 63))"),
    "shiftrightunsigned": _shift_right_unsigned,
}
