"""Relations of Spark, from the Connect protocol, as DuckDB's SQL.

Source: relations.proto of Spark Connect 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from lake.session.in_process import steps
from lake.session.in_process.expressions import columns_read, expanded, has_aggregate
from lake.session.in_process.mode import unsupported
from lake.session.in_process.protocol import literal_of, node_of, sorted_node
from lake.session.in_process.queries import Statement
from lake.session.in_process.relation import Relation
from lake.session.in_process.tree import Alias, Name, Node, OutputColumn
from lake.session.in_process.types import duckdb_type, is_groupable, nullable, parsed_schema
from lake.text import quoted

if TYPE_CHECKING:
    from pyspark.sql.connect.proto import relations_pb2 as pb


class Relations:
    """Translation of relations, each once: one that the protocol calls `project` by the method `_project`.

    `held` returns the columns of rows held under a name, and the columns of scans that they are made of.
    """

    def __init__(self, held: Callable[[str], tuple[T.StructType, frozenset[str]]]) -> None:
        self._held = held
        self._translated = dict[int, Relation]()

    def keep(self, relation: pb.Relation, rows: str) -> None:
        """Let `rows`, held under this name, stand for the rows of `relation`."""
        made = self.of(relation)
        if len({column.name.lower() for column in made.columns}) < len(made.columns):
            raise unsupported("kept rows with two columns of one name")
        if made.scanned:
            raise unsupported("kept rows in an analysis")
        shown = ", ".join(f"{quoted(c.name)} AS {c.sql}" for c in made.columns)
        kept = replace(made, sql=f"SELECT {shown} FROM {rows}", parents=(), rows=rows)
        self._translated[relation.common.plan_id] = kept

    def of(self, relation: pb.Relation) -> Relation:
        number = relation.common.plan_id
        if number not in self._translated:
            kind = relation.WhichOneof("rel_type") or ""
            translate: Callable[[Any], Relation] | None = getattr(self, f"_{kind}", None)
            if translate is None:
                raise unsupported(f"the relation {kind}")
            made = translate(getattr(relation, kind))
            self._translated[number] = replace(made, plans={**made.plans, number: made.columns})
        return self._translated[number]

    def _local_relation(self, of: pb.LocalRelation) -> Relation:
        if of.schema:
            return _leaf(T.StructType.fromJson(json.loads(of.schema)))
        rows = of.data.decode()
        schema, scan_columns = self._held(rows)
        leaf = _leaf(schema, rows)
        columns = tuple(replace(column, scan_columns=scan_columns) for column in leaf.columns)
        return replace(leaf, columns=columns, filtered_by=scan_columns)

    def _read(self, of: pb.Read) -> Relation:
        """Return a leaf that reads no file; its columns are the ones that `Relation.scanned` names."""
        source = of.data_source
        if source.format != "json" or source.paths:
            raise unsupported("files")
        leaf = _leaf(parsed_schema(source.schema))
        return replace(leaf, columns=tuple(replace(c, scan_columns=frozenset({c.name})) for c in leaf.columns))

    def _project(self, of: pb.Project) -> Relation:
        rows = self.of(of.input)
        nodes = expanded([node_of(each) for each in of.expressions], rows.scope)
        if has_aggregate(nodes):
            return steps.aggregated(rows, (), nodes)
        return steps.selected(rows, nodes)

    def _filter(self, of: pb.Filter) -> Relation:
        return steps.filtered(self.of(of.input), node_of(of.condition))

    def _with_columns(self, of: pb.WithColumns) -> Relation:
        rows = self.of(of.input)
        new: dict[str, Node] = {
            alias.name[0].lower(): Alias(node_of(alias.expr), alias.name[0], alias.metadata) for alias in of.aliases
        }
        if len(new) < len(of.aliases):
            raise unsupported("two new columns of one name")
        nodes = [new.get(column.name.lower(), column) for column in rows.columns]
        known = {column.name.lower() for column in rows.columns}
        nodes += [node for each, node in new.items() if each not in known]
        return steps.selected(rows, nodes)

    def _with_columns_renamed(self, of: pb.WithColumnsRenamed) -> Relation:
        rows = self.of(of.input)
        new = {each.col_name: each.new_col_name for each in of.renames}
        names = {column.name for column in rows.columns}
        if not new.keys() <= names or {each.lower() for each in new.values()} & {each.lower() for each in names}:
            raise unsupported("renames of unknown columns, or to names of others")
        columns = tuple(c.renamed(new[c.name]) if c.name in new else c for c in rows.columns)
        return rows.then(f"SELECT * FROM {rows.name}", columns)

    def _to_df(self, of: pb.ToDF) -> Relation:
        rows = self.of(of.input)
        if len(of.column_names) != len(rows.columns):
            raise unsupported("toDF with a different number of names")
        columns = tuple(c.renamed(new) for new, c in zip(of.column_names, rows.columns, strict=True))
        return rows.then(f"SELECT * FROM {rows.name}", columns)

    def _drop(self, of: pb.Drop) -> Relation:
        rows = self.of(of.input)
        gone, nodes = {each.lower() for each in of.column_names}, [node_of(each) for each in of.columns]
        found = [rows.scope.column(node) for node in nodes if isinstance(node, Name)]
        if len(found) < len(nodes) or any(parts for _, parts in found):
            raise unsupported("drop of an expression, or of a part")
        ids = {column.id for column, _ in found}
        return steps.selected(rows, [c for c in rows.columns if c.name.lower() not in gone and c.id not in ids])

    def _subquery_alias(self, of: pb.SubqueryAlias) -> Relation:
        return steps.aliased(self.of(of.input), of.alias)

    def _hint(self, of: pb.Hint | pb.Repartition) -> Relation:
        """A hint and a number of partitions change no row."""
        return self.of(of.input)

    _repartition = _hint

    def _repartition_by_expression(self, of: pb.RepartitionByExpression) -> Relation:
        rows = self.of(of.input)
        if any(column.scan_columns for column in rows.columns):
            read = columns_read(map(node_of, of.partition_exprs), rows.scope)
            return replace(rows, filtered_by=rows.filtered_by | read)
        return rows

    def _limit(self, of: pb.Limit) -> Relation:
        return steps.limited(self.of(of.input), of.limit)

    def _sort(self, of: pb.Sort) -> Relation:
        return steps.ordered(self.of(of.input), [sorted_node(each) for each in of.order])

    def _deduplicate(self, of: pb.Deduplicate) -> Relation:
        if not of.all_columns_as_keys:
            raise unsupported("rows distinct by some columns")
        return steps.distinct(self.of(of.input))

    def _aggregate(self, of: pb.Aggregate) -> Relation:
        if of.group_type != of.GROUP_TYPE_GROUPBY:
            raise unsupported("groups of several sets")
        by = [node_of(each) for each in of.grouping_expressions]
        nodes = [node_of(each) for each in of.aggregate_expressions]
        return steps.aggregated(self.of(of.input), by, nodes)

    def _set_op(self, of: pb.SetOperation) -> Relation:
        signs = {of.SET_OP_TYPE_UNION: "UNION", of.SET_OP_TYPE_INTERSECT: "INTERSECT", of.SET_OP_TYPE_EXCEPT: "EXCEPT"}
        sign = f"{signs[of.set_op_type]}{' ALL' if of.is_all else ''}"
        left, right = self.of(of.left_input), self.of(of.right_input)
        is_hashed = all(is_groupable(column.type) for column in (*left.columns, *right.columns))
        if sign == "UNION" or (sign != "UNION ALL" and not is_hashed):
            raise unsupported(f"{sign} of such rows")
        pairs = list[tuple[OutputColumn | None, OutputColumn | None]]()
        if of.by_name:
            first, second = ({c.name.lower(): c for c in rows.columns} for rows in (left, right))
            if min(len(first), len(second)) < 1 or (first.keys() != second.keys() and not of.allow_missing_columns):
                raise unsupported("a union of different columns")
            if (len(first), len(second)) != (len(left.columns), len(right.columns)):
                raise unsupported("a union by names of columns with one name")
            pairs = [(first.get(each), second.get(each)) for each in dict.fromkeys([*first, *second])]
        elif len(left.columns) == len(right.columns):
            pairs = [*zip(left.columns, right.columns, strict=True)]
        else:
            raise unsupported("a union of different numbers of columns")
        return steps.united(left, right, pairs, sign)

    def _fill_na(self, of: pb.NAFill) -> Relation:
        return steps.filled(self.of(of.input), of.cols, [*map(literal_of, of.values)])

    def _drop_na(self, of: pb.NADrop) -> Relation:
        needs_one = of.HasField("min_non_nulls")
        if needs_one and of.min_non_nulls != 1:
            raise unsupported("dropna with a threshold")
        return steps.without_nulls(self.of(of.input), of.cols, needs_one=needs_one)

    def _join(self, of: pb.Join) -> Relation:
        kinds = {of.JOIN_TYPE_INNER: "INNER", of.JOIN_TYPE_LEFT_OUTER: "LEFT", of.JOIN_TYPE_CROSS: "INNER"}
        kinds |= {of.JOIN_TYPE_LEFT_SEMI: "SEMI", of.JOIN_TYPE_LEFT_ANTI: "ANTI"}
        kinds |= {of.JOIN_TYPE_FULL_OUTER: "FULL", of.JOIN_TYPE_RIGHT_OUTER: "RIGHT"}
        if of.join_type not in kinds:
            raise unsupported(f"join type {of.join_type}")
        condition = node_of(of.join_condition) if of.HasField("join_condition") else None
        by = [*of.using_columns] or condition
        return steps.joined(self.of(of.left), self.of(of.right), kinds[of.join_type], by)

    def _with_relations(self, of: pb.WithRelations) -> Relation:
        """Translate a statement over the relations that it names; none of them is referred to by its number above."""
        if of.root.WhichOneof("rel_type") != "sql":
            raise unsupported("a subquery")
        tables = {each.subquery_alias.alias: self.of(each) for each in of.references}
        return replace(Statement(of.root.sql.query, tables).relation(), plans={})


def _leaf(schema: T.StructType, rows: str = "") -> Relation:
    """Return the rows held under the name `rows`, or none if it is empty."""
    columns = tuple(
        OutputColumn(f.name, nullable(f.dataType), f"c{n}", json.dumps(f.metadata) if f.metadata else "")
        for n, f in enumerate(schema)
    )
    if len({c.name.lower() for c in columns}) < len(columns):
        raise unsupported("rows with two columns of one name")
    shown = ", ".join(  # older files have other types
        f"CAST({quoted(c.name) if rows else 'NULL'} AS {duckdb_type(c.type)}) AS {c.sql}" for c in columns
    )
    sql = f"SELECT {shown or '1 AS c0'} {f'FROM {rows}' if rows else 'WHERE false'}"
    return Relation(sql, columns, rows=rows)
