"""Expressions of the Connect protocol, made into trees; called by `relations`.

Source: expressions.proto of Spark Connect 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as T

from lake.session.in_process.mode import replaces_server, unsupported
from lake.session.in_process.syntax import name_parts, parse
from lake.session.in_process.tree import (
    Alias,
    Call,
    Cast,
    Lambda,
    Literal,
    Name,
    Node,
    Over,
    Sorted,
    Star,
    decimal_literal,
    frame_of_rows,
)
from lake.session.in_process.types import nullable, parsed_type
from lake.text import EPOCH

if TYPE_CHECKING:
    from pyspark.sql.connect.proto import expressions_pb2 as pb

LITERALS: Final = {
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "short": T.ShortType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "day_time_interval": T.DayTimeIntervalType(),
}
OPERATORS: Final = {"!": "not", "=": "=="}


def node_of(expression: pb.Expression) -> Node:
    kind = expression.WhichOneof("expr_type")
    if kind not in _NODES:
        raise unsupported(f"the expression {kind}")
    return _NODES[kind](getattr(expression, kind))


def literal_of(of: pb.Expression.Literal) -> Literal:
    kind = of.WhichOneof("literal_type")
    if kind == "null":
        return Literal(None, type_of(of.null))
    if kind == "decimal":
        return decimal_literal(Decimal(of.decimal.value), of.decimal.precision if replaces_server() else 1)
    if kind == "timestamp":
        return Literal(EPOCH + timedelta(microseconds=of.timestamp), T.TimestampType())
    if kind == "date":
        return Literal(EPOCH.date() + timedelta(days=of.date), T.DateType())
    if kind not in LITERALS:
        raise unsupported(f"a constant of type {kind}")
    return Literal(getattr(of, kind), LITERALS[kind])


def type_of(of: Any) -> T.DataType:
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    if of.WhichOneof("kind") == "unparsed":
        return parsed_type(of.unparsed.data_type_string)
    return nullable(proto_schema_to_pyspark_data_type(of))


def _function(of: pb.Expression.UnresolvedFunction) -> Node:
    if of.is_user_defined_function:
        raise unsupported(f"the function {of.function_name}")
    name = of.function_name.lower()
    return Call(OPERATORS.get(name, name), tuple(map(node_of, of.arguments)), distinct=of.is_distinct)


def _cast(of: pb.Expression.Cast) -> Node:
    type_ = parsed_type(of.type_str) if of.WhichOneof("cast_to_type") == "type_str" else type_of(of.type)
    if of.eval_mode not in {of.EVAL_MODE_UNSPECIFIED, of.EVAL_MODE_ANSI, of.EVAL_MODE_TRY}:
        raise unsupported("a cast without ANSI mode")
    return Cast(node_of(of.expr), type_, may_fail=of.eval_mode != of.EVAL_MODE_TRY)


def _alias(of: pb.Expression.Alias) -> Node:
    if len(of.name) != 1:
        raise unsupported("an alias of several columns")
    return Alias(node_of(of.expr), of.name[0], of.metadata)


def sorted_node(of: pb.Expression.SortOrder) -> Sorted:
    descending = of.direction == of.SORT_DIRECTION_DESCENDING
    first = of.null_ordering == of.SORT_NULLS_FIRST if of.null_ordering else not descending
    return Sorted(node_of(of.child), descending, first)


def _window(of: pb.Expression.Window) -> Node:
    order = tuple(map(sorted_node, of.order_spec))
    return Over(node_of(of.window_function), tuple(map(node_of, of.partition_spec)), order, _frame(of))


def _frame(of: pb.Expression.Window) -> str:
    if not of.HasField("frame_spec"):
        return ""
    frame = of.frame_spec
    if frame.frame_type != frame.FRAME_TYPE_ROW:
        raise unsupported("a frame of a window by values")
    return frame_of_rows(_place(frame.lower, -inf), _place(frame.upper, inf))


def _place(of: pb.Expression.Window.WindowFrame.FrameBoundary, unbounded: float) -> float:
    if of.unbounded or of.current_row:
        return unbounded if of.unbounded else 0
    return of.value.literal.integer


def _star(of: pb.Expression.UnresolvedStar) -> Node:
    target = of.unparsed_target.removesuffix(".*")
    return Star(name_parts(target) if target else ())


def _extract(of: pb.Expression.UnresolvedExtractValue) -> Node:
    key = node_of(of.extraction)
    is_name = isinstance(key, Literal) and isinstance(key.type, T.StringType)
    return Call("." if is_name else "[]", (node_of(of.child), key))


def _name(of: pb.Expression.UnresolvedAttribute) -> Node:
    return Name(name_parts(of.unparsed_identifier), of.plan_id if of.HasField("plan_id") else None)


def _lambda(of: pb.Expression.LambdaFunction) -> Node:
    return Lambda(tuple(argument.name_parts[0] for argument in of.arguments), node_of(of.function))


_NODES: Final[dict[str, Callable[[Any], Node]]] = {
    "literal": literal_of,
    "unresolved_attribute": _name,
    "unresolved_function": _function,
    "expression_string": lambda of: parse(of.expression),
    "unresolved_star": _star,
    "alias": _alias,
    "cast": _cast,
    "sort_order": sorted_node,
    "window": _window,
    "unresolved_extract_value": _extract,
    "lambda_function": _lambda,
    "unresolved_named_lambda_variable": lambda of: Name((of.name_parts[0],)),
}
