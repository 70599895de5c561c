"""SELECT statements of Spark as relations: parsed and translated step by step.

A statement that is not of this grammar, or whose names have several meanings, raises Unsupported. Source:
SqlBaseParser.g4 of Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import steps
from lake.session.in_process.aggregates import AGGREGATES
from lake.session.in_process.expressions import LIST_AGGREGATES, expanded, has_aggregate
from lake.session.in_process.mode import Unsupported, unsupported
from lake.session.in_process.relation import Relation
from lake.session.in_process.syntax import Parser
from lake.session.in_process.tree import Alias, Call, Literal, Name, Node, OutputColumn, Star, parts_of, with_parts

IN_SUBQUERY: Final = "in subquery"
"""Name of a call of a value and the number of a subquery; not a function, so that its value alone is unsupported."""
JOINS: Final = ("join", "inner", "cross", "left", "right", "full", "semi", "anti")


class Statement(Parser):
    """Text of a query over `tables`, by their lower-case names."""

    def __init__(self, text: str, tables: Mapping[str, Relation]) -> None:
        super().__init__(text)
        self.tables = dict(tables)
        self.subqueries = list[Relation]()

    @property
    def unknown(self) -> Unsupported:
        near = [text for _, text in self.tokens[max(self.at - 1, 0) : self.at + 2] if text not in self.tables]
        return unsupported(f"SQL with {' '.join(near)}")

    def relation(self) -> Relation:
        rows = self.query()
        self.end()
        return rows

    def query(self) -> Relation:
        outer = self.tables
        if self.take("with"):
            self.terms(self.common_table)
        rows = self.query_term()
        while self.take("union"):
            keeps_all = self.take("all", "distinct") == "all"
            rows = self.united(rows, self.query_term())
            rows = rows if keeps_all else steps.distinct(rows)
        if order := self.terms_by("order", self.sorted):
            rows = steps.ordered(rows, order)
            if self.take("limit"):
                kind, limit = self.next()
                if kind != "number" or not limit.isdigit() or int(limit) >= 1 << 31:
                    raise self.unknown
                rows = steps.limited(rows, int(limit))
        self.tables = outer
        return rows

    def common_table(self) -> None:
        name = self.relation_name().lower()
        if name in self.tables:
            raise unsupported(f"{name}, which hides another relation")
        self.need("as")
        self.tables = {**self.tables, name: self.bracketed(self.query)}

    def relation_name(self) -> str:
        if not self.begins_alias:
            raise self.unknown
        return self.identifier()

    def query_term(self) -> Relation:
        if self.word == "(":
            return self.bracketed(self.query)
        self.need("select")
        is_distinct, items = self.take("distinct"), self.terms(self.aliased)
        self.need("from")
        rows = self.source()
        if self.take("where"):
            rows = self.filtered(rows, self.expression())
        by = [_grouping(node, items, rows) for node in self.terms_by("group", self.expression)]
        having = [_without_aliases(self.expression(), items, rows)] if self.take("having") else []
        nodes = expanded(items, rows.scope)
        if by or has_aggregate([*nodes, *having]):
            groups = Groups(rows, by, [*nodes, *having])
            rows, nodes = groups.rows, list(map(groups.node, nodes))
            having = list(map(groups.node, having))
        elif having:
            raise unsupported("having without groups")
        for condition in having:
            rows = steps.filtered(rows, condition)
        rows = steps.selected(rows, nodes)
        return steps.distinct(rows) if is_distinct else rows

    def _membership(self, node: Node) -> Node:
        begin = [text.lower() for _, text in self.tokens[self.at : self.at + 3]]
        if begin[:2] != ["in", "("] or begin[2:] not in (["select"], ["with"]):
            return super()._membership(node)
        self.need("in")
        self.subqueries.append(self.bracketed(self.query))
        return Call(IN_SUBQUERY, (node, Literal(len(self.subqueries) - 1, T.IntegerType())))

    def filtered(self, rows: Relation, node: Node) -> Relation:
        """Return the rows that meet a condition. Only its conjuncts may be `in` of a subquery."""
        match node:
            case Call("and", (left, right)) if self.subqueries:
                return self.filtered(self.filtered(rows, left), right)
            case Call(name, (of, Literal(value=number))) if name == IN_SUBQUERY:
                return steps.in_subquery(rows, of, self.subqueries[number])
        return steps.filtered(rows, node)

    def united(self, left: Relation, right: Relation) -> Relation:
        if len(left.columns) != len(right.columns):
            raise unsupported("a union of different numbers of columns")
        return steps.united(left, right, [*zip(left.columns, right.columns, strict=True)])

    def source(self) -> Relation:
        rows, *others = self.terms(self.joined)
        for other in others:
            rows = steps.joined(rows, other, "INNER", None)
        return rows

    def joined(self) -> Relation:
        rows = self.table()
        while kind := self.take(*JOINS):
            if kind != "join":
                kind = (self.take("semi", "anti") if kind == "left" else "") or kind
                if kind in {"left", "right", "full"}:
                    self.take("outer")
                self.need("join")
            rows = self.join(rows, kind)
        return rows

    def join(self, left: Relation, kind: str) -> Relation:
        right = self.table()
        if kind == "cross":
            return steps.joined(left, right, "INNER", None)
        kind = "INNER" if kind == "join" else kind.upper()
        if self.take("on"):
            return steps.joined(left, right, kind, self.expression())
        self.need("using")
        return steps.joined(left, right, kind, self.bracketed(lambda: self.terms(self.identifier)))

    def table(self) -> Relation:
        if self.word == "(":
            rows, alias = self.bracketed(self.query), ""
        else:
            alias = self.identifier()
            if alias.lower() not in self.tables:
                raise unsupported(f"the relation {alias}")
            rows = self.tables[alias.lower()]
        if self.take("as") or self.begins_alias:
            alias = self.relation_name()
        return steps.aliased(rows, alias)


class Groups:
    """Rows of the groups of `by`, with a column for each of `by` and for each aggregate in `nodes`."""

    def __init__(self, rows: Relation, by: Sequence[Node], nodes: Sequence[Node]) -> None:
        self.scope = rows.scope
        aggregates = list(dict.fromkeys(found for node in nodes for found in _aggregates(node, by)))
        named = [node if isinstance(node, Name) else Alias(node, "") for node in by]
        self.rows = steps.aggregated(rows, named, [Alias(node, "") for node in aggregates])
        self.columns = dict(zip([*by, *aggregates], self.rows.columns, strict=True))
        self.of_inputs = {column.id: column for column in self.rows.columns}

    def node(self, node: Node) -> Node:
        """Return an expression over the input rows as one over the groups. Raises Unsupported if it is none."""
        if node in self.columns:
            return self.columns[node]
        if not isinstance(node, Name | OutputColumn):
            return with_parts(node, self.node)
        column, parts = self.scope.column(node) if isinstance(node, Name) else (node, ())
        if column.id not in self.of_inputs:
            raise unsupported(f"the column {column.name} beside groups")
        found: Node = self.of_inputs[column.id]
        for part in parts:
            found = Call(".", (found, Literal(part, T.StringType())))
        return found


def _grouping(node: Node, items: Sequence[Node], rows: Relation) -> Node:
    """Return what a term of GROUP BY means: an item by its place from 1, or by its alias if no column has that name."""
    if isinstance(node, Literal) and isinstance(node.type, T.IntegerType):
        if not 0 < node.value <= len(items) or any(isinstance(item, Star) for item in items):
            raise unsupported("groups by a place out of range")
        item = items[node.value - 1]
        return item.child if isinstance(item, Alias) else item
    return _item_of_alias(node, items, rows)


def _item_of_alias(node: Node, items: Sequence[Node], rows: Relation) -> Node:
    """Return the item whose alias `node` is, if no column has that name; else `node`."""
    if isinstance(node, Name) and len(node.parts) == 1:
        name = node.parts[0].lower()
        meant = [item.child for item in items if isinstance(item, Alias) and item.name.lower() == name]
        if meant and not any(column.name.lower() == name for column in rows.columns):
            if len(meant) > 1:
                raise unsupported(f"the name {name} of several columns")
            return meant[0]
    return node


def _without_aliases(node: Node, items: Sequence[Node], rows: Relation) -> Node:
    """Return a condition of HAVING with the items in place of their aliases."""
    meant = _item_of_alias(node, items, rows)
    return with_parts(node, lambda part: _without_aliases(part, items, rows)) if meant is node else meant


def _aggregates(node: Node, by: Sequence[Node]) -> Iterator[Node]:
    if node in by:
        return
    match node:
        case Call(name) if name in AGGREGATES:
            yield node
        case Call(arguments=(Call(name), *_)) if name in LIST_AGGREGATES:
            yield node
        case _:
            for part in parts_of(node):
                yield from _aggregates(part, by)
