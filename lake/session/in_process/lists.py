"""Spark's functions of arrays and maps that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.casts import cast
from lake.session.in_process.operators import sort_keys
from lake.session.in_process.signatures import (
    SAME,
    Function,
    accepted,
    constant_number,
    of_kinds,
    of_types,
    require,
    type_of_first,
    typed,
    unless_null,
)
from lake.session.in_process.types import (
    BOOLEAN,
    INT,
    LONG,
    TEXT,
    Value,
    common_type,
    duckdb_type,
    has_float,
    is_exact_scalar,
    is_integer,
    let,
    once,
)

LONGEST_SEQUENCE: Final = 100_000
"""Most elements of a sequence, which memory holds."""
Body = Callable[[Sequence[Value]], Value]
"""Body of a lambda: its value for those of its parameters."""


def element_type(value: Value) -> T.DataType:
    match value.type:
        case T.ArrayType(elementType=type_):
            return type_
    raise ValueError


def variable(depth: int, type_: T.DataType) -> Value:
    """Return the parameter of a lambda within `depth` others."""
    return Value(f"l{depth}", type_)


def transform(of: Value, depth: int, body: Body) -> Value:
    item = variable(depth, element_type(of))
    made = body([item])
    return Value(f"list_transform({of.sql}, lambda {item.sql}: {made.sql})", T.ArrayType(made.type))


def filtered(of: Value, depth: int, body: Body) -> Value:
    item = variable(depth, element_type(of))
    made = body([item])
    require(made.type == BOOLEAN)
    return Value(f"list_filter({of.sql}, lambda {item.sql}: {made.sql})", of.type)


def reduced(of: Value, start: Value, depth: int, body: Body, finish: Body | None) -> Value:
    """Return the result of `finish` of the last state; `body` makes each state of the last one and an item."""
    state, item = variable(depth, start.type), variable(depth + 1, element_type(of))
    made = body([state, item])
    require(made.type == start.type)
    first = f"CAST({start.sql} AS {duckdb_type(start.type)})"
    last = Value(f"list_reduce({of.sql}, lambda {state.sql}, {item.sql}: {made.sql}, {first})", start.type)
    if finish is None:
        return last
    ended = finish([state])
    return Value(let(state.sql, last.sql, ended.sql), ended.type)


def zipped(left: Value, right: Value, depth: int, body: Body) -> Value:
    """Return a map of what `body` makes of each key and its values, null if a map lacks it; keys of `left` first.

    The entries of both are sorted by key, so that those with one key are neighbours, and then by their first places.
    """
    key, one = _types_of_map(left)
    other_key, other = _types_of_map(right)
    require(key == other_key)
    item, entry = f"l{depth}", "struct_pack(key := e.key, place := i"
    made = body([Value(f"{item}.key", key), Value(f"{item}.x", one), Value(f"{item}.y", other)])
    no_x, no_y = (f"CAST(NULL AS {duckdb_type(type_)})" for type_ in (one, other))
    first = f"list_transform(map_entries({left.sql}), lambda e, i: {entry}, x := e.value, y := {no_y}))"
    second = f"list_transform(map_entries({right.sql}), lambda e, i: {entry} + {1 << 40}, x := {no_x}, y := e.value))"
    y = "CASE WHEN s[i + 1].key = e.key THEN s[i + 1].y ELSE e.y END"
    pair = f"struct_pack(place := e.place, key := e.key, x := e.x, y := {y})"
    pairs = f"list_transform(s, lambda e, i: CASE WHEN s[i - 1].key IS DISTINCT FROM e.key THEN {pair} END)"
    joined = let("s", f"list_sort(list_concat({first}, {second}))", f"list_filter({pairs}, lambda e: e IS NOT NULL)")
    entries = f"list_transform(list_sort({joined}), lambda {item}: struct_pack(key := {item}.key, value := {made.sql}))"
    known = f"{left.sql} IS NOT NULL AND {right.sql} IS NOT NULL"
    return Value(f"CASE WHEN {known} THEN map_from_entries({entries}) END", T.MapType(key, made.type))


def _types_of_map(of: Value) -> tuple[T.DataType, T.DataType]:
    match of.type:
        case T.MapType(keyType=key, valueType=value):
            return key, value
    raise ValueError


def _map_of_entries(values: Sequence[Value]) -> T.DataType:
    match element_type(values[0]):
        case T.StructType(fields=[key, value]) if is_exact_scalar(key.dataType):
            return T.MapType(key.dataType, value.dataType)
    raise ValueError


def _entries_of_map(values: Sequence[Value]) -> T.DataType:
    key, value = _types_of_map(values[0])
    return T.ArrayType(T.StructType([T.StructField("key", key), T.StructField("value", value)]))


def _sequence(values: Sequence[Value]) -> Value:
    type_ = common_type([value.type for value in values])
    require(is_integer(type_))
    first, last, *step = (cast(value, type_).sql for value in values)
    widest = f"CAST({first} AS HUGEINT) + {LONGEST_SEQUENCE} * {step[0] if step else 1}"
    upwards = f"{first} <= {last} AND {last} < {widest}" + (f" AND {step[0]} > 0" if step else "")
    series = f"generate_series({', '.join([first, last, *step])})"
    of = T.ArrayType(type_)
    unknown = " OR ".join(f"{sql} IS NULL" for sql in (first, last, *step))
    made = f"CAST({series} AS {duckdb_type(of)})"
    return Value(f"CASE WHEN {unknown} THEN NULL WHEN {upwards} THEN {made} ELSE error('downwards') END", of)


def _sorted(nulls: str) -> Function:
    def sort(values: Sequence[Value]) -> Value:
        [of] = values
        type_ = element_type(of)
        keys = sort_keys(Value("e", type_))
        if not isinstance(type_, T.StructType):
            return Value(f"list_sort({of.sql}, 'ASC', 'NULLS {nulls}')", of.type)
        require(nulls == "FIRST" and not has_float(type_))
        parts = ", ".join(f"k{n} := ({key}) IS NOT NULL, v{n} := {key}" for n, key in enumerate(keys))
        keyed = f"list_transform({of.sql}, lambda e: struct_pack({parts}, e := e))"
        return Value(f"list_transform(list_sort({keyed}, 'ASC', 'NULLS FIRST'), lambda e: e.e)", of.type)

    return sort


def _has_distinct(of: Value) -> bool:
    """Return whether DuckDB finds equal elements as Spark does, unless one is null."""
    return bool(sort_keys(Value("", element_type(of)))) and not has_float(of.type)


def any_of(of: Value, depth: int, body: Body) -> Value:
    """Return whether `body` is true of an type_of_element, null if it is null of one and true of none."""
    return _quantified(transform(of, depth, body), "true")


def all_of(of: Value, depth: int, body: Body) -> Value:
    return _quantified(transform(of, depth, body), "false")


def _quantified(answers: Value, decisive: str) -> Value:
    require(answers.type == T.ArrayType(BOOLEAN))
    other = {"true": "false", "false": "true"}[decisive]

    def decided(x: str) -> str:
        is_unknown = f"len({x}) > list_count({x}) OR {x} IS NULL"
        return f"CASE WHEN list_contains({x}, {decisive}) THEN {decisive} WHEN {is_unknown} THEN NULL ELSE {other} END"

    return Value(once(answers.sql, decided), BOOLEAN)


def type_of_element(values: Sequence[Value]) -> T.DataType:
    """Return the type of the elements of the first argument."""
    return element_type(values[0])


ARRAY: Final = of_kinds(T.ArrayType)
ARRAYS: Final = accepted(lambda value, _: isinstance(element_type(value), T.ArrayType))
COMPARABLE: Final = accepted(lambda value, _: is_exact_scalar(element_type(value)))
"""An array among whose elements a value is found."""
WITH_DISTINCT: Final = accepted(lambda value, _: _has_distinct(value))
ELEMENT: Final = accepted(lambda value, first: value.type == element_type(first))
"""A value of the type of the first argument's elements."""
PLACE: Final = constant_number(lambda place: 0 <= place < (1 << 31) - 1)
POSITIVE: Final = constant_number(lambda place: place > 0)
NON_ZERO: Final = constant_number(bool)
OUTSIDE: Final = "error('an element outside')"
DISTINCT: Final = (
    "CASE WHEN len(list_filter({0}, lambda l: l IS NULL)) > 0 THEN error('a null')"
    " ELSE list_filter({0}, lambda l, i: list_position({0}, l) = i) END"
)
"""First of equal elements; without nulls, which DuckDB's search does not find."""
FOUND: Final = (
    "CASE WHEN list_contains({0}, {1}) THEN true"
    " WHEN {1} IS NULL OR len({0}) > list_count({0}) OR {0} IS NULL THEN NULL ELSE false END"
)
FUNCTIONS: Final[dict[str, Function]] = {
    "[]": typed(
        f"CASE WHEN len({{0}}) < {{1}} + 1 THEN {OUTSIDE} ELSE {{0}}[{{1}} + 1] END", type_of_element, ARRAY, PLACE
    ),
    "element_at": typed(
        f"CASE WHEN len({{0}}) < abs({{1}}) THEN {OUTSIDE} ELSE {{0}}[{{1}}] END", type_of_element, ARRAY, NON_ZERO
    ),
    "get": typed("{0}[{1} + 1]", type_of_element, ARRAY, PLACE),
    "map_entries": typed("map_entries({0})", _entries_of_map, of_kinds(T.MapType)),
    "map_from_entries": typed("map_from_entries({0})", _map_of_entries, ARRAY),
    "sequence": _sequence,
    **dict.fromkeys(("size", "cardinality", "array_size"), typed("CAST(len({0}) AS INTEGER)", INT, ARRAY)),
    "array_contains": typed(FOUND, BOOLEAN, COMPARABLE, ELEMENT),
    "array_position": typed(
        unless_null("CAST(coalesce(list_position({0}, {1}), 0) AS BIGINT)", 0, 1), LONG, COMPARABLE, ELEMENT
    ),
    "array_remove": typed(
        unless_null("list_filter({0}, lambda r: r IS NULL OR r <> {1})", 1), type_of_first, COMPARABLE, ELEMENT
    ),
    "array_join": typed(
        unless_null("coalesce(array_to_string({0}, {1}), '')", 0, 1), TEXT, of_types(T.ArrayType(TEXT)), TEXT
    ),
    "array_max": typed("list_max({0})", type_of_element, COMPARABLE),
    "array_min": typed("list_min({0})", type_of_element, COMPARABLE),
    "array_compact": typed("list_filter({0}, lambda r: r IS NOT NULL)", type_of_first, ARRAY),
    "slice": typed("{0}[{1}:{1} + {2} - 1]", type_of_first, ARRAY, POSITIVE, PLACE),
    "flatten": typed("CASE WHEN len({0}) = list_count({0}) THEN flatten({0}) END", type_of_element, ARRAYS),
    "sort_array": _sorted("FIRST"),
    "array_sort": _sorted("LAST"),
    "array_distinct": typed(DISTINCT, type_of_first, WITH_DISTINCT),
    "array_union": typed(
        DISTINCT.replace("{0}", unless_null("list_concat({0}, {1})", 0, 1)), type_of_first, WITH_DISTINCT, SAME
    ),
    **{
        name: typed(
            unless_null(f"list_filter({DISTINCT}, lambda d: {condition} list_contains({{1}}, d))", 1),
            *(type_of_first, WITH_DISTINCT, SAME),
        )
        for name, condition in (("array_except", "NOT"), ("array_intersect", ""))
    },
}
