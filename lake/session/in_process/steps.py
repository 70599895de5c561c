"""Steps of a query, such as a filter or a join: each makes a relation of one or two others.

`relations` and `queries` call them. Each relation becomes a common table expression with columns c0, c1 …, because
names may repeat in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import types as T

from lake.session.in_process.casts import cast
from lake.session.in_process.expressions import (
    Scope,
    column_of,
    columns_read,
    has_aggregate,
    is_aggregate,
    order_keys,
    value_of,
)
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import EQUAL, as_comparable
from lake.session.in_process.relation import Relation
from lake.session.in_process.tree import (
    Alias,
    Call,
    Cast,
    Literal,
    Name,
    Node,
    OutputColumn,
    Sorted,
    find_named,
    has_window,
    subtree,
    with_parts,
)
from lake.session.in_process.types import (
    Value,
    common_type,
    has_float,
    is_exact_scalar,
    is_float,
    is_groupable,
    is_number,
)


def filtered(rows: Relation, node: Node) -> Relation:
    if is_aggregate(node):
        raise unsupported("a filter by several rows")
    scope = rows.scope
    where = _condition(value_of(node, scope))
    return rows.then(f"SELECT * FROM {rows.name} WHERE {where}", filtered_by=columns_read([node], scope))


def in_subquery(rows: Relation, node: Node, others: Relation) -> Relation:
    """Return the rows for which the value of `node` is one of `others`, which have one column."""
    scope, value = rows.scope, value_of(node, rows.scope)
    types = {value.type, *(column.type for column in others.columns)}
    if not all(map(is_exact_scalar, types)) or len({*map(_kind, types)}) > 1:
        raise unsupported("in of a query of such values")
    if len(others.columns) != 1:
        raise unsupported("in of a query of several columns")
    one, other = as_comparable([value, *(Value(column.sql, column.type) for column in others.columns)])
    sql = f"SELECT * FROM {rows.name} WHERE {one.sql} IN (SELECT {other.sql} FROM {others.name})"
    read = columns_read([node], scope) | _scan_columns(others.columns)
    return Relation(sql, rows.columns, (rows, others), rows.plans, operator="Join", filtered_by=read)


def aliased(rows: Relation, alias: str) -> Relation:
    columns = tuple(replace(column, alias=alias, is_partial=False) for column in rows.columns)
    return rows.then(f"SELECT * FROM {rows.name}", columns)


def distinct(rows: Relation) -> Relation:
    if not all(is_groupable(column.type) for column in rows.columns):
        raise unsupported("distinct rows with fractions or maps")
    read = _scan_columns(rows.columns)
    return rows.then(f"SELECT DISTINCT * FROM {rows.name}", operator="Deduplicate", filtered_by=read)


def ordered(rows: Relation, terms: Sequence[Sorted]) -> Relation:
    if not all(map(_has_column, terms)):
        raise unsupported("an order by a constant")
    scope = rows.scope
    order = ", ".join(key for term in terms for key in order_keys(term, scope))
    read = columns_read(terms, scope)
    return rows.then(f"SELECT * FROM {rows.name}", order=order, operator="Sort", filtered_by=read)


def limited(rows: Relation, limit: int) -> Relation:
    """Return the first rows. The query fails if rows of equal keys differ across the limit.

    Without an order, all keys are equal.
    """
    sql = f"SELECT * FROM {rows.name} LIMIT {limit}"
    if not rows.order and rows.was_ordered:
        raise unsupported("a limit some steps after an order")
    if limit and rows.columns:
        shown = ", ".join(column.sql for column in rows.columns)
        order, whole = (f"ORDER BY {rows.order}", f"{rows.order}, {shown}") if rows.order else ("", shown)
        ranks = f"rank() OVER ({order}) AS place, rank() OVER (ORDER BY {whole}) AS whole"
        differ = f"count(*) OVER () > {limit} AND max(whole) OVER () > max(place) OVER ()"
        known = f"WHERE place <= {limit} QUALIFY CASE WHEN {differ} THEN error('equal keys') ELSE true END"
        sql = f"SELECT {shown} FROM (SELECT *, {ranks} FROM {rows.name}) {known} ORDER BY place LIMIT {limit}"
    return rows.then(sql, order=rows.order, operator="GlobalLimit")


def joined(left: Relation, right: Relation, kind: str, by: Node | Sequence[str] | None) -> Relation:
    """Return the join of DuckDB's `kind`: by a condition, by columns of the same names, or of all pairs."""
    both = _side_by_side(left, right)
    of_right = both.columns[len(left.columns) :]
    pairs = _pairs(left.columns, of_right, kind, by) if isinstance(by, Sequence) else []
    terms = [EQUAL([Value(c.sql, c.type) for c in pair]).sql for pair in pairs]
    read = _scan_columns([c for pair in pairs for c in pair])
    if by is not None and not isinstance(by, Sequence):
        scope, by = both.scope, _with_sides(by, left, right, both)
        terms, read = [_condition(value_of(by, scope))], columns_read([by], scope)
    renamed = [f"{old.sql} AS {new.sql}" for old, new in zip(right.columns, of_right, strict=True)]
    other = f"(SELECT {', '.join(renamed) or '1'} FROM {right.name})"
    keys, hidden = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    columns = [*keys, *(c for c in left.columns if c not in keys)]
    if kind not in {"SEMI", "ANTI"}:
        partial, columns = {c.alias.lower() for c in hidden}, [*columns, *(c for c in of_right if c not in hidden)]
        columns = [replace(c, is_partial=c.is_partial or c.alias.lower() in partial) for c in columns]
    shown = ", ".join(column.sql for column in columns) or "1 AS no_column"
    sql = f"SELECT {shown} FROM {left.name} {kind} JOIN {other} ON {' AND '.join(terms) or 'true'}"
    return Relation(sql, tuple(columns), (left, right), both.plans, operator="Join", filtered_by=read)


def _with_sides(node: Node, left: Relation, right: Relation, both: Relation) -> Node:
    """Return a condition with `a.x == b.x`, of two relations that have one column x, as the equality of each side's x.

    Spark without a server refuses other uses of such a column as ambiguous.
    """

    def ids(name: Name) -> set[int]:
        known = [side.plans.get(name.plan or 0, ()) for side in (left, right)]
        return {column.id for columns in known for column in columns if (column.name,) == name.parts}

    match node:
        case Call("and"):
            return with_parts(node, lambda part: _with_sides(part, left, right, both))
        case Call("==" | "<=>", (Name(plan=int()) as one, Name(plan=int()) as other)):
            meant, old = ids(one), (*left.columns, *right.columns)
            sides = tuple(new for column, new in zip(old, both.columns, strict=True) if meant == {column.id})
            return replace(node, arguments=sides) if meant == ids(other) and len(sides) == 2 else node
    return node


def _scan_columns(columns: Iterable[OutputColumn]) -> frozenset[str]:
    return frozenset[str]().union(*(column.scan_columns for column in columns))


def _pairs(
    left: Sequence[OutputColumn], right: Sequence[OutputColumn], kind: str, names: Sequence[str]
) -> list[tuple[OutputColumn, OutputColumn]]:
    if kind in {"RIGHT", "FULL"} or len({*names}) < len(names):
        raise unsupported(f"a {kind.lower()} join by these names")
    pairs = [(find_named(left, name), find_named(right, name)) for name in names]
    if {column.name.lower() for column in (*left, *right)} & {of_right.alias.lower() for _, of_right in pairs}:
        raise unsupported("a join by names with a column named like a relation")
    return pairs


def _condition(value: Value) -> str:
    if not isinstance(value.type, T.BooleanType):
        raise unsupported(f"a {value.type.simpleString()} as condition")
    return value.sql


def selected(rows: Relation, nodes: Sequence[Node]) -> Relation:
    scope = rows.scope
    columns, texts, lists = list[OutputColumn](), list[str](), list[Node]()
    is_windowed = any(has_window(node) for node in nodes if not isinstance(node, Name | OutputColumn))
    for number, node in enumerate(nodes):
        sql = f"c{number}"
        if isinstance(node, OutputColumn) and node.name:
            text, column = node.sql, replace(node, sql=sql)
        elif list_ := _exploded(node):
            if lists or is_windowed:
                raise unsupported("explode beside another, or a window")
            lists.append(list_)
            text, column = _unnested(list_, scope, node, sql)
        else:
            text, column = column_of(node, scope, sql)
        texts.append(f"{text} AS {sql}")
        columns.append(column)
    sql = f"SELECT {', '.join(texts) or '1 AS no_column'} FROM {rows.name}"
    operator = "Window" if is_windowed else ""
    read = columns_read(lists, scope) if lists else frozenset[str]()
    return rows.then(sql, columns, operator=operator, filtered_by=read)


def _exploded(node: Node) -> Node | None:
    inner = node.child if isinstance(node, Alias) else node
    return inner.arguments[0] if isinstance(inner, Call) and inner.name == "explode" else None


def _unnested(list_: Node, scope: Scope, node: Node, sql: str) -> tuple[str, OutputColumn]:
    value, read = value_of(list_, scope), columns_read([list_], scope)
    if not isinstance(value.type, T.ArrayType) or not isinstance(node, Alias):
        raise unsupported("explode of no array, or without an alias")
    return f"unnest({value.sql})", OutputColumn(node.name, value.type.elementType, sql, scan_columns=read)


def aggregated(rows: Relation, by: Sequence[Node], nodes: Sequence[Node]) -> Relation:
    scope = rows.scope
    columns, texts, groups = list[OutputColumn](), list[str](), list[str]()
    if not by and not has_aggregate(nodes):
        raise unsupported("an aggregate of nothing")
    for number, node in enumerate([*by, *nodes]):
        text, column = column_of(node, scope, f"c{number}")
        if number < len(by):
            if not is_groupable(column.type) or isinstance(column.type, T.NullType) or not _has_column(node):
                raise unsupported(f"groups of {column.type.simpleString()}, or of a constant")
            groups.append(text)
        elif not is_aggregate(node) and _has_column(node):
            raise unsupported("an aggregate without a function of several rows")
        texts.append(f"{text} AS {column.sql}")
        columns.append(column)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    sql = f"SELECT {', '.join(texts) or '1 AS no_column'} FROM {rows.name}{grouped}"
    read = _scan_columns(columns[: len(by)])
    return rows.then(sql, columns, operator="Aggregate", filtered_by=read)


def _has_column(node: Node) -> bool:
    return any(isinstance(part, Name | OutputColumn) for part in subtree(node))


def united(
    left: Relation,
    right: Relation,
    pairs: Sequence[tuple[OutputColumn | None, OutputColumn | None]],
    sign: str = "UNION ALL",
) -> Relation:
    """Return the rows of both, or those that `sign` leaves of the left."""
    columns, first, second = list[OutputColumn](), list[str](), list[str]()
    for number, (one, other) in enumerate(pairs):
        known = [column for column in (one, other) if column is not None]
        type_ = common_type([column.type for column in known])
        columns.append(replace(known[0], type=type_, sql=f"c{number}", alias="", scan_columns=_scan_columns(known)))
        for texts, column in ((first, one), (second, other)):
            value = Value("NULL", T.NullType()) if column is None else Value(column.sql, column.type)
            texts.append(f"{cast(value, type_).sql} AS c{number}")
    sql = f"SELECT {', '.join(first)} FROM {left.name} {sign} SELECT {', '.join(second)} FROM {right.name}"
    operator = sign.partition(" ")[0].capitalize()
    made = Relation(sql, tuple(columns), (left, right), left.plans, operator=operator)
    return made if sign == "UNION ALL" else replace(made, filtered_by=_scan_columns(columns))


def filled(rows: Relation, names: Sequence[str], values: Sequence[Literal]) -> Relation:
    """Return rows with values in place of nulls: one for the columns of its kind, or one for each of `names`."""
    chosen = _named(rows, names) or [*rows.columns]
    by_column = dict(zip(chosen, [*values] * (len(chosen) if len(values) == 1 else 1), strict=True))
    nodes = list[Node]()
    for column in rows.columns:
        value = by_column.get(column)
        if value is None or _kind(value.type) != _kind(column.type):
            if value is not None and len(values) == len(names):  # by column, Spark casts the value
                raise unsupported(f"a {value.type.simpleString()} in place of nulls of another type")
            nodes.append(column)
        elif has_float(column.type) or is_float(value.type):
            raise unsupported("fractions in place of nulls")
        else:
            nodes.append(Alias(Call("coalesce", (column, Cast(value, column.type))), column.name))
    return selected(rows, nodes)


def _named(rows: Relation, names: Sequence[str]) -> list[OutputColumn]:
    """Spark parses `names`: dots and quotes have a meaning."""
    if any({*name} & {".", "`"} for name in names):
        raise unsupported("a name with dots or quotes")
    return [find_named(rows.columns, each) for each in names]


def _kind(type_: T.DataType) -> str:
    return "number" if is_number(type_) else type_.typeName()


def without_nulls(rows: Relation, names: Sequence[str], *, needs_one: bool) -> Relation:
    """Return the rows without a null in these columns (default: all), or with a value in one if `needs_one`."""
    known = list[Node]()
    for column in _named(rows, names or [column.name for column in rows.columns]):
        known.append(Call("isnotnull", (column,)))
        if is_float(column.type):
            known[-1] = Call("and", (known[-1], Call("not", (Call("isnan", (column,)),))))
    return filtered(rows, Call("or" if needs_one else "and", tuple(known)))


def _side_by_side(left: Relation, right: Relation) -> Relation:
    """Return a relation with the columns of both; those of the right get names and, if taken, ids of their own.

    With new ids, numbers of relations below the right find no column.
    """
    taken = {column.id for column in left.columns}
    again = {c.id: OutputColumn(c.name, c.type, "").id for c in right.columns if c.id in taken}
    free = 1 + max((int(column.sql[1:]) for column in left.columns), default=-1)
    columns = [replace(c, sql=f"c{free + n}", id=again.get(c.id, c.id)) for n, c in enumerate(right.columns)]
    plans = {**left.plans, **dict.fromkeys(right.plans, ())} if again else {**right.plans, **left.plans}
    return Relation("", (*left.columns, *columns), (), plans)
