"""Relation of Spark as a query of DuckDB: its columns, what it reads, and the SQL of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from pyspark.sql import types as T

from lake.session.in_process.expressions import Scope
from lake.session.in_process.mode import unsupported
from lake.session.in_process.tree import OutputColumn
from lake.text import quoted

_NUMBERS: Final = count()


@dataclass(frozen=True)
class Relation:
    """Rows of `sql`, a query that reads the `parents`, and their columns.

    `plans` are the columns of this relation and of those that it is made of, by their number in the protocol. A leaf
    has the name of its held `rows`. `order`: terms that sort the rows if they are the result; relations above may
    reorder them. `operator`: Spark's name of the operator, if it combines rows. `filtered_by`: columns of scans that
    decide which rows this step returns.
    """

    sql: str
    columns: tuple[OutputColumn, ...]
    parents: tuple[Relation, ...] = ()
    plans: Mapping[int, tuple[OutputColumn, ...]] = field(default_factory=dict)
    rows: str = ""
    order: str = ""
    operator: str = ""
    filtered_by: frozenset[str] = frozenset()
    name: str = field(default_factory=lambda: f"r{next(_NUMBERS)}")

    def then(self, sql: str, columns: Sequence[OutputColumn] | None = None, **changes: Any) -> Relation:
        """Return the relation of a query that reads only this one; it has the same columns unless they are given."""
        kept = self.columns if columns is None else tuple(columns)
        return Relation(sql, kept, (self,), self.plans, **changes)

    @property
    def schema(self) -> T.StructType:
        return T.StructType(
            [T.StructField(c.name, c.type, metadata=json.loads(c.metadata or "{}")) for c in self.columns]
        )

    @property
    def scope(self) -> Scope:
        return Scope(self.columns, self._found)

    def _found(self, plan: int, name: str) -> OutputColumn:
        """Return the column that relation number `plan` calls `name`, if it is still there unchanged."""
        ids = {column.id for column in self.plans.get(plan, ()) if column.name == name}
        columns = [column for column in self.columns if column.id in ids]
        if len(ids) != 1 or len(columns) != 1:
            raise unsupported(f"the column {name} of an earlier relation")
        return columns[0]

    @property
    def leaves(self) -> list[str]:
        """Names of the held rows that the query reads."""
        return [each.rows for each in _from_the_leaves(self) if each.rows]

    @property
    def was_ordered(self) -> bool:
        """Return whether these rows, or some that they are made of, were sorted."""
        return any(each.order for each in _from_the_leaves(self))

    def plan(self) -> Iterator[Relation]:
        """Yield this relation and all that it reads, each as often as Spark's plan has it."""
        yield self
        for parent in self.parents:
            yield from parent.plan()

    @property
    def scanned(self) -> frozenset[str]:
        """Columns of scans that the rows may depend on."""
        steps = _from_the_leaves(self)
        return frozenset().union(*(c.scan_columns for c in self.columns), *(step.filtered_by for step in steps))

    def query(self) -> str:
        """Return the SQL of all rows, under their names in Spark. Raises Unsupported for rows without columns."""
        if not self.columns:
            raise unsupported("rows without columns")
        shown = ", ".join(f"{column.sql} AS {quoted(column.name)}" for column in self.columns)
        steps = ",\n".join(f"{each.name} AS ({each.sql})" for each in _from_the_leaves(self))
        if not self.order:
            return f"WITH {steps}\nSELECT {shown} FROM {self.name}"
        placed = f"(SELECT *, row_number() OVER (ORDER BY {self.order}) AS place FROM {self.name}) AS in_order"
        return f"WITH {steps}\nSELECT {shown} FROM {placed} ORDER BY in_order.place"


def _from_the_leaves(relation: Relation) -> Iterator[Relation]:
    """Yield the relations that one reads, each once, parents first, and itself last."""
    seen, ended, stack = set[str](), set[str](), [relation]
    while stack:
        top = stack[-1]
        if top.name in seen:
            stack.pop()
            if top.name not in ended:
                ended.add(top.name)
                yield top
        else:
            seen.add(top.name)
            stack += [parent for parent in top.parents if parent.name not in seen]
