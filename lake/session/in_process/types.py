"""Values: SQL of DuckDB with its Spark type. Spark's types: names, DuckDB's types for them, common types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from lake.session.in_process.mode import unsupported
from lake.text import field_type, quoted, split_fields, type_parts


@dataclass(frozen=True)
class Value:
    """SQL of DuckDB for an expression whose type in Spark is `type`."""

    sql: str
    type: T.DataType
    is_literal: bool = False


BOOLEAN: Final = T.BooleanType()
INT: Final = T.IntegerType()
LONG: Final = T.LongType()
DOUBLE: Final = T.DoubleType()
TEXT: Final = T.StringType()
BINARY: Final = T.BinaryType()
DATE: Final = T.DateType()
TIMESTAMP: Final = T.TimestampType()
NTZ: Final = T.TimestampNTZType()
SHORT_SQL, LONGEST_SQL = 40, 50_000
"""Lengths of SQL: up to SHORT_SQL it is repeated, not bound to a name; beyond LONGEST_SQL Spark evaluates the query."""
_NAMES: Final = count()
INTEGERS: Final[tuple[type[T.DataType], ...]] = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
"""From the narrowest to the widest."""
DIGITS_OF_INTEGER: Final = dict(zip(INTEGERS, (3, 5, 10, 20), strict=True))
MAX_DIGITS: Final = 38
ROUNDED_DIGITS: Final = 34
"""Digits to which Spark rounds a decimal that it negates, or casts as integer."""
DOUBLE_PLACES: Final = 20
"""Places that hold all digits of a double from a thousandth on."""
EMPTY_ARRAY: Final = T.ArrayType(T.NullType())
"""Type of an array without elements, or with nulls alone."""
TYPE_NAMES: Final[dict[str, T.DataType]] = {
    "boolean": BOOLEAN,
    "tinyint": T.ByteType(),
    "smallint": T.ShortType(),
    "int": INT,
    "integer": INT,
    "bigint": LONG,
    "long": LONG,
    "float": T.FloatType(),
    "double": DOUBLE,
    "string": TEXT,
    "binary": BINARY,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": NTZ,
    "void": T.NullType(),
}
DUCKDB_TYPES: Final[dict[type[T.DataType], str]] = {
    T.BooleanType: "BOOLEAN",
    T.ByteType: "TINYINT",
    T.ShortType: "SMALLINT",
    T.IntegerType: "INTEGER",
    T.LongType: "BIGINT",
    T.FloatType: "FLOAT",
    T.DoubleType: "DOUBLE",
    T.StringType: "VARCHAR",
    T.BinaryType: "BLOB",
    T.DateType: "DATE",
    T.TimestampType: "TIMESTAMPTZ",
    T.TimestampNTZType: "TIMESTAMP",
    T.DayTimeIntervalType: "BIGINT",  # microseconds
    T.YearMonthIntervalType: "INTEGER",  # months
    T.NullType: "INTEGER",
}


WHOLE_DAYS: Final = T.DayTimeIntervalType(0, 0)
"""Type of an interval of whole days."""
MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


def parsed_type(text: str) -> T.DataType:
    """Parse Spark's name of a type, such as `decimal(12, 2)` or `array<struct<a: int>>`."""
    name, parts = type_parts(text)
    if name in {"decimal()", "numeric()"} and parts:
        return T.DecimalType(*map(int, parts))
    if name == "array<>" and len(parts) == 1:
        return T.ArrayType(parsed_type(parts[0]))
    if name == "struct<>":
        return T.StructType([_field(part) for part in parts])
    if name not in TYPE_NAMES:
        raise unsupported(f"the type {text}")
    return TYPE_NAMES[name]


def parsed_schema(text: str) -> T.StructType:
    """Parse columns with their types, as in `a int, b string`."""
    return T.StructType([_field(part) for part in split_fields(text)])


def _field(text: str) -> T.StructField:
    try:
        name, of = field_type(text)
    except ValueError:
        raise unsupported(f"the type {text}") from None
    return T.StructField(name, parsed_type(of))


def duckdb_type(type_: T.DataType) -> str:
    match type_:
        case T.DecimalType():
            return f"DECIMAL({type_.precision}, {type_.scale})"
        case T.ArrayType():
            return f"{duckdb_type(type_.elementType)}[]"
        case T.StructType():
            return f"STRUCT({', '.join(f'{quoted(f.name)} {duckdb_type(f.dataType)}' for f in type_)})"
        case T.MapType():
            return f"MAP({duckdb_type(type_.keyType)}, {duckdb_type(type_.valueType)})"
    if type(type_) not in DUCKDB_TYPES:
        raise unsupported(f"the type {type_.simpleString()}")
    return DUCKDB_TYPES[type(type_)]


def nullable(type_: T.DataType) -> T.DataType:
    """Every type of this session is nullable, with all its parts."""
    match type_:
        case T.ArrayType():
            return T.ArrayType(nullable(type_.elementType))
        case T.MapType():
            return T.MapType(nullable(type_.keyType), nullable(type_.valueType))
        case T.StructType():
            return nullable_columns(type_)
    return type_


def from_arrow(schema: pa.Schema) -> T.StructType:
    return nullable_columns(from_arrow_schema(schema))


def nullable_columns(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(f.name, nullable(f.dataType)) for f in schema])


def once(sql: str, body: Callable[[str], str]) -> str:
    """Return SQL of `body` with the given SQL computed once, or repeated up to SHORT_SQL characters."""
    if len(sql) <= SHORT_SQL:
        return body(sql)
    name = f"u{next(_NAMES)}"
    return let(name, sql, body(name))


def let(name: str, of: str, body: str) -> str:
    """Return SQL of `body`, in which `name` stands for the value of `of`."""
    return f"list_transform([{of}], lambda {name}: {body})[1]"


def is_integer(type_: T.DataType) -> bool:
    return isinstance(type_, INTEGERS)


def is_float(type_: T.DataType) -> bool:
    return isinstance(type_, T.FloatType | T.DoubleType)


def is_number(type_: T.DataType) -> bool:
    return is_integer(type_) or is_float(type_) or isinstance(type_, T.DecimalType)


def has_float(type_: T.DataType) -> bool:
    """Return whether values or parts of them are floats: then 0.0 and -0.0 are one group."""
    match type_:
        case T.ArrayType():
            return has_float(type_.elementType)
        case T.MapType():
            return has_float(type_.keyType) or has_float(type_.valueType)
        case T.StructType():
            return any(has_float(field.dataType) for field in type_)
    return is_float(type_)


def is_exact_scalar(type_: T.DataType) -> bool:
    """Return whether values of this type are scalars, of which equal ones are identical."""
    return not isinstance(type_, T.StructType | T.ArrayType | T.MapType | T.NullType) and not is_float(type_)


def is_groupable(type_: T.DataType) -> bool:
    """Return whether both engines find the same groups of values of this type."""
    return not has_float(type_) and not isinstance(type_, T.MapType)


def as_decimal(type_: T.DataType) -> T.DecimalType:
    if isinstance(type_, T.DecimalType):
        return type_
    if not is_integer(type_):
        raise unsupported(f"a {type_.simpleString()} as decimal")
    return T.DecimalType(DIGITS_OF_INTEGER[type(type_)], 0)


def common_type(types: Sequence[T.DataType]) -> T.DataType:
    """Return the type to which Spark casts values of `types` that meet in one column or comparison."""
    known = [type_ for type_ in types if not isinstance(type_, T.NullType)]
    known = [type_ for type_ in known if type_ != EMPTY_ARRAY] or known
    if not known:
        return T.NullType()
    if all(type_ == known[0] for type_ in known):
        return known[0]
    kinds = {type(type_) for type_ in known}
    if kinds <= {*INTEGERS}:
        return max(known, key=lambda type_: INTEGERS.index(type(type_)))
    if kinds <= {*INTEGERS, T.DecimalType}:
        decimals = [as_decimal(type_) for type_ in known]
        scale = max(type_.scale for type_ in decimals)
        precision = max(type_.precision - type_.scale for type_ in decimals) + scale
        if precision <= MAX_DIGITS:
            return T.DecimalType(precision, scale)
    if kinds <= {*INTEGERS, T.DecimalType, T.FloatType, T.DoubleType} and kinds & {T.FloatType, T.DoubleType}:
        return T.DoubleType()
    if kinds == {T.DateType, T.TimestampType}:
        return T.TimestampType()
    raise unsupported(f"{' with '.join(type_.simpleString() for type_ in known)}")
