"""Spark's operators, comparisons and orders that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.casts import cast, of_common_type, unless_wide
from lake.session.in_process.mode import unsupported
from lake.session.in_process.signatures import Function, require, whole
from lake.session.in_process.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    DOUBLE_PLACES,
    LONG,
    MAX_DIGITS,
    MICROSECONDS,
    NTZ,
    TIMESTAMP,
    WHOLE_DAYS,
    Value,
    as_decimal,
    common_type,
    duckdb_type,
    is_float,
    is_integer,
    is_number,
    let,
    once,
)
from lake.text import quoted

INTERVALS: Final = (T.DayTimeIntervalType, T.YearMonthIntervalType)
NAMED: Final = re.compile(r'\(?\w+\)?(?:\."(?:[^"]|"")+")*')
"""SQL of a column, of a lambda's variable, or of a part of one."""
UNORDERED: Final = (T.ArrayType, T.MapType, T.NullType)


def sort_keys(value: Value) -> list[str]:
    """Return SQL whose values, in ascending order with nulls first, order `value` as Spark does."""
    if not isinstance(value.type, T.StructType):
        if isinstance(value.type, UNORDERED):
            raise unsupported(f"an order by {value.type.simpleString()}")
        return [value.sql]
    parts = [Value(f"({value.sql}).{quoted(f.name)}", f.dataType) for f in value.type]
    return [f"({value.sql} IS NOT NULL)", *(key for part in parts for key in sort_keys(part))]


def sort_key(value: Value) -> str:
    """Return SQL that DuckDB compares as Spark compares `value`; null for a null.

    Within a struct Spark takes a null as less than any value, DuckDB as greater.
    """
    if not isinstance(value.type, T.StructType):
        return sort_keys(value)[0]
    keys = [f"k{n} := ({key}) IS NOT NULL, v{n} := {key}" for n, key in enumerate(sort_keys(value)[1:])]
    return f"CASE WHEN {value.sql} IS NOT NULL THEN struct_pack({', '.join(keys)}) END"


def equality(template: str) -> Function:
    def compare(values: Sequence[Value]) -> Value:
        left, right = as_comparable(values)
        return Value(template.format(left.sql, right.sql), BOOLEAN)

    return compare


EQUAL: Final = equality("({0} = {1})")


def ordering(sign: str) -> Function:
    def compare(values: Sequence[Value]) -> Value:
        left, right = as_comparable(values)
        return Value(f"({sort_key(left)} {sign} {sort_key(right)})", BOOLEAN)

    return compare


def as_comparable(values: Sequence[Value]) -> list[Value]:
    texts, type_ = of_common_type(values)
    if isinstance(type_, T.MapType | T.NullType):
        raise unsupported(f"a comparison of {type_.simpleString()}")
    return [Value(text, type_) for text in texts]


def logical(sign: str) -> Function:
    def combine(values: Sequence[Value]) -> Value:
        return Value(f"({f' {sign} '.join(boolean(value) for value in values)})", BOOLEAN)

    return combine


def boolean(value: Value) -> str:
    if not isinstance(value.type, T.BooleanType | T.NullType):
        raise unsupported(f"a {value.type.simpleString()} as condition")
    return cast(value, BOOLEAN).sql


def is_in(values: Sequence[Value]) -> Value:
    first, *others = as_comparable(values)
    require(not isinstance(first.type, T.StructType | T.ArrayType))
    if not others:
        return Value("false", BOOLEAN)
    return Value(f"({first.sql} IN ({', '.join(value.sql for value in others)}))", BOOLEAN)


def coalesce(values: Sequence[Value]) -> Value:
    texts, type_ = of_common_type(values)
    return Value(f"coalesce({', '.join(texts)})", type_)


def when(values: Sequence[Value]) -> Value:
    """Arguments are conditions and values in turns, then the value of else, if any."""
    conditions = [boolean(value) for value in values[:-1:2]]
    results = [*values[1::2], *(values[-1:] if len(values) % 2 else [])]
    texts, type_ = of_common_type(results)
    branches = " ".join(f"WHEN {condition} THEN {text}" for condition, text in zip(conditions, texts, strict=False))
    otherwise = f" ELSE {texts[-1]}" if len(values) % 2 else ""
    return Value(f"CASE {branches}{otherwise} END", type_)


def nullif(values: Sequence[Value]) -> Value:
    return Value(f"CASE WHEN {EQUAL(values).sql} THEN NULL ELSE {values[0].sql} END", values[0].type)


def nvl2(values: Sequence[Value]) -> Value:
    of, *others = values
    return when([Value(f"({of.sql} IS NOT NULL)", BOOLEAN), *others])


def extreme(pick: str, sign: str) -> Function:
    def choose(values: Sequence[Value]) -> Value:
        texts, type_ = of_common_type(values)
        if not isinstance(type_, T.StructType):
            sort_keys(Value("", type_))
            return Value(f"{pick}({', '.join(texts)})", type_)
        left, right = (Value(text, type_) for text in texts)
        chosen = f"WHEN {sort_key(left)} {sign} {sort_key(right)} THEN {left.sql} ELSE {right.sql}"
        sql = f"CASE WHEN {left.sql} IS NULL THEN {right.sql} WHEN {right.sql} IS NULL THEN {left.sql} {chosen} END"
        return Value(sql, type_)

    return choose


def operands(values: Sequence[Value]) -> tuple[Value, Value, T.DataType]:
    """Return both operands and their common type, which is a number."""
    left, right = values
    type_ = common_type([left.type, right.type])
    require(is_number(type_))
    return left, right, type_


def arithmetic(sign: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        left, right, type_ = operands(values)
        if not isinstance(type_, T.DecimalType):
            return Value(f"({cast(left, type_).sql} {sign} {cast(right, type_).sql})", type_)
        one, other = decimal_of(left), decimal_of(right)
        if sign == "*":
            precision, scale = one.precision + other.precision + 1, one.scale + other.scale
        else:
            scale = max(one.scale, other.scale)
            precision = max(one.precision - one.scale, other.precision - other.scale) + scale + 1
        exact = bounded(precision, scale)
        require(exact.scale == scale)
        if sign == "*":
            return cast(
                Value(f"({cast(left, one).sql} * {cast(right, other).sql})", T.DecimalType(MAX_DIGITS, scale)), exact
            )
        return Value(f"CAST({cast(left, exact).sql} {sign} {cast(right, exact).sql} AS {duckdb_type(exact)})", exact)

    return compute


def bounded(precision: int, scale: int) -> T.DecimalType:
    """Return a decimal type, of fewer places if digits exceed the limit, but at least six."""
    places = scale if precision <= MAX_DIGITS else max(MAX_DIGITS - (precision - scale), min(scale, 6))
    return T.DecimalType(min(precision, MAX_DIGITS), places)


def decimal_of(value: Value) -> T.DecimalType:
    """Return the decimal type of an operand: an integer literal has the digits that it shows."""
    if value.is_literal and is_integer(value.type):
        return T.DecimalType(len(re.findall(r"\d+", value.sql)[0]), 0)
    return as_decimal(value.type)


def plus_or_minus(sign: str) -> Function:
    """Return a function: the sum or difference of a time and an interval, or else of numbers."""

    def compute(values: Sequence[Value]) -> Value:
        at, by = values if sign == "-" or not isinstance(values[0].type, INTERVALS) else reversed(values)
        if not isinstance(by.type, INTERVALS) or at.type not in {DATE, TIMESTAMP, NTZ}:
            return arithmetic(sign)(values)
        if isinstance(by.type, T.YearMonthIntervalType):
            moved = f"{(at if at.type == DATE else cast(at, NTZ)).sql} {sign} to_months({by.sql})"
            return cast(Value(f"CAST({moved} AS TIMESTAMP)", NTZ), at.type)
        if at.type == DATE and by.type == WHOLE_DAYS:
            return Value(f"{at.sql} {sign} CAST({by.sql} // {MICROSECONDS['day']} AS INTEGER)", DATE)
        instant = cast(at, TIMESTAMP) if at.type == DATE else at
        made = f"make_timestamp{'tz' if instant.type == TIMESTAMP else ''}(epoch_us({instant.sql}) {sign} {by.sql})"
        return Value(made, instant.type)

    return compute


def of_number(template: str, *kinds: type[T.DataType]) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [value] = values
        require(isinstance(value.type, kinds))
        return Value(unless_wide(value, template), value.type)

    return compute


def division(sign: str) -> Function:
    """Return a function: a quotient (`//` as integer), or a remainder with the sign of the dividend."""

    def compute(values: Sequence[Value]) -> Value:
        left, right, type_ = operands(values)
        if sign == "/" and isinstance(type_, T.DecimalType):
            return _decimal_quotient(left, right)
        require(is_integer(type_) or (sign == "/" and is_float(type_)))
        result: T.DataType = DOUBLE if sign == "/" else LONG if sign == "//" else type_
        one, other = cast(left, result).sql, cast(right, result).sql
        safe = f"CASE WHEN {other} = 0 THEN error('a division by zero') ELSE {other} END"
        return Value(f"({one} {sign} {safe})", result)

    return compute


def _decimal_quotient(left: Value, right: Value) -> Value:
    one, other = decimal_of(left), decimal_of(right)
    scale = max(6, one.scale + other.precision + 1)
    return quotient(left, right, bounded(one.precision - one.scale + other.scale + scale, scale))


def quotient(left: Value, right: Value, type_: T.DecimalType) -> Value:
    """Divide decimals as integers, rounded half away from zero."""
    one, other = decimal_of(left), decimal_of(right)
    shift = type_.scale - one.scale + other.scale
    require(max(one.precision + one.scale, one.precision + shift) <= MAX_DIGITS)
    parts = f"struct_pack(n := {_unscaled(left, one)} * {10**shift}, d := {_unscaled(right, other)})"
    up = "CASE WHEN abs(u.n) % abs(u.d) >= abs(u.d) - abs(u.n) % abs(u.d) THEN 1 ELSE 0 END"
    whole = f"CAST(sign(u.n) * sign(u.d) * (abs(u.n) // abs(u.d) + {up}) AS DECIMAL(38, 0))"
    scaled = f"{whole} * CAST('{Decimal(1).scaleb(-type_.scale):f}' AS DECIMAL(38, {type_.scale}))"
    safe = f"CASE WHEN u.d = 0 THEN error('a division by zero') ELSE CAST({scaled} AS {duckdb_type(type_)}) END"
    return Value(let("u", parts, safe), type_)


def _unscaled(value: Value, type_: T.DecimalType) -> str:
    digits = f"CAST({cast(value, type_).sql} AS DECIMAL(38, {type_.scale})) * CAST({10**type_.scale} AS DECIMAL(38, 0))"
    return f"CAST({digits} AS HUGEINT)"


def pmod(values: Sequence[Value]) -> Value:
    _, right, type_ = operands(values)
    rest, by = division("%")(values), cast(right, type_).sql
    return Value(once(rest.sql, lambda r: f"CASE WHEN {r} < 0 THEN ({r} + {by}) % {by} ELSE {r} END"), type_)


def rounded(values: Sequence[Value]) -> Value:
    """Return a number with a constant number of places, half away from zero; a double is rounded by its text."""
    of, *places = values
    if of.type == DOUBLE and not places:
        return Value(once(of.sql, lambda x: f"CASE WHEN round({x}) = 0 THEN 0 ELSE round({x}) END"), DOUBLE)
    scale = whole(places[0]) if places else 0
    require(scale >= 0 and len(places) <= 1)
    if of.type == DOUBLE:
        return Value(once(of.sql, lambda x: _rounded_double(x, scale)), DOUBLE)
    if is_integer(of.type):
        return replace(of, is_literal=False)
    type_ = as_decimal(of.type)
    scale = min(scale, type_.scale)
    precision = type_.precision - type_.scale + 1 + scale
    require(precision <= MAX_DIGITS)
    return cast(of, T.DecimalType(precision, scale))


def _rounded_double(sql: str, scale: int) -> str:
    require(scale <= DOUBLE_PLACES)
    digits = cast(
        cast(Value(sql, DOUBLE), T.DecimalType(MAX_DIGITS, DOUBLE_PLACES)), T.DecimalType(MAX_DIGITS, scale)
    ).sql
    return f"CASE WHEN isnan({sql}) OR isinf({sql}) THEN {sql} ELSE CAST(CAST({digits} AS VARCHAR) AS DOUBLE) END"


def bits(template: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        left, right, type_ = operands(values)
        require(is_integer(type_))
        return Value(template.format(cast(left, type_).sql, cast(right, type_).sql), type_)

    return compute


def null_if_it_fails(function: Function) -> Function:
    """Return a function of integers or times that is null if `function`, and so Spark's, fails."""

    def compute(values: Sequence[Value]) -> Value:
        value, moved = function(values), (T.TimestampType, T.TimestampNTZType, T.DayTimeIntervalType)
        require(all(is_integer(each.type) or isinstance(each.type, moved) for each in (value, *values)))
        if is_integer(value.type):  # of integers Spark catches failures of the operator alone
            require(all(operand.is_literal or NAMED.fullmatch(operand.sql) for operand in values))
        return or_null(value)

    return compute


def or_null(value: Value) -> Value:
    """Return null if the expression fails. Raises ValueError for one with `error(…)`, which Spark may accept."""
    require("error(" not in value.sql)
    return Value(f"TRY({value.sql})", value.type)
