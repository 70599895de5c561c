"""Functions of one row of Spark that DuckDB computes alike, as DuckDB's SQL.

Each entry is proved by the tests: both engines give the same values, or DuckDB fails, for all types that it takes,
nulls and extremes. `error(…)` marks values for which they would differ; then Spark evaluates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import dates, lists, operators, patterns, texts, zones
from lake.session.in_process.casts import cast, of_common_type
from lake.session.in_process.mode import unsupported
from lake.session.in_process.python_functions import ARROW_FUNCTIONS
from lake.session.in_process.signatures import (
    ANY,
    Function,
    accepted,
    by_count,
    cast_to,
    checked_call,
    constant,
    of_kinds,
    require,
    type_of_first,
    typed,
    whole,
)
from lake.session.in_process.tree import find_named
from lake.session.in_process.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTEGERS,
    LONG,
    MAX_DIGITS,
    NTZ,
    TIMESTAMP,
    TYPE_NAMES,
    Value,
    as_decimal,
    duckdb_type,
    is_integer,
    is_number,
    once,
)
from lake.text import EPOCH, MICROSECOND, literal, quoted


def _struct(values: Sequence[Value], names: Sequence[str]) -> Value:
    fields = ", ".join(f"{quoted(name)} := {value.sql}" for name, value in zip(names, values, strict=True))
    type_ = T.StructType([T.StructField(name, value.type) for name, value in zip(names, values, strict=True)])
    require(bool(names) and len({name.lower() for name in names}) == len(names))
    return Value(f"struct_pack({fields})", type_)


def struct(values: Sequence[Value], names: Sequence[str | None]) -> Value:
    """A value without a name is called by its place."""
    return _struct(values, [name or f"col{n}" for n, name in enumerate(names, start=1)])


def _named_struct(values: Sequence[Value]) -> Value:
    return _struct(values[1::2], [constant(value) for value in values[::2]])


def _array(values: Sequence[Value]) -> Value:
    texts, type_ = of_common_type(values) if values else ([], T.NullType())
    return Value(f"list_value({', '.join(texts)})" if texts else "CAST([] AS INTEGER[])", T.ArrayType(type_))


def _xxhash64(values: Sequence[Value]) -> Value:
    """Return the hash of the values one after the other, each the seed of the next; a null leaves the seed."""
    hashed = "CAST(42 AS BIGINT)"
    for value in values:
        match value.type:
            case T.ByteType() | T.ShortType() | T.IntegerType() | T.BooleanType():
                call = f"spark_hash_int(CAST({value.sql} AS INTEGER)"
            case T.DateType():
                call = f"spark_hash_int(CAST({value.sql} - DATE '1970-01-01' AS INTEGER)"
            case T.LongType():
                call = f"spark_hash_long({value.sql}"
            case T.TimestampType():
                call = f"spark_hash_long(epoch_us({value.sql})"
            case T.StringType():
                call = f"spark_hash_text({value.sql}"
            case _:
                raise unsupported(f"the hash of a {value.type.simpleString()}")
        hashed = once(hashed, partial("coalesce({0}, {1}), {1})".format, call))
    return Value(hashed, LONG)


def _in_zone(values: Sequence[Value], direction: str) -> Value:
    at, zone = values
    require(at.type in {DATE, TIMESTAMP, NTZ})
    at, zone_name = cast(at, TIMESTAMP), constant(zone)
    return at if zone_name == "UTC" else zones.convert(at, zone_name, direction)


def _field(values: Sequence[Value]) -> Value:
    of, name = values
    if isinstance(of.type, T.ArrayType):
        value = _field([Value("part", of.type.elementType), name])
        return Value(f"list_transform({of.sql}, lambda part: {value.sql})", T.ArrayType(value.type))
    if not isinstance(of.type, T.StructType):
        raise ValueError
    part = find_named(of.type, constant(name))
    return Value(f"({of.sql}).{quoted(part.name)}", part.dataType)


def _of_double(template: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [of] = values
        return Value(once(cast(of, DOUBLE).sql, template.format), DOUBLE)

    return compute


def _whole(name: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [of] = values
        if is_integer(of.type):
            return replace(cast(of, LONG), is_literal=False)
        if isinstance(of.type, T.DoubleType):
            return Value(f"CAST({name}({of.sql}) AS BIGINT)", LONG)
        type_ = as_decimal(of.type)
        digits = type_.precision - type_.scale + bool(type_.scale)
        return cast(Value(f"{name}({of.sql})", T.DecimalType(MAX_DIGITS, 0)), T.DecimalType(digits, 0))

    return compute


def _shift_right_unsigned(values: Sequence[Value]) -> Value:
    bits = whole(values[1])
    require(0 < bits < 64)
    return typed(f"(({{0}} >> {{1}}) & {(1 << 64 - bits) - 1})", *SHIFT)(values)


SHIFT: Final = (LONG, accepted(lambda value, _: value.type == LONG), INT)
TYPES: Final = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("string", "binary", "date", "timestamp"),
)
"""Types whose names Spark also takes as functions; `long` and others are none."""

FUNCTIONS: Final[dict[str, Function]] = {
    **{name: typed("{0}", TYPE_NAMES[name], cast_to(TYPE_NAMES[name])) for name in TYPES},
    **texts.FUNCTIONS,
    **dates.FUNCTIONS,
    **lists.FUNCTIONS,
    **dict.fromkeys(("rlike", "regexp", "regexp_like"), patterns.matches),
    "regexp_replace": patterns.replaced,
    "regexp_extract": patterns.extracted,
    "regexp_extract_all": patterns.all_extracted,
    "split": patterns.split,
    "==": operators.EQUAL,
    **dict.fromkeys(("<=>", "equal_null"), operators.equality("({0} IS NOT DISTINCT FROM {1})")),
    "!=": operators.equality("(NOT ({0} = {1}))"),
    "<": operators.ordering("<"),
    "<=": operators.ordering("<="),
    ">": operators.ordering(">"),
    ">=": operators.ordering(">="),
    "and": operators.logical("AND"),
    "or": operators.logical("OR"),
    "not": typed("(NOT {0})", BOOLEAN, lambda value, _: operators.boolean(value)),
    "isnull": typed("({0} IS NULL)", BOOLEAN, ANY),
    "isnotnull": typed("({0} IS NOT NULL)", BOOLEAN, ANY),
    "in": operators.is_in,
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), operators.coalesce),
    "nvl2": operators.nvl2,
    "when": operators.when,
    "if": by_count({3: operators.when}),
    "nullif": operators.nullif,
    "greatest": operators.extreme("greatest", ">="),
    "least": operators.extreme("least", "<="),
    "+": operators.plus_or_minus("+"),
    "-": operators.plus_or_minus("-"),
    "*": operators.arithmetic("*"),
    "/": operators.division("/"),
    **dict.fromkeys(("%", "mod"), operators.division("%")),
    "div": operators.division("//"),
    "pmod": operators.pmod,
    "negative": operators.of_number("(-{0})", *INTEGERS, T.DecimalType, T.FloatType, T.DoubleType),
    "positive": typed("{0}", type_of_first, accepted(lambda value, _: is_number(value.type))),
    "abs": operators.of_number("abs({0})", *INTEGERS, T.DecimalType, T.DoubleType),
    "round": operators.rounded,
    "|": operators.bits("({0} | {1})"),
    "&": operators.bits("({0} & {1})"),
    "^": operators.bits("xor({0}, {1})"),
    "~": operators.of_number("(~{0})", *INTEGERS),
    "try_add": operators.null_if_it_fails(operators.plus_or_minus("+")),
    "try_subtract": operators.null_if_it_fails(operators.plus_or_minus("-")),
    "try_multiply": operators.null_if_it_fails(operators.arithmetic("*")),
    **dict.fromkeys(("ln", "log"), _of_double("CASE WHEN {0} > 0 THEN spark_ln({0}) END")),
    **dict.fromkeys(("power", "pow"), typed("spark_power({0}, {1})", DOUBLE, cast_to(DOUBLE), cast_to(DOUBLE))),
    "sqrt": _of_double("CASE WHEN {0} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({0}) END"),
    "isnan": typed("coalesce(isnan({0}), false)", BOOLEAN, of_kinds(T.FloatType, T.DoubleType)),
    **dict.fromkeys(("sign", "signum"), typed("CAST(sign({0}) AS DOUBLE)", DOUBLE, LONG)),
    "ceil": _whole("ceil"),
    "floor": _whole("floor"),
    "bit_count": typed("CAST(bit_count({0}) AS INTEGER)", INT, LONG),
    "shiftleft": typed("({0} << {1})", *SHIFT),
    "shiftright": typed("({0} >> ({1} & 63))", *SHIFT),
    "shiftrightunsigned": _shift_right_unsigned,
    "named_struct": _named_struct,
    "array": _array,
    ".": _field,
    "xxhash64": _xxhash64,
    "from_utc_timestamp": lambda values: _in_zone(values, zones.FROM_UTC),
    "to_utc_timestamp": lambda values: _in_zone(values, zones.TO_UTC),
}


def literal_value(value: object, type_: T.DataType) -> Value:
    match type_:
        case T.StringType():
            sql = literal(str(value))
        case T.DecimalType():
            sql = f"CAST('{value:f}' AS {duckdb_type(type_)})"
        case T.DoubleType():
            sql = f"CAST('{value!r}' AS DOUBLE)"
        case T.DateType():
            sql = f"DATE '{value}'"
        case T.TimestampType() if isinstance(value, datetime):
            sql = f"make_timestamptz({(value - EPOCH) // MICROSECOND})"
        case T.ByteType() | T.ShortType() | T.LongType() | T.DayTimeIntervalType() | T.YearMonthIntervalType():
            sql = f"CAST({value} AS {duckdb_type(type_)})"
        case T.NullType():
            sql = "NULL"
        case T.BooleanType() | T.IntegerType():
            sql = str(value).lower()
        case _:
            raise unsupported(f"a constant of type {type_.simpleString()}")
    return Value(sql, type_, is_literal=True)


def call(name: str, values: Sequence[Value]) -> Value:
    if function := ARROW_FUNCTIONS.get(name):
        return function.value(values)
    if name not in FUNCTIONS:
        raise unsupported(f"the function {name}")
    return checked_call(name, FUNCTIONS[name], values)
