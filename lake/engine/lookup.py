"""Lookup of the input rows behind rows of a table: their number, and the first and last of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from lake.kinds.columns import AT, ORDER, SIGN, visible
from lake.kinds.kind import DECIDES, ROLE
from lake.lazy import Column, DataFrame, F
from lake.store.comparison import equal
from lake.store.scan import to_arrow
from lake.text import SPARK, quoted

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """Row of an input: place or identity, visible columns, role, and number among those found for the same row."""

    order: Values
    values: Values
    role: str | None
    nth: int


@dataclass(frozen=True)
class Finding:
    count: int = 0
    shown: tuple[Found, ...] = ()

    def __add__(self, other: Finding) -> Finding:
        later = (replace(row, nth=row.nth + self.count) for row in other.shown)
        return Finding(self.count + other.count, (*self.shown, *later))


@dataclass(frozen=True)
class Few:
    """Number of rows to show of each finding: the first, and the last."""

    first: int
    last: int

    @classmethod
    def of(cls, limit: int) -> Few:
        return cls(limit - limit // 2, limit // 2)

    def fewer(self) -> Few:
        return Few(max(1, self.first // 2), self.last // 2)


@dataclass(frozen=True)
class Lookup:
    """Lookup in `rows`, which have ORDER, SIGN and ROLE, by the values in `columns`, {name: SQL}, of each of `wanted`.

    Nulls are equal; None finds nothing. `broadcast` rows (SQL) are found for all.
    """

    rows: DataFrame
    columns: Mapping[str, str]
    wanted: Sequence[Values | None]
    broadcast: str = "false"

    def matching(self) -> DataFrame:
        test: Column = F.expr(self.broadcast)
        for values in self.wanted:
            if values is not None:
                test = test | _all(_equal(F.expr(sql), values[name]) for name, sql in self.columns.items())
        return self.rows.where(test)

    def findings(self, few: Few) -> list[Finding]:
        """Return a finding for each of `wanted`, in the order of a kind's places, else of ORDER."""
        if all(values is None for values in self.wanted):
            return [Finding() for _ in self.wanted]
        numbered = self._described().selectExpr(
            "*",
            "row_number() over (partition by `group` order by place) as nth",
            "count(*) over (partition by `group`) as of",
        )
        shown = f"nth <= {few.first} or nth > of - {few.last} or role like '{DECIDES}%'"
        rows = sorted(to_arrow(numbered.where(shown)).to_pylist(), key=lambda row: row["nth"])
        return [Finding() if values is None else _finding(rows, values) for values in self.wanted]

    def _described(self) -> DataFrame:
        rows, is_broadcast = self.matching(), f"coalesce({self.broadcast}, false)"
        group = [F.expr(f"if({is_broadcast}, null, {sql})").alias(name) for name, sql in self.columns.items()]
        return rows.select(
            F.col(ORDER).alias("order"),
            F.struct(*[quoted(column, SPARK) for column in visible(rows.columns)]).alias("values"),
            F.col(ROLE).alias("role"),
            F.struct(F.expr(is_broadcast).alias("_broadcast"), *group).alias("group"),
            F.struct(AT if AT in rows.columns else ORDER, SIGN).alias("place"),
        )


def _equal(column: Column, value: Any) -> Column:
    if value is None:
        return column.isNull()
    if isinstance(value, dict):
        return column.isNotNull() & _all(_equal(column[name], part) for name, part in value.items())
    if isinstance(value, list):
        return (F.size(column) == len(value)) & _all(_equal(F.get(column, n), part) for n, part in enumerate(value))
    return column == F.lit(value)


def _all(tests: Iterable[Column]) -> Column:
    return reduce(and_, tests, F.lit(True))


def _finding(rows: Sequence[Values], wanted: Values) -> Finding:
    return _group(rows, {"_broadcast": False, **wanted}) + _group(rows, {"_broadcast": True})


def _group(rows: Sequence[Values], wanted: Values) -> Finding:
    group = [row for row in rows if equal({column: row["group"][column] for column in wanted}, wanted)]
    if not group:
        return Finding()
    return Finding(group[0]["of"], tuple(Found(row["order"], row["values"], row["role"], row["nth"]) for row in group))
