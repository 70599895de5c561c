"""Relations of Spark, from the Connect protocol, as DuckDB's SQL.

Each relation becomes one common table expression whose columns are called c0, c1 …, so that names may repeat as they
may in Spark. Source: relations.proto of Spark Connect 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as T

from lake.session.in_process.expressions import (
    OutputColumn,
    column_of,
    expanded,
    have_aggregate,
    is_aggregate,
    order_keys,
    value_of,
    whole_value,
)
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import boolean, comparison
from lake.session.in_process.protocol import node_of, sorted_node
from lake.session.in_process.relation import Relation
from lake.session.in_process.tree import Alias, Call, Name, Node, has_window, subtree
from lake.session.in_process.types import Value, cast, common_type, duckdb_type, has_float, nullable
from lake.text import quoted

if TYPE_CHECKING:
    from pyspark.sql.connect.proto import relations_pb2 as pb


class Relations:
    """Translation of relations, each once. `schema_of` returns the columns of rows held under a name."""

    def __init__(self, schema_of: Callable[[str], T.StructType]) -> None:
        self._schema_of = schema_of
        self._translated = dict[int, Relation]()

    def keep(self, relation: pb.Relation, rows: str) -> None:
        """Let `rows`, held under this name, stand for the rows of `relation`."""
        made = self.of(relation)
        if len({column.name.lower() for column in made.columns}) < len(made.columns):
            raise unsupported("kept rows with two columns of one name")
        shown = ", ".join(f"{quoted(c.name)} AS {c.sql}" for c in made.columns)
        kept = replace(made, sql=f"SELECT {shown} FROM {rows}", parents=(), rows=rows)
        self._translated[relation.common.plan_id] = kept

    def of(self, relation: pb.Relation) -> Relation:
        """Return the translated relation. Raises Unsupported."""
        number = relation.common.plan_id
        if number not in self._translated:
            kind = relation.WhichOneof("rel_type") or ""
            if kind not in _TRANSLATIONS:
                raise unsupported(f"the relation {kind}")
            made = _TRANSLATIONS[kind](self, getattr(relation, kind), f"r{number}")
            if kind != "limit" and any(parent.order and not parent.limited for parent in made.parents):
                raise unsupported("what follows an order of all rows")
            self._translated[number] = replace(made, plans={**made.plans, number: made.columns})
        return self._translated[number]

    def leaf(self, of: pb.LocalRelation, name: str) -> Relation:
        schema = T.StructType.fromJson(json.loads(of.schema)) if of.schema else self._schema_of(of.data.decode())
        columns = tuple(
            OutputColumn(f.name, nullable(f.dataType), f"c{n}", json.dumps(f.metadata) if f.metadata else "")
            for n, f in enumerate(schema)
        )
        names = [quoted(f.name) for f in schema]
        if len({f.name.lower() for f in schema}) < len(names):
            raise unsupported("rows with two columns of one name")
        rows = of.data.decode() if of.data else ""
        shown = ", ".join(
            f"CAST({name if rows else 'NULL'} AS {duckdb_type(c.type)}) AS {c.sql}"  # older files have other types
            for name, c in zip(names, columns, strict=True)
        )
        return Relation(
            name, f"SELECT {shown or '1 AS c0'} {f'FROM {rows}' if rows else 'WHERE false'}", columns, rows=rows
        )

    def project(self, of: pb.Project, name: str) -> Relation:
        rows = self.of(of.input)
        nodes = expanded([node_of(each) for each in of.expressions], rows.scope)
        if have_aggregate(nodes):
            return _aggregated(rows, (), nodes, name)
        return _selected(rows, nodes, name)

    def filter(self, of: pb.Filter, name: str) -> Relation:
        rows = self.of(of.input)
        node = node_of(of.condition)
        if is_aggregate(node):
            raise unsupported("a filter by several rows")
        condition = boolean(whole_value(node, rows.scope))
        return Relation(name, f"SELECT * FROM {rows.name} WHERE {condition}", rows.columns, (rows,), rows.plans)

    def with_columns(self, of: pb.WithColumns, name: str) -> Relation:
        rows = self.of(of.input)
        new = {alias.name[0]: Alias(node_of(alias.expr), alias.name[0], alias.metadata) for alias in of.aliases}
        if len({each.lower() for each in new}) < len(of.aliases):
            raise unsupported("two new columns of one name")
        by_lower = {each.lower(): each for each in new}
        nodes, used = list[Node | OutputColumn](), set[str]()
        for column in rows.columns:
            replacing = by_lower.get(column.name.lower())
            nodes.append(column if replacing is None else new[replacing])
            used |= {replacing} if replacing else set()
        nodes += [node for each, node in new.items() if each not in used]
        return _selected(rows, nodes, name)

    def renamed(self, of: pb.WithColumnsRenamed, name: str) -> Relation:
        rows = self.of(of.input)
        new = {each.col_name: each.new_col_name for each in of.renames}
        names = {column.name for column in rows.columns}
        if not new.keys() <= names or {each.lower() for each in new.values()} & {each.lower() for each in names}:
            raise unsupported("renames of columns that are not there, or to such as are")
        columns = tuple(
            OutputColumn(new[c.name], c.type, c.sql, c.metadata, of=c.of) if c.name in new else c for c in rows.columns
        )
        return Relation(name, f"SELECT * FROM {rows.name}", columns, (rows,), rows.plans)

    def to_df(self, of: pb.ToDF, name: str) -> Relation:
        rows = self.of(of.input)
        if len(of.column_names) != len(rows.columns):
            raise unsupported("other numbers of names")
        columns = tuple(
            OutputColumn(new, c.type, c.sql, c.metadata) for new, c in zip(of.column_names, rows.columns, strict=True)
        )
        return Relation(name, f"SELECT * FROM {rows.name}", columns, (rows,), rows.plans)

    def drop(self, of: pb.Drop, name: str) -> Relation:
        rows = self.of(of.input)
        gone, nodes = {each.lower() for each in of.column_names}, [node_of(each) for each in of.columns]
        if not all(isinstance(node, Name) for node in nodes):
            raise unsupported("drop of an expression")
        found = [rows.scope.column(node) for node in nodes if isinstance(node, Name)]
        if any(parts for _, parts in found):
            raise unsupported("drop of a part")
        ids = {column.id for column, _ in found}
        kept: list[Node | OutputColumn] = [
            column for column in rows.columns if column.name.lower() not in gone and column.id not in ids
        ]
        return _selected(rows, kept, name)

    def alias(self, of: pb.SubqueryAlias, name: str) -> Relation:
        rows = self.of(of.input)
        columns = tuple(replace(column, of=of.alias) for column in rows.columns)
        return Relation(name, f"SELECT * FROM {rows.name}", columns, (rows,), rows.plans)

    def same(self, of: pb.Hint | pb.Repartition, _: str) -> Relation:
        """A hint and a number of partitions change no row."""
        return self.of(of.input)

    def limit(self, of: pb.Limit, name: str) -> Relation:
        rows = self.of(of.input)
        order = f" ORDER BY {rows.order}" if rows.order else ""
        sql = f"SELECT * FROM {rows.name}{order} LIMIT {of.limit}"
        return Relation(name, sql, rows.columns, (rows,), rows.plans, order=rows.order, limited=True)

    def sort(self, of: pb.Sort, name: str) -> Relation:
        rows = self.of(of.input)
        order = ", ".join(key for each in of.order for key in order_keys(sorted_node(each), rows.scope))
        return Relation(name, f"SELECT * FROM {rows.name}", rows.columns, (rows,), rows.plans, order=order)

    def distinct(self, of: pb.Deduplicate, name: str) -> Relation:
        rows = self.of(of.input)
        if not of.all_columns_as_keys or any(has_float(c.type) or isinstance(c.type, T.MapType) for c in rows.columns):
            raise unsupported("rows distinct by some columns")
        return Relation(name, f"SELECT DISTINCT * FROM {rows.name}", rows.columns, (rows,), rows.plans)

    def aggregate(self, of: pb.Aggregate, name: str) -> Relation:
        if of.group_type != of.GROUP_TYPE_GROUPBY:
            raise unsupported("groups of several sets")
        rows = self.of(of.input)
        by = [node_of(each) for each in of.grouping_expressions]
        return _aggregated(rows, by, [node_of(each) for each in of.aggregate_expressions], name)

    def union(self, of: pb.SetOperation, name: str) -> Relation:
        if of.set_op_type != of.SET_OP_TYPE_UNION or not of.is_all:
            raise unsupported("intersections, differences and distinct unions")
        left, right = self.of(of.left_input), self.of(of.right_input)
        pairs = list[tuple[OutputColumn | None, OutputColumn | None]]()
        if of.by_name:
            first, second = ({c.name.lower(): c for c in rows.columns} for rows in (left, right))
            if min(len(first), len(second)) < 1 or (first.keys() != second.keys() and not of.allow_missing_columns):
                raise unsupported("a union of other columns")
            pairs = [(first.get(each), second.get(each)) for each in dict.fromkeys([*first, *second])]
            unique = len(first) == len(left.columns) and len(second) == len(right.columns)
        else:
            pairs = [*zip(left.columns, right.columns, strict=False)]
            unique = len(left.columns) == len(right.columns)
        if not unique:
            raise unsupported("a union of columns with one name")
        return _united(left, right, pairs, name)

    def join(self, of: pb.Join, name: str) -> Relation:
        left, right = self.of(of.left), self.of(of.right)
        kinds = {of.JOIN_TYPE_INNER: "", of.JOIN_TYPE_LEFT_OUTER: "LEFT", of.JOIN_TYPE_CROSS: ""}
        kinds |= {of.JOIN_TYPE_LEFT_SEMI: "SEMI", of.JOIN_TYPE_LEFT_ANTI: "ANTI"}
        kinds |= {} if of.using_columns else {of.JOIN_TYPE_FULL_OUTER: "FULL", of.JOIN_TYPE_RIGHT_OUTER: "RIGHT"}
        if of.join_type not in kinds:
            raise unsupported("this kind of join")
        both, only_left = _beside(left, right), kinds[of.join_type] in {"SEMI", "ANTI"}
        shared = [[c for c in both.columns if c.name == each] for each in of.using_columns]
        if shared:
            if any(len(pair) != 2 for pair in shared):
                raise unsupported("a join by columns that one side lacks")
            terms = [comparison("=")([Value(c.sql, c.type) for c in pair]).sql for pair in shared]
        else:
            conditions = [value_of(node_of(of.join_condition), both.scope)] if of.HasField("join_condition") else []
            terms = [_condition(each) for each in conditions]
        condition = " AND ".join(terms) or "true"
        names = [column.sql for column in right.columns]
        renamed = [f"{sql} AS {c.sql}" for sql, c in zip(names, both.columns[len(left.columns) :], strict=True)]
        other = f"(SELECT {', '.join(renamed) or '1'} FROM {right.name})"
        kept = both if not only_left else left
        hidden = {pair[1].sql for pair in shared}
        shown = ", ".join(column.sql for column in kept.columns if column.sql not in hidden) or "1 AS no_column"
        sql = f"SELECT {shown} FROM {left.name} {kinds[of.join_type]} JOIN {other} ON {condition}"
        joined = Relation(name, sql, kept.columns, (left, right), kept.plans)
        if not shared:
            return joined
        first = [pair[0] for pair in shared]
        rest = [c for c in kept.columns if c not in first and c.sql not in hidden]
        return replace(joined, columns=(*first, *rest))


def _condition(value: Value) -> str:
    if not isinstance(value.type, T.BooleanType):
        raise unsupported("a join by another value than true and false")
    return value.sql


def _selected(rows: Relation, nodes: Sequence[Node | OutputColumn], name: str) -> Relation:
    scope = rows.scope
    columns, texts, exploded = list[OutputColumn](), list[str](), False
    for number, node in enumerate(nodes):
        sql = f"c{number}"
        if isinstance(node, OutputColumn):
            text, column = node.sql, replace(node, sql=sql)
        elif list_ := _exploded(node):
            if exploded or any(map(has_window, (each for each in nodes if not isinstance(each, OutputColumn)))):
                raise unsupported("explode beside another, or a window")
            text, column, exploded = *_unnested(whole_value(list_, scope), node, sql), True
        else:
            text, column = column_of(node, scope, sql)
        texts.append(f"{text} AS {sql}")
        columns.append(column)
    shown = ", ".join(texts) or "1 AS no_column"
    return Relation(name, f"SELECT {shown} FROM {rows.name}", tuple(columns), (rows,), rows.plans)


def _exploded(node: Node) -> Node | None:
    inner = node.of if isinstance(node, Alias) else node
    return inner.arguments[0] if isinstance(inner, Call) and inner.name == "explode" else None


def _unnested(value: Value, node: Node, sql: str) -> tuple[str, OutputColumn]:
    if not isinstance(value.type, T.ArrayType) or not isinstance(node, Alias):
        raise unsupported("explode of this value")
    return f"unnest({value.sql})", OutputColumn(node.name, value.type.elementType, sql)


def _aggregated(rows: Relation, by: Sequence[Node], nodes: Sequence[Node], name: str) -> Relation:
    scope = rows.scope
    columns, texts, groups = list[OutputColumn](), list[str](), list[str]()
    if not by and not have_aggregate(nodes):
        raise unsupported("an aggregate of nothing")
    for number, node in enumerate([*by, *nodes]):
        text, column = column_of(node, scope, f"c{number}")
        if number < len(by):
            if isinstance(column.type, T.MapType | T.NullType) or has_float(column.type):
                raise unsupported(f"groups of {column.type.simpleString()}")
            groups.append(text)
        elif not is_aggregate(node) and any(isinstance(part, Name) for part in subtree(node)):
            raise unsupported("an aggregate without a function of several rows")
        texts.append(f"{text} AS {column.sql}")
        columns.append(column)
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    sql = f"SELECT {', '.join(texts) or '1 AS no_column'} FROM {rows.name}{grouped}"
    return Relation(name, sql, tuple(columns), (rows,), rows.plans)


def _united(
    left: Relation, right: Relation, pairs: Sequence[tuple[OutputColumn | None, OutputColumn | None]], name: str
) -> Relation:
    columns, first, second = list[OutputColumn](), list[str](), list[str]()
    for number, (one, other) in enumerate(pairs):
        type_ = common_type([column.type for column in (one, other) if column is not None])
        known = one or other
        assert known is not None
        columns.append(replace(known, type=type_, sql=f"c{number}", of=""))
        for texts, column in ((first, one), (second, other)):
            value = Value("NULL", T.NullType()) if column is None else Value(column.sql, column.type)
            texts.append(f"{cast(value, type_).sql} AS c{number}")
    sql = f"SELECT {', '.join(first)} FROM {left.name} UNION ALL SELECT {', '.join(second)} FROM {right.name}"
    return Relation(name, sql, tuple(columns), (left, right), left.plans)


def _beside(left: Relation, right: Relation) -> Relation:
    """Return a relation with the columns of both; those of the right get names and, if taken, ids of their own."""
    taken = {column.id for column in left.columns}
    again = {c.id: OutputColumn(c.name, c.type, "").id for c in right.columns if c.id in taken}

    def own(column: OutputColumn) -> OutputColumn:
        return replace(column, id=again.get(column.id, column.id))

    free = 1 + max((int(column.sql[1:]) for column in left.columns), default=-1)
    columns = [replace(own(c), sql=f"c{free + n}") for n, c in enumerate(right.columns)]
    plans: dict[int, Any] = {plan: tuple(map(own, of)) for plan, of in right.plans.items()}
    both = {plan for plan in left.plans.keys() & plans.keys() if again}
    merged = {plan: of for plan, of in {**plans, **left.plans}.items() if plan not in both}
    return Relation("", "", (*left.columns, *columns), (), merged)


_TRANSLATIONS: Final[dict[str, Callable[[Relations, Any, str], Relation]]] = {
    "local_relation": Relations.leaf,
    "project": Relations.project,
    "filter": Relations.filter,
    "with_columns": Relations.with_columns,
    "with_columns_renamed": Relations.renamed,
    "drop": Relations.drop,
    "subquery_alias": Relations.alias,
    "hint": Relations.same,
    "repartition": Relations.same,
    "repartition_by_expression": Relations.same,
    "to_df": Relations.to_df,
    "limit": Relations.limit,
    "sort": Relations.sort,
    "deduplicate": Relations.distinct,
    "aggregate": Relations.aggregate,
    "set_op": Relations.union,
    "join": Relations.join,
}
