"""Functions of several rows that DuckDB computes as Spark does, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pyspark.sql import types as T

from lake.session.in_process.lists import NESTED
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import BOOLEAN, DOUBLE, INT, LONG, boolean, quotient, sort_key, sort_keys
from lake.session.in_process.types import MOST, Value, cast, common_type, duckdb_type, has_float, is_float, is_integer

Aggregate: TypeAlias = Callable[[Sequence[Value], str], Value]
"""SQL of an aggregate over rows, with ` FILTER (…)` and ` OVER (…)`, if there are any, as its second argument."""


def _chosen(pick: str) -> Aggregate:
    def choose(values: Sequence[Value], over: str) -> Value:
        [value] = values
        if isinstance(value.type, T.StructType):
            return Value(f"arg_{pick}({value.sql}, {sort_key(value)}){over}", value.type)
        sort_keys(value)
        if is_float(value.type):  # of zeros Spark takes the first
            zero = f"bool_or({value.sql} = 0 AND signbit({value.sql})){over}"
            return Value(f"CASE WHEN {zero} THEN error('a zero') ELSE {pick}({value.sql}){over} END", value.type)
        return Value(f"{pick}({value.sql}){over}", value.type)

    return choose


def _chosen_by(pick: str) -> Aggregate:
    """Only orders by structs are accepted: they are places of rows, which have no ties."""

    def choose(values: Sequence[Value], over: str) -> Value:
        value, by = values
        if not isinstance(by.type, T.StructType):
            raise unsupported(f"{pick}_by a {by.type.simpleString()}")
        return Value(f"(arg_{pick}(struct_pack(v := {value.sql}), {sort_key(by)}){over}).v", value.type)

    return choose


def _sum(values: Sequence[Value], over: str, distinct: str = "") -> Value:
    """Spark's sum may fail by the order of rows, unless their absolute values have a sum that fits its type."""
    [value] = values
    total = f"sum({distinct}{value.sql}){over}"
    if is_integer(value.type):
        size = f"sum(abs(CAST({value.sql} AS HUGEINT))){over}"
        fits = f"CASE WHEN {size} < {1 << 63} THEN {total} WHEN {size} > 0 THEN error('a sum') END"
        return Value(f"CAST({fits} AS BIGINT)", LONG)
    if isinstance(value.type, T.DecimalType):
        type_ = T.DecimalType(min(value.type.precision + 10, MOST), value.type.scale)
        if value.type.precision + 10 > MOST:  # a sum of DuckDB fails if it has more digits
            total = f"CASE WHEN sum(abs({value.sql})){over} IS NOT NULL THEN {total} END"
        return Value(f"CAST({total} AS {duckdb_type(type_)})", type_)
    raise unsupported(f"a sum of {value.type.simpleString()}")


def _count(values: Sequence[Value], over: str) -> Value:
    if len(values) > 1:
        raise unsupported("a count of several columns")
    return Value(f"count({values[0].sql if values else '*'}){over}", LONG)


def _count_if(values: Sequence[Value], over: str) -> Value:
    if not isinstance(values[0].type, T.BooleanType):
        raise unsupported("a count of other values")
    return Value(f"count(CASE WHEN {boolean(values[0])} THEN 1 END){over}", LONG)


def _of_conditions(pick: str) -> Aggregate:
    return lambda values, over: Value(f"{pick}({boolean(values[0])}){over}", BOOLEAN)


def _bits(pick: str) -> Aggregate:
    def combine(values: Sequence[Value], over: str) -> Value:
        [value] = values
        if not is_integer(value.type):
            raise unsupported(f"{pick} of {value.type.simpleString()}")
        return Value(f"{pick}({value.sql}){over}", value.type)

    return combine


def _any_value(values: Sequence[Value], over: str) -> Value:
    """Return the value that all rows have: of several, Spark chooses one."""
    [value] = values
    one = f"count(DISTINCT {value.sql}){over} + CAST(count({value.sql}){over} < count(*){over} AS BIGINT) <= 1"
    return Value(f"CASE WHEN {one} THEN any_value({value.sql}){over} ELSE error('several values') END", value.type)


def _average(values: Sequence[Value], over: str) -> Value:
    """Only decimals are accepted: Spark adds integers as floats, which a job may not do."""
    [value] = values
    if not isinstance(value.type, T.DecimalType) or value.type.precision + 10 > MOST:
        raise unsupported(f"an average of {value.type.simpleString()}")
    count = f"count({value.sql}){over}"
    divisor = Value(f"CASE WHEN {count} > 0 THEN CAST({count} AS DECIMAL(20, 0)) END", T.DecimalType(20, 0))
    return quotient(_sum(values, over), divisor, T.DecimalType(value.type.precision + 4, value.type.scale + 4))


def sorted_set(value: Value, direction: str) -> Value:
    if isinstance(value.type, NESTED) or has_float(value.type):
        raise unsupported(f"a set of {value.type.simpleString()}")
    return sorted_list(value, direction, "DISTINCT ")


def sorted_list(value: Value, direction: str, distinct: str = "") -> Value:
    """Return an array without nulls; an empty one if there is no other value."""
    nulls = "FIRST" if direction == "ASC" else "LAST"
    order = ", ".join(f"{key} {direction} NULLS {nulls}" for key in sort_keys(value))
    listed = f"list({distinct}{value.sql} ORDER BY {order}) FILTER (WHERE {value.sql} IS NOT NULL)"
    return Value(f"coalesce({listed}, CAST([] AS {duckdb_type(T.ArrayType(value.type))}))", T.ArrayType(value.type))


AGGREGATES: Final[dict[str, Aggregate]] = {
    "min": _chosen("min"),
    "max": _chosen("max"),
    "min_by": _chosen_by("min"),
    "max_by": _chosen_by("max"),
    "sum": _sum,
    "count": _count,
    "count_if": _count_if,
    "bit_or": _bits("bit_or"),
    "bit_and": _bits("bit_and"),
    "bit_xor": _bits("bit_xor"),
    "any_value": _any_value,
    **dict.fromkeys(("avg", "mean"), _average),
    **dict.fromkeys(("bool_or", "some", "any"), _of_conditions("bool_or")),
    **dict.fromkeys(("bool_and", "every"), _of_conditions("bool_and")),
}
PLACES: Final = ("row_number", "rank", "dense_rank", "ntile")
SHARES: Final = ("percent_rank", "cume_dist")
FRAMED: Final = ("last", "first", "last_value", "first_value", "nth_value")
RANKS: Final = (*PLACES, *SHARES, "lag", "lead", *FRAMED)
"""Functions of a window alone."""
OFFSETS: Final = {"lag": -(1 << 31), "lead": -(1 << 31), "nth_value": 1}
"""{function: least number of rows}."""


def rank(name: str, values: Sequence[Value], over: str, *, ignores_nulls: bool) -> Value:
    skip = " IGNORE NULLS" if ignores_nulls else ""
    given = [value.sql for value in values]
    number = values[0] if name == "ntile" and values else values[1] if name in OFFSETS and len(values) > 1 else None
    if number and (number.type != INT or not number.is_literal or int(number.sql) < OFFSETS.get(name, 1)):
        raise unsupported(f"{name} by {number.sql}")
    if name in PLACES and all(value.is_literal for value in values):
        return Value(f"CAST({name}({', '.join(given)}){over} AS INTEGER)", INT)
    if name in SHARES and not values:
        return Value(f"{name}(){over}", DOUBLE)
    if name in OFFSETS and values and all(value.is_literal for value in values[1:]):
        if common_type([value.type for value in (values[0], *values[2:])]) != values[0].type:
            raise unsupported(f"{name} with a value of another type")
        given[2:] = [cast(value, values[0].type).sql for value in values[2:]]
        return Value(f"{name}({', '.join(given)}{skip}){over}", values[0].type)
    if name.removesuffix("_value") in {"last", "first"} and len(values) in {1, 2}:
        if len(values) == 2:
            if given[1] not in {"true", "false"}:
                raise unsupported(f"{name} with {given[1]}")
            skip = " IGNORE NULLS" if given[1] == "true" else ""
        return Value(f"{name.removesuffix('_value')}_value({given[0]}{skip}){over}", values[0].type)
    raise unsupported(f"{name} with {len(values)} arguments")


def aggregate(name: str, values: Sequence[Value], over: str, *, distinct: bool = False) -> Value:
    """`over` is that of an Aggregate. Raises Unsupported."""
    if distinct:
        return _of_different(name, values, over)
    try:
        return AGGREGATES[name](values, over)
    except (ValueError, IndexError) as error:
        raise unsupported(f"{name} with {len(values)} arguments") from error


def _of_different(name: str, values: Sequence[Value], over: str) -> Value:
    if any(isinstance(value.type, NESTED) or has_float(value.type) for value in values) or not values:
        raise unsupported(f"{name} of other values")
    if name == "count":
        known = " AND ".join(f"{value.sql} IS NOT NULL" for value in values)
        row = f"CASE WHEN {known} THEN row({', '.join(value.sql for value in values)}) END"
        return Value(f"count(DISTINCT {values[0].sql if len(values) == 1 else row}){over}", LONG)
    if name != "sum" or len(values) > 1:
        raise unsupported(f"{name} of different values")
    return _sum(values, over, "DISTINCT ")
