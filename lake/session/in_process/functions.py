"""Functions and operators of Spark that DuckDB computes alike, as DuckDB's SQL.

Each entry is proved by the tests: both engines give the same values, or DuckDB fails, for all types that it takes,
nulls and extremes. `error(…)` marks values for which they would differ; then Spark evaluates.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import (
    DATE,
    EPOCH,
    INT,
    LONG,
    NTZ,
    TEXT,
    TIMESTAMP,
    Function,
    among,
    arithmetic,
    coalesce,
    comparison,
    different,
    division,
    extreme,
    if_else,
    is_not_null,
    is_null,
    logical,
    negation,
    negative,
    nullif,
    nvl2,
    pmod,
    times,
    when,
)
from lake.session.in_process.types import (
    INTEGERS,
    Value,
    cast,
    common_type,
    is_integer,
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
    """Return a struct of `values`; one without a name is called by its place."""
    return _struct(values, [name or f"col{n}" for n, name in enumerate(names, start=1)])


def _named_struct(values: Sequence[Value]) -> Value:
    names = [value.sql[1:-1].replace("''", "'") for value in values[::2]]
    if not all(value.is_literal and value.type == TEXT for value in values[::2]):
        raise unsupported("a struct with computed names")
    return _struct(values[1::2], names)


def _array(values: Sequence[Value]) -> Value:
    texts, type_ = together(values) if values else ([], T.NullType())
    return Value(f"list_value({', '.join(texts)})" if texts else "CAST([] AS INTEGER[])", T.ArrayType(type_))


def _concat(values: Sequence[Value]) -> Value:
    if any(isinstance(value.type, T.BinaryType | T.ArrayType) for value in values):
        raise unsupported("concat of values that are not text")
    return Value(f"({' || '.join(cast(value, TEXT).sql for value in values)})" if values else "''", TEXT)


def _concat_ws(values: Sequence[Value]) -> Value:
    if not all(isinstance(value.type, T.StringType) for value in values):
        raise unsupported("concat_ws of values that are not text")
    return Value(f"concat_ws({', '.join(value.sql for value in values)})", TEXT)


def _text(template: str, type_: T.DataType = TEXT, *others: T.DataType) -> Function:
    """Return a function of a text and of `others`."""
    return _typed(template, type_, TEXT, *others)


def _typed(template: str, type_: T.DataType, *given: T.DataType) -> Function:
    """Return a function whose arguments have the types `given`, or narrower integers."""

    def compute(values: Sequence[Value]) -> Value:
        if len(values) != len(given):
            raise unsupported("a function with other arguments")
        texts = []
        for value, wanted in zip(values, given, strict=True):
            if value.type != wanted and not (is_integer(wanted) and common_type([value.type, wanted]) == wanted):
                raise unsupported(f"a function of a {value.type.simpleString()}")
            texts.append(cast(value, wanted).sql)
        return Value(template.format(*texts), type_)

    return compute


def _sha2(values: Sequence[Value]) -> Value:
    text, bits = values
    if text.type != TEXT or bits.sql != "256":
        raise unsupported("sha2 of other values")
    return Value(f"sha256({text.sql})", TEXT)


def _shift_right(values: Sequence[Value]) -> Value:
    if values[0].type != LONG:
        raise unsupported("shiftright of other values")
    return _typed("({0} >> {1})", LONG, LONG, INT)(values)


def _substring(values: Sequence[Value]) -> Value:
    text, start, length = values
    from_one = start.is_literal and start.sql.isdigit() and int(start.sql) > 0
    if text.type != TEXT or not from_one or not is_integer(length.type):
        raise unsupported("substring of other values")
    return Value(f"substring({text.sql}, {start.sql}, CASE WHEN {length.sql} < 0 THEN 0 ELSE {length.sql} END)", TEXT)


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


UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def _date_trunc(values: Sequence[Value]) -> Value:
    unit, at = values
    name = unit.sql.strip("'").lower()
    if not unit.is_literal or name not in UNITS:
        raise unsupported(f"date_trunc by {unit.sql}")
    local = cast(cast(at, TIMESTAMP), NTZ).sql
    return cast(Value(f"CAST(date_trunc('{name}', {local}) AS TIMESTAMP)", NTZ), TIMESTAMP)


def _in_zone(values: Sequence[Value], *, forth: bool) -> Value:
    at, zone = values
    if not zone.is_literal or at.type != TIMESTAMP:
        raise unsupported("a computed time zone")
    if zone.sql == "'UTC'":
        return at
    raise unsupported(f"the time zone {zone.sql}, {'to' if forth else 'from'} UTC")


def _epoch(unit: int) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        [number] = values
        if not is_integer(number.type):
            raise unsupported(f"a time of a {number.type.simpleString()}")
        micros = f"CAST({number.sql} AS BIGINT) * {unit}"
        return Value(f"make_timestamptz({micros})", TIMESTAMP)

    return compute


def _make_interval(values: Sequence[Value]) -> Value:
    """Return the microseconds of literal seconds: other parts are zero."""
    *parts, seconds = values
    if not all(value.sql == "0" for value in parts) or not seconds.is_literal:
        raise unsupported("a computed interval")
    return Value(f"CAST({seconds.sql} * 1000000 AS BIGINT)", T.DayTimeIntervalType(), is_literal=True)


def _element(values: Sequence[Value]) -> Value:
    of, key = values
    if isinstance(of.type, T.ArrayType) and key.is_literal and is_integer(key.type) and key.sql.isdigit():
        at = f"{of.sql}[{int(key.sql) + 1}]"
        outside = f"len({of.sql}) <= {key.sql}"
        return Value(f"CASE WHEN {outside} THEN error('an element outside') ELSE {at} END", of.type.elementType)
    raise unsupported(f"an element of a {of.type.simpleString()}")


def _field(values: Sequence[Value]) -> Value:
    of, name = values
    if not isinstance(of.type, T.StructType):
        raise unsupported(f"a part of a {of.type.simpleString()}")
    wanted = name.sql[1:-1].replace("''", "'")
    found = [f for f in of.type if f.name.lower() == wanted.lower()]
    if len(found) != 1 or found[0].name != wanted:
        raise unsupported(f"the part {wanted}")
    return Value(f"({of.sql}).{quoted(wanted)}", found[0].dataType)


FUNCTIONS: Final[dict[str, Function]] = {
    "==": comparison("="),
    "<=>": comparison("IS NOT DISTINCT FROM"),
    "!=": different,
    "<": comparison("<"),
    "<=": comparison("<="),
    ">": comparison(">"),
    ">=": comparison(">="),
    "and": logical("AND"),
    "or": logical("OR"),
    "not": negation,
    "isnull": is_null,
    "isnotnull": is_not_null,
    "in": among,
    "coalesce": coalesce,
    "ifnull": coalesce,
    "nvl": coalesce,
    "nvl2": nvl2,
    "when": when,
    "if": if_else,
    "nullif": nullif,
    "greatest": extreme("greatest", ">="),
    "least": extreme("least", "<="),
    "+": times("+"),
    "-": times("-"),
    "*": arithmetic("*"),
    "/": division("/"),
    "%": division("%"),
    "div": division("//"),
    "pmod": pmod,
    "negative": negative,
    "named_struct": _named_struct,
    "array": _array,
    "element": _element,
    "field": _field,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "length": _text("length({0})", INT),
    "left": _text("left({0}, CASE WHEN {1} < 0 THEN 0 ELSE {1} END)", TEXT, INT),
    "sha2": _sha2,
    "xxhash64": _xxhash64,
    "substring": _substring,
    "substr": _substring,
    "shiftright": _shift_right,
    "date_trunc": _date_trunc,
    "from_utc_timestamp": lambda values: _in_zone(values, forth=False),
    "to_utc_timestamp": lambda values: _in_zone(values, forth=True),
    "unix_micros": _typed("epoch_us({0})", LONG, TIMESTAMP),
    "timestamp_micros": _epoch(1),
    "timestamp_millis": _epoch(1_000),
    "timestamp_seconds": _epoch(1_000_000),
    "unix_date": _typed("CAST({0} - DATE '1970-01-01' AS INTEGER)", INT, DATE),
    "date_from_unix_date": _typed("DATE '1970-01-01' + {0}", DATE, INT),
    "date_add": _typed("{0} + {1}", DATE, DATE, INT),
    "date_sub": _typed("{0} - {1}", DATE, DATE, INT),
    "make_dt_interval": _make_interval,
}


def literal_value(value: object, type_: T.DataType) -> Value:  # noqa: PLR0911 one return a kind
    """Return a constant as SQL."""
    match type_:
        case T.NullType():
            return Value("NULL", type_, is_literal=True)
        case T.BooleanType():
            return Value(str(value).lower(), type_, is_literal=True)
        case T.StringType():
            return Value(literal(str(value)), type_, is_literal=True)
        case T.IntegerType() | T.DecimalType():
            return Value(f"{value:f}" if isinstance(type_, T.DecimalType) else str(value), type_, is_literal=True)
        case T.DayTimeIntervalType():
            return Value(f"CAST({value} AS BIGINT)", type_, is_literal=True)
        case T.DoubleType():
            return Value(f"CAST('{value!r}' AS DOUBLE)", type_, is_literal=True)
        case T.DateType():
            return Value(f"DATE '{value}'", type_, is_literal=True)
        case T.TimestampType() if isinstance(value, datetime):
            micros = (value - EPOCH) // timedelta(microseconds=1)
            return Value(f"make_timestamptz({micros})", type_, is_literal=True)
    if isinstance(type_, INTEGERS):
        return Value(f"CAST({value} AS {'BIGINT' if type_ == LONG else 'SMALLINT'})", type_, is_literal=True)
    raise unsupported(f"a constant of type {type_.simpleString()}")


def call(name: str, values: Sequence[Value]) -> Value:
    """Return the SQL of a function of one row. Raises Unsupported."""
    if name == "raise_error":
        return Value("error('raised')", T.NullType())
    if name not in FUNCTIONS:
        raise unsupported(f"the function {name}")
    try:
        return FUNCTIONS[name](values)
    except (ValueError, IndexError) as error:
        raise unsupported(f"{name} with {len(values)} arguments") from error
