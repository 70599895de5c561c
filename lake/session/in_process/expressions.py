"""Expressions of Spark, as trees, translated to DuckDB's SQL over the columns of a relation; `steps` calls it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import aggregates, dates, functions, lists, operators
from lake.session.in_process.casts import cast, try_cast
from lake.session.in_process.mode import Unsupported, unsupported
from lake.session.in_process.signatures import checked_call, require
from lake.session.in_process.tree import (
    Alias,
    Call,
    Cast,
    Lambda,
    Literal,
    Name,
    Node,
    OutputColumn,
    Over,
    Sorted,
    Star,
    find_named,
    name_of,
    parts_of,
)
from lake.session.in_process.types import BOOLEAN, LONGEST_SQL, Value
from lake.text import literal

LIST_AGGREGATES: Final = frozenset({"collect_list", "collect_set", "array_agg"})


@dataclass(frozen=True)
class Scope:
    """Meanings of names: columns of the relation, variables of lambdas, and columns that an earlier relation had.

    `column_of_plan` returns a column by the number of that relation and its name.
    """

    columns: Sequence[OutputColumn]
    column_of_plan: Callable[[int, str], OutputColumn]
    variables: Mapping[str, Value] = field(default_factory=dict)

    def within(self, variables: Mapping[str, Value]) -> Scope:
        return replace(self, variables={**self.variables, **variables})

    def column(self, name: Name) -> tuple[OutputColumn, tuple[str, ...]]:
        """Return the column that a name means and the parts of it that follow. Raises Unsupported."""
        if name.plan is not None:
            return self.column_of_plan(name.plan, name.parts[0]), name.parts[1:]
        first, others = name.parts[0], name.parts[1:]
        of_alias = self.columns_of(first) if others else []
        if any(c.name.lower() == others[0].lower() for c in of_alias):
            return find_named(of_alias, others[0]), others[1:]
        return self._by_name.get(first) or find_named(self.columns, first), others

    @cached_property
    def _by_name(self) -> Mapping[str, OutputColumn]:
        """Columns whose names no other has in any case."""
        count = Counter(column.name.lower() for column in self.columns)
        return {column.name: column for column in self.columns if count[column.name.lower()] == 1}

    def columns_of(self, alias: str) -> list[OutputColumn]:
        return [column for column in self.columns if column.alias.lower() == alias.lower()]


def has_aggregate(nodes: Iterable[Node]) -> bool:
    return any(map(is_aggregate, nodes))


def is_aggregate(node: Node) -> bool:
    """Return whether `node` combines several rows, other than in a window."""
    while isinstance(node, Alias | Cast):
        node = node.child
    if isinstance(node, Name | Literal | OutputColumn):  # most nodes
        return False
    combines = isinstance(node, Call) and (node.name in aggregates.AGGREGATES or node.name in LIST_AGGREGATES)
    return combines or has_aggregate(parts_of(node))


def value_of(node: Node, scope: Scope) -> Value:
    """Return the SQL and the type of an expression. Raises Unsupported."""
    try:
        value = _value(node, scope)
    except (ValueError, LookupError) as error:
        call = node.call if isinstance(node, Over) else node
        raise unsupported(f"{call.name if isinstance(call, Call) else call} with these arguments") from error
    if len(value.sql) > LONGEST_SQL:
        raise unsupported("so long an expression")
    return value


def _value(node: Node, scope: Scope) -> Value:
    match node:
        case Literal():
            return functions.literal_value(node.value, node.type) if node.value is not None else _null(node.type)
        case Name() | OutputColumn():
            return _named(node, scope)
        case Alias():
            return value_of(node.child, scope)
        case Cast():
            value = value_of(node.child, scope)
            made = cast(value, node.type) if node.may_fail else try_cast(value, node.type)
            return replace(made, is_literal=False)  # no literal: beside a decimal, Spark counts all digits of its type
        case Over():
            return _window(node, scope)
        case Call():
            return _call(node, scope)
    raise unsupported(f"{type(node).__name__.lower()} in an expression")


def _call(node: Call, scope: Scope) -> Value:  # noqa: PLR0911 one return a form
    if node.ignores_nulls or (node.distinct and node.name not in aggregates.AGGREGATES):
        raise unsupported(f"{node.name} of distinct values or without nulls")
    match node:
        case Call("struct"):
            parts = expanded(node.arguments, scope)
            made = functions.struct([value_of(part, scope) for part in parts], [*map(name_of, parts)])
            return _with_metadata(made, parts, scope)
        case Call("named_struct", parts):
            return _with_metadata(functions.call(node.name, _arguments(node, scope)), parts[1::2], scope)
        case Call("sort_array", (Call("collect_list" | "array_agg", (of,), _, None, False), *rest)):
            return aggregates.sorted_list(value_of(of, scope), _direction(rest))
        case Call("sort_array", (Call("collect_set", (of,), _, None), *rest)):
            return aggregates.sorted_set(value_of(of, scope), _direction(rest))
        case Call(name, _) if name in aggregates.AGGREGATES:
            return aggregates.aggregate(name, _arguments(node, scope), _filter(node, scope), distinct=node.distinct)
        case Call("element_at", (Call("map", entries), key)):
            return _entry_of_written_map(entries, key, scope)
        case Call("transform" | "filter" | "exists" | "forall" | "aggregate" | "map_zip_with"):
            return _call_with_lambdas(node, scope)
        case Call("timestampadd" | "dateadd", (Name((unit,)), number, at)):
            return dates.add_units(unit, [value_of(number, scope), value_of(at, scope)])
        case Call("raise_error"):
            return Value("error('raised')", T.NullType())
    return functions.call(node.name, _arguments(node, scope))


def _direction(rest: Sequence[Node]) -> str:
    """`rest` are the further arguments of `sort_array`."""
    match rest:
        case [] | [Literal(True)]:
            return "ASC"
        case [Literal(False)]:
            return "DESC"
    raise ValueError


def _null(type_: T.DataType) -> Value:
    value = functions.literal_value(None, T.NullType())
    return value if isinstance(type_, T.NullType) else cast(value, type_)


def _arguments(node: Call, scope: Scope) -> list[Value]:
    starred = node.name == "count" and node.arguments in {(Star(),), (Literal(1, T.IntegerType()),)}
    if node.name == "count" and not node.arguments:
        raise unsupported("a count of nothing")
    if node.name in {"if", "when"}:
        return [_value_or_refusal(part, scope) for part in node.arguments]
    return [] if starred else [value_of(part, scope) for part in node.arguments]


def _value_or_refusal(node: Node, scope: Scope) -> Value:
    """Return the value of a branch; one that only Spark evaluates fails if a row takes it."""
    try:
        return value_of(node, scope)
    except Unsupported:
        if not isinstance(node, Cast):  # the type of other branches is unknown
            raise
        return cast(Value("error('only Spark')", T.NullType()), node.type)


def _filter(node: Call, scope: Scope) -> str:
    if node.where is None:
        return ""
    value = value_of(node.where, scope)
    require(value.type == BOOLEAN)
    return f" FILTER (WHERE {value.sql})"


def _call_with_lambdas(node: Call, scope: Scope) -> Value:
    depth = len(scope.variables)

    def body(function: Node) -> lists.Body:
        if not isinstance(function, Lambda):
            raise ValueError
        return lambda values: value_of(function.body, scope.within(dict(zip(function.parameters, values, strict=True))))

    match node:
        case Call("aggregate", (items, start, step, *finish)) if len(finish) <= 1:
            match items:
                case Call("collect_list", (item,), _, None, False):  # in any order: the state must not depend on it
                    listed = aggregates.sorted_list(value_of(item, scope), "ASC")
                case _:
                    listed = value_of(items, scope)
            last = body(finish[0]) if finish else None
            return lists.reduced(listed, value_of(start, scope), depth, body(step), last)
        case Call("map_zip_with", (left, right, merge)):
            return lists.zipped(value_of(left, scope), value_of(right, scope), depth, body(merge))
        case Call(name, (items, function)) if name in OVER_ITEMS:
            return OVER_ITEMS[name](value_of(items, scope), depth, body(function))
    raise ValueError


OVER_ITEMS: Final = {
    "transform": lists.transform,
    "filter": lists.filtered,
    "exists": lists.any_of,
    "forall": lists.all_of,
}


def _entry_of_written_map(entries: Sequence[Node], key: Node, scope: Scope) -> Value:
    """Return the value of a written map for a key, null if it has none."""
    keys = [node.value if isinstance(node, Literal) else None for node in entries[::2]]
    require(None not in keys and len({*keys}) == len(keys))
    branches = [Call("==", (key, node)) if n % 2 == 0 else node for n, node in enumerate(entries)]
    return value_of(Call("when", tuple(branches)), scope)


def _named(node: Name | OutputColumn, scope: Scope) -> Value:
    if isinstance(node, OutputColumn):
        return Value(node.sql, node.type)
    first, others = node.parts[0], node.parts[1:]
    if any(first.lower() == each.lower() and first != each for each in scope.variables):
        raise unsupported(f"the name {first} beside a parameter")
    if first in scope.variables and node.plan is None:
        value = scope.variables[first]
    else:
        column, others = scope.column(node)
        value = Value(column.sql, column.type)
    for part in others:
        value = functions.call(".", [value, Value(literal(part), T.StringType(), is_literal=True)])
    return value


def _window(node: Over, scope: Scope) -> Value:
    by = [value_of(part, scope) for part in node.by]
    require(not any(isinstance(value.type, T.MapType) for value in by))
    parts = [f"PARTITION BY {', '.join(value.sql for value in by)}"] if by else []
    order = [key for part in node.order for key in order_keys(part, scope)]
    parts += [f"ORDER BY {', '.join(order)}"] if order else []
    call = node.call
    if not isinstance(call, Call):
        raise ValueError
    over = f"{_filter(call, scope)} OVER ({' '.join([*parts, node.frame])})"
    values = _arguments(call, scope)
    if call.name in aggregates.WINDOW_FUNCTIONS:
        require(bool(node.order) and not call.distinct and (not node.frame or call.name in aggregates.FRAME_FUNCTIONS))
        skip = " IGNORE NULLS" if call.ignores_nulls else ""
        return checked_call(call.name, aggregates.WINDOW_FUNCTIONS[call.name], values, over, skip)
    require(not call.ignores_nulls and not call.distinct and (not node.frame or bool(node.order)))
    return aggregates.aggregate(call.name, values, over)


def order_keys(node: Sorted, scope: Scope) -> Iterator[str]:
    value = value_of(node.child, scope)
    direction = "DESC" if node.descending else "ASC"
    if isinstance(value.type, T.StructType) and node.nulls_first == node.descending:
        raise unsupported("an order of nested nulls")
    for key in operators.sort_keys(value):
        yield f"{key} {direction} NULLS {'FIRST' if node.nulls_first else 'LAST'}"


def expanded(nodes: Sequence[Node], scope: Scope) -> list[Node]:
    return [part for node in nodes for part in (_starred(node, scope) if isinstance(node, Star) else [node])]


def _starred(star: Star, scope: Scope) -> Sequence[Node]:
    if star.excluded and star.target:
        raise unsupported("some columns of a relation")
    if not star.target:
        without = [find_named(scope.columns, name) for name in star.excluded]
        return [column for column in scope.columns if column not in without]
    if len(star.target) == 1 and (columns := scope.columns_of(star.target[0])):
        if any(column.is_partial for column in columns):
            raise unsupported("a column that a join by names hides")
        return columns
    type_ = value_of(Name(star.target), scope).type
    if not isinstance(type_, T.StructType):
        raise unsupported(f"{'.'.join(star.target)}.*")
    return [Name((*star.target, part.name)) for part in type_]


def column_of(node: Node, scope: Scope, sql: str) -> tuple[str, OutputColumn]:
    """Return the SQL of an expression and the column `sql` that it becomes. Raises Unsupported without a name."""
    value, name = value_of(node, scope), name_of(node)
    if isinstance(value.type, T.DayTimeIntervalType | T.YearMonthIntervalType):
        raise unsupported("a column of intervals")
    if name is None:
        raise unsupported(f"a column without a name, {str(node)[:100]}")
    if origin := _column_itself(node, scope):
        return value.sql, replace(origin, sql=sql)
    return value.sql, OutputColumn(
        name, value.type, sql, _metadata(node, scope), scan_columns=columns_read([node], scope)
    )


def _column_itself(node: Node, scope: Scope) -> OutputColumn | None:
    if isinstance(node, Name) and node.parts[0] not in scope.variables:
        column, parts = scope.column(node)
        return None if parts else column
    return node if isinstance(node, OutputColumn) else None


def columns_read(nodes: Iterable[Node], scope: Scope) -> frozenset[str]:
    """Return the columns of scans that the values of expressions may depend on. Raises Unsupported."""
    if not any(column.scan_columns for column in scope.columns):
        return frozenset()
    return frozenset[str]().union(*(column.scan_columns for node in nodes for column in _columns_named(node, scope)))


def _columns_named(node: Node, scope: Scope) -> Iterator[OutputColumn]:
    match node:
        case OutputColumn():
            yield node
        case Name():
            if node.parts[0] not in scope.variables:
                yield scope.column(node)[0]
        case Lambda():
            parameters = dict.fromkeys(node.parameters, _null(T.NullType()))
            yield from _columns_named(node.body, scope.within(parameters))
        case Call("timestampadd" | "dateadd", (Name(), *others)):  # the name is a unit
            for part in others:
                yield from _columns_named(part, scope)
        case Call("count", (Star(),), _, where):
            yield from _columns_named(where, scope) if where else ()
        case Star():
            for part in expanded([node], scope):
                yield from _columns_named(part, scope)
        case _:
            for part in parts_of(node):
                yield from _columns_named(part, scope)


def _metadata(node: Node, scope: Scope) -> str:
    """Return the metadata of the column, or part of one, that an expression hands on."""
    match node:
        case Alias():
            return node.metadata or _metadata(node.child, scope)
        case OutputColumn():
            return node.metadata
        case Name(parts) if parts[0] not in scope.variables:
            column, inner = scope.column(node)
            if not inner:
                return column.metadata
            of, part = value_of(replace(node, parts=parts[:-1]), scope).type, inner[-1]
        case Call(".", (whole, Literal(value=str(part)))):
            of = value_of(whole, scope).type
        case _:
            return ""
    found = of[part].metadata if isinstance(of, T.StructType) else {}
    return json.dumps(found) if found else ""


def _with_metadata(value: Value, parts: Sequence[Node], scope: Scope) -> Value:
    assert isinstance(value.type, T.StructType)
    pairs = [(of, _metadata(part, scope)) for of, part in zip(value.type, parts, strict=True)]
    fields = [T.StructField(of.name, of.dataType, metadata=json.loads(found or "{}")) for of, found in pairs]
    return replace(value, type=T.StructType(fields))
