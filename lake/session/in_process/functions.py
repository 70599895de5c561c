"""Functions of one row of Spark that DuckDB computes alike, as DuckDB's SQL.

Each entry is proved by the tests: both engines give the same values, or DuckDB fails, for all types that it takes,
nulls and extremes. `error(…)` marks values for which they would differ; then Spark evaluates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import lists, operators, patterns, texts, zones
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import BOOLEAN, DOUBLE, EPOCH, INT, LONG, TIMESTAMP, Function, constant, typed
from lake.session.in_process.python_functions import ARROW_FUNCTIONS
from lake.session.in_process.types import (
    INTEGERS,
    MOST,
    NAMES,
    Value,
    cast,
    duckdb_type,
    is_float,
    is_integer,
    once,
    together,
)
from lake.text import literal, quoted


def _struct(values: Sequence[Value], names: Sequence[str]) -> Value:
    fields = ", ".join(f"{quoted(name)} := {value.sql}" for name, value in zip(names, values, strict=True))
    type_ = T.StructType([T.StructField(name, value.type) for name, value in zip(names, values, strict=True)])
    if len({name.lower() for name in names}) < len(names) or not names:
        raise unsupported("a struct with two parts of one name")
    return Value(f"struct_pack({fields})", type_)


def struct(values: Sequence[Value], names: Sequence[str | None]) -> Value:
    """A value without a name is called by its place."""
    return _struct(values, [name or f"col{n}" for n, name in enumerate(names, start=1)])


def _named_struct(values: Sequence[Value]) -> Value:
    return _struct(values[1::2], [constant(value) for value in values[::2]])


def _array(values: Sequence[Value]) -> Value:
    texts, type_ = together(values) if values else ([], T.NullType())
    return Value(f"list_value({', '.join(texts)})" if texts else "CAST([] AS INTEGER[])", T.ArrayType(type_))


def _xxhash64(values: Sequence[Value]) -> Value:
    """Return the hash of the values one after the other, each the seed of the next; a null leaves the seed."""
    hashed = "CAST(42 AS BIGINT)"
    for value in values:
        match value.type:
            case T.ByteType() | T.ShortType() | T.IntegerType() | T.DateType() | T.BooleanType():
                sql = value.sql if not isinstance(value.type, T.DateType) else f"{value.sql} - DATE '1970-01-01'"
                hashed = f"coalesce(spark_hash_int(CAST({sql} AS INTEGER), {hashed}), {hashed})"
            case T.LongType():
                hashed = f"coalesce(spark_hash_long({value.sql}, {hashed}), {hashed})"
            case T.TimestampType():
                hashed = f"coalesce(spark_hash_long(epoch_us({value.sql}), {hashed}), {hashed})"
            case T.StringType():
                hashed = f"coalesce(spark_hash_text({value.sql}, {hashed}), {hashed})"
            case _:
                raise unsupported(f"the hash of a {value.type.simpleString()}")
    return Value(hashed, LONG)


def _in_zone(values: Sequence[Value], direction: str) -> Value:
    at, zone = values
    if not isinstance(at.type, T.DateType | T.TimestampType | T.TimestampNTZType):
        raise unsupported(f"a time zone of a {at.type.simpleString()}")
    at, name = cast(at, TIMESTAMP), constant(zone)
    return at if name == "UTC" else zones.moved(at, name, direction)


def _field(values: Sequence[Value]) -> Value:
    of, name = values
    if isinstance(of.type, T.ArrayType):
        part = _field([Value("part", of.type.elementType), name])
        return Value(f"list_transform({of.sql}, lambda part: {part.sql})", T.ArrayType(part.type))
    if not isinstance(of.type, T.StructType):
        raise unsupported(f"a part of a {of.type.simpleString()}")
    wanted = constant(name)
    found = [f for f in of.type if f.name.lower() == wanted.lower()]
    if len(found) != 1 or found[0].name != wanted:
        raise unsupported(f"the part {wanted}")
    return Value(f"({of.sql}).{quoted(wanted)}", found[0].dataType)


def _ln(values: Sequence[Value]) -> Value:
    [x] = (cast(value, DOUBLE).sql for value in values)
    return Value(once(x, lambda x: f"CASE WHEN {x} > 0 THEN spark_ln({x}) END"), DOUBLE)


def _power(values: Sequence[Value]) -> Value:
    x, y = (cast(value, DOUBLE).sql for value in values)
    return Value(f"spark_power({x}, {y})", DOUBLE)


def _square_root(values: Sequence[Value]) -> Value:
    [x] = (cast(value, DOUBLE).sql for value in values)
    return Value(once(x, lambda x: f"CASE WHEN {x} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({x}) END"), DOUBLE)


def _is_nan(values: Sequence[Value]) -> Value:
    [of] = values
    if not is_float(of.type):
        raise unsupported(f"isnan of a {of.type.simpleString()}")
    return Value(f"coalesce(isnan({of.sql}), false)", BOOLEAN)


def _whole(name: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [of] = values
        if is_integer(of.type):
            return replace(cast(of, LONG), is_literal=False)
        if isinstance(of.type, T.DoubleType):
            return Value(f"CAST({name}({of.sql}) AS BIGINT)", LONG)
        if not isinstance(of.type, T.DecimalType):
            raise unsupported(f"{name} of a {of.type.simpleString()}")
        digits = of.type.precision - of.type.scale + bool(of.type.scale)
        return cast(Value(f"{name}({of.sql})", T.DecimalType(MOST, 0)), T.DecimalType(digits, 0))

    return compute


def _cast_to(type_: T.DataType) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [of] = values
        return replace(cast(of, type_), is_literal=False)

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


TYPES: Final = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("string", "binary", "date", "timestamp"),
)
"""Types whose names Spark also takes as functions; `long` and others are none."""

FUNCTIONS: Final[dict[str, Function]] = {
    **{name: _cast_to(NAMES[name]) for name in TYPES},
    **texts.FUNCTIONS,
    **lists.FUNCTIONS,
    **dict.fromkeys(("rlike", "regexp", "regexp_like"), patterns.matches),
    "regexp_replace": patterns.replaced,
    "regexp_extract": patterns.extracted,
    "regexp_extract_all": patterns.all_extracted,
    "split": patterns.split,
    "==": operators.comparison("="),
    **dict.fromkeys(("<=>", "equal_null"), operators.comparison("IS NOT DISTINCT FROM")),
    "!=": operators.different,
    "<": operators.comparison("<"),
    "<=": operators.comparison("<="),
    ">": operators.comparison(">"),
    ">=": operators.comparison(">="),
    "and": operators.logical("AND"),
    "or": operators.logical("OR"),
    "not": operators.negation,
    "isnull": operators.is_null,
    "isnotnull": operators.is_not_null,
    "in": operators.among,
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), operators.coalesce),
    "nvl2": operators.nvl2,
    "when": operators.when,
    "if": operators.if_else,
    "nullif": operators.nullif,
    "greatest": operators.extreme("greatest", ">="),
    "least": operators.extreme("least", "<="),
    "+": operators.times("+"),
    "-": operators.times("-"),
    "*": operators.arithmetic("*"),
    "/": operators.division("/"),
    **dict.fromkeys(("%", "mod"), operators.division("%")),
    "div": operators.division("//"),
    "pmod": operators.pmod,
    "negative": operators.of_number("(-{0})", *INTEGERS, T.DecimalType, T.FloatType, T.DoubleType),
    "positive": operators.positive,
    "abs": operators.of_number("abs({0})", *INTEGERS, T.DecimalType, T.DoubleType),
    "round": operators.rounded,
    "|": operators.bits("|"),
    "&": operators.bits("&"),
    "^": operators.bits("xor"),
    "~": operators.of_number("(~{0})", *INTEGERS),
    "try_add": operators.attempt(operators.times("+")),
    "try_subtract": operators.attempt(operators.times("-")),
    "try_multiply": operators.attempt(operators.arithmetic("*")),
    **dict.fromkeys(("ln", "log"), _ln),
    **dict.fromkeys(("power", "pow"), _power),
    "sqrt": _square_root,
    "isnan": _is_nan,
    **dict.fromkeys(("sign", "signum"), typed("CAST(sign({0}) AS DOUBLE)", DOUBLE, LONG)),
    "ceil": _whole("ceil"),
    "floor": _whole("floor"),
    "bit_count": typed("CAST(bit_count({0}) AS INTEGER)", INT, LONG),
    "shiftleft": _shift("({0} << {1})"),
    "shiftright": _shift("({0} >> ({1} & 63))"),
    "shiftrightunsigned": _shift_right_unsigned,
    "named_struct": _named_struct,
    "array": _array,
    ".": _field,
    "xxhash64": _xxhash64,
    "from_utc_timestamp": lambda values: _in_zone(values, zones.FROM_UTC),
    "to_utc_timestamp": lambda values: _in_zone(values, zones.TO_UTC),
}


def literal_value(value: object, type_: T.DataType) -> Value:  # noqa: PLR0911 one return a kind
    match type_:
        case T.NullType():
            return Value("NULL", type_, is_literal=True)
        case T.BooleanType():
            return Value(str(value).lower(), type_, is_literal=True)
        case T.StringType():
            return Value(literal(str(value)), type_, is_literal=True)
        case T.IntegerType() | T.DecimalType():
            written = f"CAST('{value:f}' AS {duckdb_type(type_)})" if isinstance(type_, T.DecimalType) else str(value)
            return Value(written, type_, is_literal=True)
        case T.DayTimeIntervalType():
            return Value(f"CAST({value} AS BIGINT)", type_, is_literal=True)
        case T.YearMonthIntervalType():
            return Value(f"CAST({value} AS INTEGER)", type_, is_literal=True)
        case T.DoubleType():
            return Value(f"CAST('{value!r}' AS DOUBLE)", type_, is_literal=True)
        case T.DateType():
            return Value(f"DATE '{value}'", type_, is_literal=True)
        case T.TimestampType() if isinstance(value, datetime):
            micros = (value - EPOCH) // timedelta(microseconds=1)
            return Value(f"make_timestamptz({micros})", type_, is_literal=True)
    if is_integer(type_):
        return Value(f"CAST({value} AS {'BIGINT' if type_ == LONG else 'SMALLINT'})", type_, is_literal=True)
    raise unsupported(f"a constant of type {type_.simpleString()}")


def call(name: str, values: Sequence[Value]) -> Value:
    if called := ARROW_FUNCTIONS.get(name):
        return called.value(values)
    if name not in FUNCTIONS:
        raise unsupported(f"the function {name}")
    try:
        return FUNCTIONS[name](values)
    except (ValueError, IndexError) as error:
        raise unsupported(f"{name} with {len(values)} arguments") from error
