"""Spark's aggregates and window functions that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pyspark.sql import types as T

from lake.session.in_process.casts import cast
from lake.session.in_process.operators import boolean, quotient, sort_key, sort_keys
from lake.session.in_process.signatures import (
    ANY,
    Parameter,
    Result,
    arguments,
    by_count,
    checked_call,
    constant_number,
    of_kinds,
    of_types,
    require,
    result_type,
    type_of_first,
)
from lake.session.in_process.types import (
    BOOLEAN,
    DOUBLE,
    INT,
    INTEGERS,
    LONG,
    MAX_DIGITS,
    Value,
    as_decimal,
    common_type,
    duckdb_type,
    is_exact_scalar,
    is_float,
    is_integer,
)

Aggregate: TypeAlias = Callable[[Sequence[Value], str], Value]
"""SQL of an aggregate over rows, with ` FILTER (…)` and ` OVER (…)`, if there are any, as its second argument."""


def _extreme(pick: str) -> Aggregate:
    def choose(values: Sequence[Value], over: str) -> Value:
        [value] = values
        if isinstance(value.type, T.StructType):
            return Value(f"arg_{pick}({value.sql}, {sort_key(value)}){over}", value.type)
        sort_keys(value)
        if is_float(value.type):  # Spark takes the first zero of either sign
            zero = f"bool_or({value.sql} = 0 AND signbit({value.sql})){over}"
            return Value(f"CASE WHEN {zero} THEN error('a zero') ELSE {pick}({value.sql}){over} END", value.type)
        return Value(f"{pick}({value.sql}){over}", value.type)

    return choose


def _extreme_by(pick: str) -> Aggregate:
    """Accept only structs as keys: places of rows, which have no ties."""

    def choose(values: Sequence[Value], over: str) -> Value:
        value, by = values
        require(isinstance(by.type, T.StructType))
        return Value(f"(arg_{pick}(struct_pack(v := {value.sql}), {sort_key(by)}){over}).v", value.type)

    return choose


def _sum(values: Sequence[Value], over: str, distinct: str = "") -> Value:
    """Fail unless absolute values add up within the type: else the order of rows decides whether Spark fails."""
    [value] = values
    total = f"sum({distinct}{value.sql}){over}"
    if is_integer(value.type):
        size = f"sum(abs(CAST({value.sql} AS HUGEINT))){over}"
        fits = f"CASE WHEN {size} < {1 << 63} THEN {total} WHEN {size} > 0 THEN error('a sum') END"
        return Value(f"CAST({fits} AS BIGINT)", LONG)
    of = as_decimal(value.type)
    type_ = T.DecimalType(min(of.precision + 10, MAX_DIGITS), of.scale)
    if of.precision + 10 > MAX_DIGITS:  # fails beyond 38 digits in any order of rows
        total = f"CASE WHEN sum(abs({value.sql})){over} IS NOT NULL THEN {total} END"
    return Value(f"CAST({total} AS {duckdb_type(type_)})", type_)


def _aggregate(template: str, result: Result, *parameters: Parameter) -> Callable[..., Value]:
    """Return an aggregate whose template, as of `typed`, also takes `{over}` and `{skip}`: ` IGNORE NULLS` or empty."""

    def compute(values: Sequence[Value], over: str, skip: str = "") -> Value:
        texts = arguments(values, parameters)
        return Value(template.format(*texts, over=over, skip=skip), result_type(values, result))

    return compute


def _average(values: Sequence[Value], over: str) -> Value:
    """Accept only decimals: Spark adds integers as floats, which a job may not do."""
    [value] = values
    if not isinstance(value.type, T.DecimalType) or value.type.precision + 10 > MAX_DIGITS:
        raise ValueError
    count = f"count({value.sql}){over}"
    divisor = Value(f"CASE WHEN {count} > 0 THEN CAST({count} AS DECIMAL(20, 0)) END", T.DecimalType(20, 0))
    return quotient(_sum(values, over), divisor, T.DecimalType(value.type.precision + 4, value.type.scale + 4))


def sorted_set(value: Value, direction: str) -> Value:
    require(is_exact_scalar(value.type))
    return sorted_list(value, direction, "DISTINCT ")


def sorted_list(value: Value, direction: str, distinct: str = "") -> Value:
    """Return an array without nulls; an empty one if there is no other value."""
    nulls = "FIRST" if direction == "ASC" else "LAST"
    order = ", ".join(f"{key} {direction} NULLS {nulls}" for key in sort_keys(value))
    listed = f"list({distinct}{value.sql} ORDER BY {order}) FILTER (WHERE {value.sql} IS NOT NULL)"
    return Value(f"coalesce({listed}, CAST([] AS {duckdb_type(T.ArrayType(value.type))}))", T.ArrayType(value.type))


def _edge(name: str) -> Callable[..., Value]:
    return by_count(
        {
            1: _aggregate(f"{name}({{0}}{{skip}}){{over}}", type_of_first, ANY),
            2: _aggregate(f"{name}({{0}}{{1}}){{over}}", type_of_first, ANY, _skips_nulls),
        }
    )


def _neighbour(name: str) -> Callable[..., Value]:
    return by_count(
        {
            1: _aggregate(f"{name}({{0}}{{skip}}){{over}}", type_of_first, ANY),
            2: _aggregate(f"{name}({{0}}, {{1}}{{skip}}){{over}}", type_of_first, ANY, OFFSET),
            3: _aggregate(f"{name}({{0}}, {{1}}, {{2}}{{skip}}){{over}}", type_of_first, ANY, OFFSET, _default),
        }
    )


def _condition(value: Value, _: Value) -> str:
    return boolean(value)


def _default(value: Value, first: Value) -> str:
    require(value.is_literal and common_type([first.type, value.type]) == first.type)
    return cast(value, first.type).sql


def _skips_nulls(value: Value, _: Value) -> str:
    require(value.sql in {"true", "false"})
    return " IGNORE NULLS" if value.sql == "true" else ""


INTEGER: Final = of_kinds(*INTEGERS)
OFFSET: Final = constant_number(lambda rows: rows >= -(1 << 31))
POSITIVE: Final = constant_number(lambda number: number > 0)
ONE_VALUE: Final = "count(DISTINCT {0}){over} + CAST(count({0}){over} < count(*){over} AS BIGINT) <= 1"
"""All rows have the same value: of several, Spark chooses one."""
AGGREGATES: Final[dict[str, Aggregate]] = {
    "min": _extreme("min"),
    "max": _extreme("max"),
    "min_by": _extreme_by("min"),
    "max_by": _extreme_by("max"),
    "sum": _sum,
    "count": by_count({0: _aggregate("count(*){over}", LONG), 1: _aggregate("count({0}){over}", LONG, ANY)}),
    "count_if": _aggregate("count(CASE WHEN {0} THEN 1 END){over}", LONG, of_types(BOOLEAN)),
    **{name: _aggregate(f"{name}({{0}}){{over}}", type_of_first, INTEGER) for name in ("bit_or", "bit_and", "bit_xor")},
    "any_value": _aggregate(
        f"CASE WHEN {ONE_VALUE} THEN any_value({{0}}){{over}} ELSE error('several values') END", type_of_first, ANY
    ),
    **dict.fromkeys(("avg", "mean"), _average),
    **dict.fromkeys(("bool_or", "some", "any"), _aggregate("bool_or({0}){over}", BOOLEAN, _condition)),
    **dict.fromkeys(("bool_and", "every"), _aggregate("bool_and({0}){over}", BOOLEAN, _condition)),
}
FRAME_FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "nth_value": _aggregate("nth_value({0}, {1}{skip}){over}", type_of_first, ANY, POSITIVE),
    **dict.fromkeys(("first", "first_value"), _edge("first_value")),
    **dict.fromkeys(("last", "last_value"), _edge("last_value")),
}
WINDOW_FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    **{name: _aggregate(f"CAST({name}(){{over}} AS INTEGER)", INT) for name in ("row_number", "rank", "dense_rank")},
    **{name: _aggregate(f"{name}(){{over}}", DOUBLE) for name in ("percent_rank", "cume_dist")},
    "ntile": _aggregate("CAST(ntile({0}){over} AS INTEGER)", INT, POSITIVE),
    **{name: _neighbour(name) for name in ("lag", "lead")},
    **FRAME_FUNCTIONS,
}
"""Functions of a window alone."""


def aggregate(name: str, values: Sequence[Value], over: str, *, distinct: bool = False) -> Value:
    """`over` is that of an Aggregate. Raises Unsupported."""
    if distinct:
        return checked_call(name, _of_distinct, values, over, name)
    return checked_call(name, AGGREGATES[name], values, over)


def _of_distinct(values: Sequence[Value], over: str, name: str) -> Value:
    require(bool(values) and all(is_exact_scalar(value.type) for value in values))
    if name == "sum":
        return _sum(values, over, "DISTINCT ")
    require(name == "count")
    texts = [value.sql for value in values]
    row = f"CASE WHEN {' AND '.join(f'{text} IS NOT NULL' for text in texts)} THEN row({', '.join(texts)}) END"
    return Value(f"count(DISTINCT {texts[0] if len(texts) == 1 else row}){over}", LONG)
