"""Signatures: the arguments for which DuckDB computes a function as Spark does, and the SQL and type of its result.

A function raises ValueError for other arguments, of which `checked_call` makes a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from pyspark.sql import types as T

from lake.session.in_process.casts import cast
from lake.session.in_process.mode import unsupported
from lake.session.in_process.types import TEXT, Value, common_type, is_integer
from lake.text import literal

Function: TypeAlias = Callable[[Sequence[Value]], Value]
Parameter: TypeAlias = T.DataType | Callable[[Value, Value], str]
"""A type, which narrower integers have too; or a function of an argument and the first argument to the SQL of it."""
Result: TypeAlias = T.DataType | Callable[[Sequence[Value]], T.DataType]
"""Type of a result, or a function of the arguments to it."""


def typed(template: str, result: Result, *parameters: Parameter) -> Function:
    """Return a function of as many arguments as `parameters`, whose SQL fills the template."""

    def compute(values: Sequence[Value]) -> Value:
        return Value(template.format(*arguments(values, parameters)), result_type(values, result))

    return compute


def by_count(functions: Mapping[int, Callable[..., Value]]) -> Callable[..., Value]:
    """Return a function of several signatures: {number of arguments: function}."""
    return lambda values, *more: functions[len(values)](values, *more)


def arguments(values: Sequence[Value], parameters: Sequence[Parameter]) -> list[str]:
    """Return the SQL of arguments."""
    return [_sql(parameter, value, values[0]) for parameter, value in zip(parameters, values, strict=True)]


def result_type(values: Sequence[Value], result: Result) -> T.DataType:
    return result if isinstance(result, T.DataType) else result(values)


def checked_call(name: str, function: Callable[..., Value], values: Sequence[Value], *more: str) -> Value:
    """Return the value of a function. Raises Unsupported if it does not accept the arguments."""
    try:
        return function(values, *more)
    except (ValueError, LookupError) as error:
        raise unsupported(f"{name}({', '.join(value.type.simpleString() for value in values)})") from error


def require(condition: bool) -> None:
    """Raise ValueError, for arguments that a function does not accept."""
    if not condition:
        raise ValueError


def _sql(parameter: Parameter, value: Value, first: Value) -> str:
    if not isinstance(parameter, T.DataType):
        return parameter(value, first)
    require(value.type == parameter or (is_integer(parameter) and common_type([value.type, parameter]) == parameter))
    return cast(value, parameter).sql


def accepted(accepts: Callable[[Value, Value], bool]) -> Parameter:
    def sql(value: Value, first: Value) -> str:
        require(accepts(value, first))
        return value.sql

    return sql


def of_types(*types: T.DataType) -> Parameter:
    return accepted(lambda value, _: value.type in types)


def of_kinds(*kinds: type[T.DataType]) -> Parameter:
    return accepted(lambda value, _: isinstance(value.type, kinds))


def cast_to(type_: T.DataType) -> Parameter:
    return lambda value, _: cast(value, type_).sql


def constant_text(accepts: Callable[[str], bool]) -> Parameter:
    return accepted(lambda value, _: accepts(constant(value)))


def constant_number(accepts: Callable[[int], bool]) -> Parameter:
    return accepted(lambda value, _: accepts(whole(value)))


def keyword(*words: str) -> Parameter:
    """Return a parameter that is one of `words`, in any case."""

    def sql(value: Value, _: Value) -> str:
        require(constant(value).lower() in words)
        return literal(constant(value).lower())

    return sql


ANY: Final = accepted(lambda value, _: True)
SAME: Final = accepted(lambda value, first: value.type == first.type)
"""An argument of the type of the first one."""


def type_of_first(values: Sequence[Value]) -> T.DataType:
    return values[0].type


def constant(value: Value) -> str:
    """Return the text of a literal. Raises Unsupported for other values."""
    if not value.is_literal or value.type != TEXT:
        raise unsupported(f"a computed text, {value.sql}")
    return value.sql[1:-1].replace("''", "'")


def whole(value: Value) -> int:
    """Return an integer literal. Raises Unsupported for other values."""
    if not value.is_literal or not is_integer(value.type):
        raise unsupported(f"a computed number, {value.sql}")
    return int(value.sql)


def unless_null(template: str, *places: int) -> str:
    """Return a template that is null if one of the arguments at `places` is null."""
    known = " AND ".join(f"{{{place}}} IS NOT NULL" for place in places)
    return f"CASE WHEN {known} THEN {template} END"
