"""Casts that DuckDB does as Spark does in ANSI mode, as DuckDB's SQL; see `types`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.types import (
    DOUBLE_PLACES,
    EMPTY_ARRAY,
    INTEGERS,
    MAX_DIGITS,
    MICROSECONDS,
    ROUNDED_DIGITS,
    Value,
    common_type,
    duckdb_type,
    is_integer,
    once,
)
from lake.text import quoted

TEXT_OF_DOUBLE: Final = """CASE
    WHEN {0} = 0 OR abs({0}) >= 1e-3 AND abs({0}) < 1e7 THEN CAST({0} AS VARCHAR)
    WHEN isnan({0}) THEN 'NaN'
    WHEN isinf({0}) THEN if({0} > 0, 'Infinity', '-Infinity')
    WHEN abs({0}) >= 9007199254740992 OR abs({0}) < 1e-300 OR abs({0}) < 1e-3 AND log2(abs({0})) = round(log2(abs({0})))
        THEN error('a double of another text in some Java')
    WHEN {0} IS NOT NULL THEN if({0} < 0, '-', '') || replace(regexp_replace(
        trim(replace(split_part(CAST(abs({0}) AS VARCHAR), 'e', 1), '.', ''), '0'), '^(.)(.*)$', '\\1.\\2E'
    ) || CASE
        WHEN abs({0}) >= 1e7 THEN strpos(CAST(abs({0}) AS VARCHAR), '.') - 2
        WHEN abs({0}) >= 1e-4 THEN -4
        ELSE TRY_CAST(split_part(CAST({0} AS VARCHAR), 'e', 2) AS INTEGER)
    END, '.E', '.0E')
END"""
"""Text of a double as every Java writes it. Before version 19 it wrote needless digits of some numbers from 2^53 on,
of some small powers of two, and of some subnormal numbers.
"""
DIGITS_OF_DOUBLE: Final = f"""CASE
    WHEN abs({{0}}) >= 1e-3 AND abs({{0}}) < 1e15 OR {{0}} = 0
        THEN CAST(CAST({{0}} AS VARCHAR) AS DECIMAL({MAX_DIGITS}, {DOUBLE_PLACES}))
    WHEN {{0}} IS NOT NULL THEN error('a double of other digits')
END"""
FROM_TEXT: Final[dict[type[T.DataType], str]] = {
    **dict.fromkeys(INTEGERS, "-?[0-9]{1,19}"),
    T.DecimalType: r"-?[0-9]{1,38}(\.[0-9]{1,38})?",
    T.DoubleType: r"-?[0-9]{1,17}(\.[0-9]{1,17})?",
    T.DateType: "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    T.TimestampType: r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]([01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?",
}
"""Texts that both engines read as the same value; a year 0000 is read by neither."""
NO_NUMBER: Final = r"|[^\p{Nd}]*[A-Za-z][^\p{Nd}]*"
"""Texts that neither engine reads as an integer or a decimal."""


def cast(value: Value, type_: T.DataType) -> Value:
    """Cast as Spark does with ANSI mode; the query fails if Spark's would, and in some cases if it would not."""
    if value.type == type_:
        return value
    if isinstance(value.type, T.NullType):
        return Value(f"CAST({value.sql} AS {duckdb_type(type_)})", type_)
    return Value(_cast_sql(value, type_), type_)


PLAIN_CASTS: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    **dict.fromkeys(INTEGERS, (*INTEGERS, T.BooleanType)),
    T.DecimalType: (*INTEGERS, T.DecimalType),
    T.FloatType: (*INTEGERS, T.DoubleType),
    T.BooleanType: INTEGERS,
    T.DoubleType: (*INTEGERS, T.FloatType),
    T.StringType: (*INTEGERS, T.BooleanType),
    T.DateType: (T.TimestampNTZType,),
    T.TimestampNTZType: (T.DateType,),
}
"""{type: types whose values DuckDB casts to it as Spark does}."""
FROM_KNOWN_TEXT: Final = (
    "CASE WHEN {0} IS NULL THEN NULL WHEN regexp_full_match({0}, '{2}') THEN CAST({0} AS {1}) ELSE error('a text') END"
)
TEXT_OF_DAY: Final = (
    "CASE WHEN year({0}) BETWEEN 1 AND 9999 THEN CAST({0} AS VARCHAR)"
    " WHEN {0} IS NULL THEN NULL ELSE error('a year') END"
)
CLOCK: Final = "({0} AT TIME ZONE 'UTC')"
"""Wall clock in UTC of an instant, or the instant of a wall clock."""


def units_before(micros: int) -> str:
    """Return a template: the whole units, each of `micros` microseconds, before a time."""
    return f"((epoch_us({{0}}) - (epoch_us({{0}}) % {micros} + {micros}) % {micros}) // {micros})"


CASTS: Final[dict[tuple[type[T.DataType], type[T.DataType]], str]] = {
    **{(of, to): "CAST({0} AS {1})" for to, kinds in PLAIN_CASTS.items() for of in kinds},
    **{(of, to): "CAST(trunc({0}) AS {1})" for of in (T.FloatType, T.DoubleType) for to in INTEGERS},
    **{(of, T.TimestampType): "make_timestamptz(CAST({0} AS BIGINT) * 1000000)" for of in INTEGERS},
    **{(T.StringType, to): FROM_KNOWN_TEXT for to in FROM_TEXT},
    (T.StringType, T.BinaryType): "encode({0})",
    (T.DecimalType, T.DoubleType): "CAST(CAST({0} AS VARCHAR) AS DOUBLE)",  # by text: a direct cast rounds twice
    (T.DateType, T.TimestampType): CLOCK.format("CAST({0} AS TIMESTAMP)"),
    (T.TimestampNTZType, T.TimestampType): CLOCK,
    (T.TimestampType, T.TimestampNTZType): CLOCK,
    (T.TimestampType, T.DateType): f"CAST({CLOCK} AS DATE)",
    (T.TimestampType, T.LongType): units_before(MICROSECONDS["second"]),
    (T.DateType, T.StringType): TEXT_OF_DAY,
    (T.TimestampNTZType, T.StringType): TEXT_OF_DAY,
    (T.TimestampType, T.StringType): TEXT_OF_DAY.replace("{0}", CLOCK),
}
"""{(type, type it is cast to): template of the value, DuckDB's name of that type, and texts that are known}."""


def _cast_sql(value: Value, type_: T.DataType) -> str:  # noqa: PLR0911 one return a kind
    sql, of, to = value.sql, value.type, duckdb_type(type_)
    if template := CASTS.get((type(of), type(type_))):
        return template.format(sql, to, FROM_TEXT.get(type(type_)))
    match of, type_:
        case T.DoubleType(), T.StringType():
            return once(sql, TEXT_OF_DOUBLE.format)
        case T.DecimalType(), T.StringType():
            text = f"CAST({sql} AS VARCHAR)"
            return f"replace({text}, '.', '0.')" if of.precision == of.scale else text  # of DuckDB .5, of Spark 0.5
        case T.DoubleType(), T.DecimalType() if type_.scale <= DOUBLE_PLACES:  # Spark rounds its text
            exact = Value(once(sql, DIGITS_OF_DOUBLE.format), T.DecimalType(MAX_DIGITS, DOUBLE_PLACES))
            return exact.sql if type_.scale == DOUBLE_PLACES else _cast_sql(exact, type_)
        case T.DecimalType(), _ if is_integer(type_):
            return _whole_sql(value, f"CAST(trunc({{0}}) AS {to})")
        case T.ArrayType(), T.ArrayType():
            item = Value("NULL" if of == EMPTY_ARRAY else "item", of.elementType)
            return f"list_transform({sql}, lambda item: {cast(item, type_.elementType).sql})"
        case T.StructType(), T.StructType() if len(of) == len(type_):
            parts = [Value(f"({sql}).{quoted(field.name)}", field.dataType) for field in of]
            pairs = zip(type_, parts, strict=True)
            fields = ", ".join(f"{quoted(field.name)} := {cast(part, field.dataType).sql}" for field, part in pairs)
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({fields}) END"
    raise unsupported(f"a cast of {of.simpleString()} as {type_.simpleString()}")


def _whole_sql(value: Value, form: str) -> str:
    """Return the SQL of `form` of a decimal; of a whole one Spark casts every digit."""
    is_whole = isinstance(value.type, T.DecimalType) and not value.type.scale
    return form.format(value.sql) if is_whole else unless_wide(value, form)


def unless_wide(value: Value, form: str) -> str:
    """Return the SQL of `form` of a number; it fails for a decimal of more than ROUNDED_DIGITS digits."""
    type_ = value.type
    if not isinstance(type_, T.DecimalType) or type_.precision <= ROUNDED_DIGITS:
        return form.format(value.sql)
    limit = f"CAST('{Decimal(1).scaleb(ROUNDED_DIGITS - type_.scale):f}' AS {duckdb_type(type_)})"
    is_wide = f"{{0}} >= {limit} OR {{0}} <= -{limit}"
    return once(value.sql, f"CASE WHEN {is_wide} THEN error('many digits') ELSE {form} END".format)


def try_cast(value: Value, type_: T.DataType) -> Value:
    """Cast integers, decimals and texts; the result is null if the value does not fit."""
    exact = (*INTEGERS, T.DecimalType)
    if isinstance(value.type, T.StringType) and isinstance(type_, exact):
        known = f"WHEN regexp_full_match({value.sql}, '{FROM_TEXT[type(type_)]}') THEN TRY_CAST({value.sql} AS"
        never = f"WHEN regexp_full_match({value.sql}, '{NO_NUMBER}') THEN NULL"
        unknown = f"WHEN {value.sql} IS NOT NULL THEN error('a text')"
        return Value(f"CASE {known} {duckdb_type(type_)}) {never} {unknown} END", type_)
    if not isinstance(value.type, exact) or not isinstance(type_, exact):
        raise unsupported(f"try_cast of {value.type.simpleString()} as {type_.simpleString()}")
    if is_integer(type_) and isinstance(value.type, T.DecimalType):
        return Value(_whole_sql(value, f"TRY_CAST(trunc({{0}}) AS {duckdb_type(type_)})"), type_)
    return Value(f"TRY_CAST({value.sql} AS {duckdb_type(type_)})", type_)


def of_common_type(values: Sequence[Value]) -> tuple[list[str], T.DataType]:
    type_ = common_type([value.type for value in values])
    return [cast(value, type_).sql for value in values], type_
