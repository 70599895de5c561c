"""Functions of arrays and maps of Spark that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import BOOLEAN, INT, LONG, TEXT, Function, sort_keys, whole
from lake.session.in_process.types import Value, cast, common_type, duckdb_type, has_float, is_integer, let, once

NESTED: Final = (T.StructType, T.ArrayType, T.MapType, T.NullType)
LONGEST: Final = 100_000
"""Elements of a sequence that are held in memory."""
UNLESS_KNOWN: Final = "WHEN {0} OR {1} IS NULL THEN NULL ELSE {2} END"
Body = Callable[[Sequence[Value]], Value]
"""A lambda: the value for values of its parameters."""


def element_type(value: Value) -> T.DataType:
    if not isinstance(value.type, T.ArrayType):
        raise unsupported(f"a {value.type.simpleString()} as array")
    return value.type.elementType


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
    if not isinstance(made.type, T.BooleanType):
        raise unsupported("a filter by another value than true and false")
    return Value(f"list_filter({of.sql}, lambda {item.sql}: {made.sql})", of.type)


def reduced(of: Value, start: Value, depth: int, body: Body, finish: Body | None) -> Value:
    """Return the last state: `body` makes it of the one before and an item, `finish` something of the last."""
    state, item = variable(depth, start.type), variable(depth + 1, element_type(of))
    made = body([state, item])
    if made.type != start.type:
        raise unsupported("a state that changes its type")
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
    if other_key != key:
        raise unsupported("maps with keys of several types")
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
    if not isinstance(of.type, T.MapType):
        raise unsupported(f"a {of.type.simpleString()} as map")
    return of.type.keyType, of.type.valueType


def _map_from_entries(values: Sequence[Value]) -> Value:
    [of] = values
    type_ = element_type(of)
    if not isinstance(type_, T.StructType) or len(type_) != 2:
        raise unsupported("map_from_entries of other values")
    key, value = (field.dataType for field in type_)
    if isinstance(key, NESTED) or has_float(key):
        raise unsupported(f"keys of a map of type {key.simpleString()}")
    return Value(f"map_from_entries({of.sql})", T.MapType(key, value))


def _map_entries(values: Sequence[Value]) -> Value:
    [of] = values
    key, value = _types_of_map(of)
    entry = T.StructType([T.StructField("key", key), T.StructField("value", value)])
    return Value(f"map_entries({of.sql})", T.ArrayType(entry))


def _element(values: Sequence[Value]) -> Value:
    """Return an element by a constant place from 0; there must be one."""
    of, key = values
    return _at(of, max(whole(key), -1) + 1)


def _element_at(values: Sequence[Value]) -> Value:
    """Return an element by a constant place from 1, or from the end by a negative one; there must be one."""
    of, key = values
    return _at(of, whole(key))


def _at(of: Value, place: int) -> Value:
    type_ = element_type(of)
    if not place:
        raise unsupported("an element at no place")
    known = f"len({of.sql}) < {abs(place)} THEN error('an element outside')"
    return Value(f"CASE WHEN {known} ELSE {of.sql}[{place}] END", type_)


def _sequence(values: Sequence[Value]) -> Value:
    type_ = common_type([value.type for value in values])
    if not is_integer(type_):
        raise unsupported("a sequence of other values")
    first, last, *step = (cast(value, type_).sql for value in values)
    widest = f"CAST({first} AS HUGEINT) + {LONGEST} * {step[0] if step else 1}"
    upwards = f"{first} <= {last} AND {last} < {widest}" + (f" AND {step[0]} > 0" if step else "")
    series = f"generate_series({', '.join([first, last, *step])})"
    of = T.ArrayType(type_)
    unknown = " OR ".join(f"{sql} IS NULL" for sql in (first, last, *step))
    made = f"CAST({series} AS {duckdb_type(of)})"
    return Value(f"CASE WHEN {unknown} THEN NULL WHEN {upwards} THEN {made} ELSE error('downwards') END", of)


def _size(values: Sequence[Value]) -> Value:
    element_type(values[0])
    return Value(f"CAST(len({values[0].sql}) AS INTEGER)", INT)


def _sorted(nulls: str) -> Function:
    def sort(values: Sequence[Value]) -> Value:
        [of] = values
        type_ = element_type(of)
        keys = sort_keys(Value("e", type_))
        if not isinstance(type_, T.StructType):
            return Value(f"list_sort({of.sql}, 'ASC', 'NULLS {nulls}')", of.type)
        if nulls == "LAST" or has_float(type_):
            raise unsupported("a sorted array of these structs")
        parts = ", ".join(f"k{n} := ({key}) IS NOT NULL, v{n} := {key}" for n, key in enumerate(keys))
        keyed = f"list_transform({of.sql}, lambda e: struct_pack({parts}, e := e))"
        return Value(f"list_transform(list_sort({keyed}, 'ASC', 'NULLS FIRST'), lambda e: e.e)", of.type)

    return sort


def _distinct(values: Sequence[Value]) -> Value:
    """Return the first of equal elements; without nulls, which DuckDB's search does not find."""
    [of] = values
    sort_keys(Value("", element_type(of)))
    if has_float(of.type):
        raise unsupported("different fractions")
    no_null = f"len(list_filter({of.sql}, lambda l: l IS NULL)) > 0 THEN error('a null')"
    first = f"list_filter({of.sql}, lambda l, i: list_position({of.sql}, l) = i)"
    return Value(f"CASE WHEN {no_null} ELSE {first} END", of.type)


def _selected(condition: str) -> Function:
    """Return a function of two arrays: the different elements of the first that are, or are not, in the second."""

    def select(values: Sequence[Value]) -> Value:
        left, right = values
        if left.type != right.type:
            raise unsupported("a selection by another array")
        chosen = f"list_filter({_distinct([left]).sql}, lambda d: {condition} list_contains({right.sql}, d))"
        return Value(f"CASE WHEN {right.sql} IS NOT NULL THEN {chosen} END", left.type)

    return select


def _union(values: Sequence[Value]) -> Value:
    left, right = values
    if left.type != right.type:
        raise unsupported("a union of other arrays")
    both = f"CASE WHEN {left.sql} IS NOT NULL AND {right.sql} IS NOT NULL THEN list_concat({left.sql}, {right.sql}) END"
    return _distinct([Value(both, left.type)])


def _comparable(of: Value, *others: Value) -> None:
    """Raise Unsupported unless the elements are of one type, of which equal values are the same."""
    type_ = element_type(of)
    if isinstance(type_, NESTED) or has_float(type_) or any(value.type != type_ for value in others):
        raise unsupported("a search of other values")


def _contains(values: Sequence[Value]) -> Value:
    of, value = values
    _comparable(of, value)
    has_null = f"{value.sql} IS NULL OR len({of.sql}) > list_count({of.sql})"
    unknown = UNLESS_KNOWN.format(has_null, of.sql, "false")
    return Value(f"CASE WHEN list_contains({of.sql}, {value.sql}) THEN true {unknown}", BOOLEAN)


def any_of(of: Value, depth: int, body: Body) -> Value:
    """Return whether `body` is true of an element, null if it is null of one and true of none."""
    return _quantified(transform(of, depth, body), "true")


def all_of(of: Value, depth: int, body: Body) -> Value:
    return _quantified(transform(of, depth, body), "false")


def _quantified(answers: Value, decisive: str) -> Value:
    if answers.type != T.ArrayType(BOOLEAN):
        raise unsupported("a condition of another type")
    other = {"true": "false", "false": "true"}[decisive]

    def decided(x: str) -> str:
        unknown = UNLESS_KNOWN.format(f"len({x}) > list_count({x})", x, other)
        return f"CASE WHEN list_contains({x}, {decisive}) THEN {decisive} {unknown}"

    return Value(once(answers.sql, decided), BOOLEAN)


def _position(values: Sequence[Value]) -> Value:
    of, value = values
    _comparable(of, value)
    known = f"{of.sql} IS NOT NULL AND {value.sql} IS NOT NULL"
    return Value(f"CASE WHEN {known} THEN CAST(coalesce(list_position({of.sql}, {value.sql}), 0) AS BIGINT) END", LONG)


def _without(values: Sequence[Value]) -> Value:
    of, value = values
    _comparable(of, value)
    kept = f"list_filter({of.sql}, lambda r: r IS NULL OR r <> {value.sql})"
    return Value(f"CASE WHEN {value.sql} IS NOT NULL THEN {kept} END", of.type)


def _joined(values: Sequence[Value]) -> Value:
    of, separator = values
    if of.type != T.ArrayType(TEXT) or separator.type != TEXT:
        raise unsupported("array_join of other values")
    known = f"{of.sql} IS NOT NULL AND {separator.sql} IS NOT NULL"
    return Value(f"CASE WHEN {known} THEN coalesce(array_to_string({of.sql}, {separator.sql}), '') END", TEXT)


def _extreme(pick: str) -> Function:
    def choose(values: Sequence[Value]) -> Value:
        [of] = values
        _comparable(of)
        return Value(f"list_{pick}({of.sql})", element_type(of))

    return choose


def _slice(values: Sequence[Value]) -> Value:
    of, start, size = values
    first, length = whole(start), whole(size)
    if first < 1 or length < 0 or first + length > 1 << 31:
        raise unsupported("a part of an array at other places")
    element_type(of)
    return Value(f"{of.sql}[{first}:{first + length - 1}]", of.type)


def _flattened(values: Sequence[Value]) -> Value:
    [of] = values
    element_type(Value("", element_type(of)))
    return Value(f"CASE WHEN len({of.sql}) = list_count({of.sql}) THEN flatten({of.sql}) END", element_type(of))


def _got(values: Sequence[Value]) -> Value:
    """Return an element by a constant place from 0, null if there is none."""
    of, key = values
    if whole(key) < 0:
        raise unsupported("an element before the first")
    return Value(f"{of.sql}[{whole(key) + 1}]", element_type(of))


def _compact(values: Sequence[Value]) -> Value:
    [of] = values
    element_type(of)
    return Value(f"list_filter({of.sql}, lambda r: r IS NOT NULL)", of.type)


FUNCTIONS: Final[dict[str, Function]] = {
    "[]": _element,
    "element_at": _element_at,
    "map_entries": _map_entries,
    "map_from_entries": _map_from_entries,
    "sequence": _sequence,
    **dict.fromkeys(("size", "cardinality", "array_size"), _size),
    "array_contains": _contains,
    "array_position": _position,
    "array_remove": _without,
    "array_join": _joined,
    "array_max": _extreme("max"),
    "array_min": _extreme("min"),
    "array_compact": _compact,
    "slice": _slice,
    "flatten": _flattened,
    "get": _got,
    "sort_array": _sorted("FIRST"),
    "array_sort": _sorted("LAST"),
    "array_distinct": _distinct,
    "array_union": _union,
    "array_except": _selected("NOT"),
    "array_intersect": _selected(""),
}
