"""Tree of a Spark expression: `protocol` and `syntax` make it, `expressions` translates it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import count
from math import isinf
from typing import Any, Final, TypeAlias, TypeVar

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.types import MAX_DIGITS

_IDS: Final = count()


@dataclass(frozen=True)
class OutputColumn:
    """Column of a relation: its name in Spark, its type and metadata, its name in DuckDB.

    `id` stays the same if a relation hands the column on unchanged. `alias` is its relation's. `is_partial`: a join by
    names hides other columns of that alias. `scan_columns` are the columns of scans that the values may depend on.
    """

    name: str
    type: T.DataType
    sql: str
    metadata: str = ""
    id: int = field(default_factory=_IDS.__next__)
    alias: str = ""
    is_partial: bool = False
    scan_columns: frozenset[str] = frozenset()

    def renamed(self, name: str) -> OutputColumn:
        """Return a new column, of another id, without alias."""
        return OutputColumn(name, self.type, self.sql, self.metadata, scan_columns=self.scan_columns)


@dataclass(frozen=True)
class Literal:
    value: Any
    type: T.DataType


@dataclass(frozen=True)
class Name:
    """Column, or a part of one; `plan` is the number of the relation that has it, if given."""

    parts: tuple[str, ...]
    plan: int | None = None


@dataclass(frozen=True)
class Star:
    """All columns but the `excluded` ones; or those of the alias, or parts of the struct, that `target` names."""

    target: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """Function, by Spark's lower-case name, or operator, by its sign: `a.b` is `.`, `a[b]` is `[]`."""

    name: str
    arguments: tuple[Node, ...]
    ignores_nulls: bool = False
    where: Node | None = None
    distinct: bool = False


@dataclass(frozen=True)
class Cast:
    child: Node
    type: T.DataType
    may_fail: bool = True


@dataclass(frozen=True)
class Alias:
    child: Node
    name: str
    metadata: str = ""


@dataclass(frozen=True)
class Sorted:
    child: Node
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True)
class Over:
    """Window function; `frame` is DuckDB's text, empty for the default."""

    call: Node
    by: tuple[Node, ...]
    order: tuple[Sorted, ...]
    frame: str = ""


@dataclass(frozen=True)
class Lambda:
    parameters: tuple[str, ...]
    body: Node


C = TypeVar("C", OutputColumn, T.StructField)
Node: TypeAlias = Literal | Name | OutputColumn | Star | Call | Cast | Alias | Sorted | Over | Lambda


def find_named(items: Iterable[C], name: str) -> C:
    """Return the column or field called `name`. Raises Unsupported unless it alone has this name, in any case."""
    found = [item for item in items if item.name.lower() == name.lower()]
    if [item.name for item in found] != [name]:
        raise unsupported(f"the column {name}")
    return found[0]


def decimal_literal(value: Decimal, least: int = 1) -> Literal:
    """Return a decimal with the digits that it shows, but at least `least`."""
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale, least)
    if precision > MAX_DIGITS:
        raise unsupported(f"the number {value}")
    return Literal(value, T.DecimalType(precision, scale))


def frame_of_rows(first: float, last: float) -> str:
    """Return a frame from one row to another, by their places after the current row, infinite if unbounded."""
    if first > last or any(abs(place) >= 1 << 31 and not isinf(place) for place in (first, last)):
        raise unsupported(f"a frame from {first} to {last}")
    return f"ROWS BETWEEN {_bound(first)} AND {_bound(last)}"


def _bound(place: float) -> str:
    number = "UNBOUNDED" if isinf(place) else abs(place)
    return f"{number} {'PRECEDING' if place < 0 else 'FOLLOWING'}" if place else "CURRENT ROW"


def name_of(node: Node) -> str | None:
    """Return Spark's name of the column that a simple expression makes; None for others."""
    match node:
        case Alias():
            return node.name
        case OutputColumn():
            return node.name or None
        case Name():
            return node.parts[-1]
        case Call(".", (_, Literal(value=str(name)))):
            return name
    return None


def parts_of(node: Node) -> Sequence[Node]:
    match node:
        case Call():
            return (*node.arguments, *([node.where] if node.where else []))
        case Cast() | Alias() | Sorted():
            return (node.child,)
        case Over():
            return (*parts_of(node.call), *node.by, *node.order)
        case Lambda():
            return (node.body,)
    return ()


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return `node` with the nodes right below it changed. Raises Unsupported for a lambda."""
    match node:
        case Call():
            where = None if node.where is None else change(node.where)
            return replace(node, arguments=tuple(map(change, node.arguments)), where=where)
        case Cast() | Alias() | Sorted():
            return replace(node, child=change(node.child))
        case Over():
            order = tuple(replace(term, child=change(term.child)) for term in node.order)
            return replace(node, call=with_parts(node.call, change), by=tuple(map(change, node.by)), order=order)
        case Lambda():
            raise unsupported("a lambda beside groups")
    return node


def subtree(node: Node) -> Iterator[Node]:
    yield node
    for part in parts_of(node):
        yield from subtree(part)


def has_window(node: Node) -> bool:
    return any(isinstance(part, Over) for part in subtree(node))
