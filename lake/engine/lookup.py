"""Lookup of the input rows behind rows of a table: their number, and the first and last of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lake import cost
from lake.kinds.columns import AT, ORDER, SIGN, visible
from lake.kinds.kind import DECIDES, ROLE
from lake.store.scan import to_arrow
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

    def shows(self, nth: int, of: int) -> bool:
        return nth <= self.first or nth > of - self.last


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
        from pyspark.sql import functions as F

        test: Column = F.expr(self.broadcast)
        for values in self.wanted:
            if values is not None:
                test = test | _equal({sql: values[name] for name, sql in self.columns.items()})
        return self.rows.where(test)

    def findings(self, few: Few) -> list[Finding]:
        """Return a finding for each of `wanted`, in the order of a kind's places, else of ORDER."""
        if all(values is None for values in self.wanted):
            return [Finding() for _ in self.wanted]
        described = self._described()
        rows = to_arrow(described.limit(cost.LOOKUP_ROWS + 1)).to_pylist()
        if len(rows) > cost.LOOKUP_ROWS:
            numbered = described.selectExpr(
                "*",
                "row_number() over (partition by `group` order by place) as nth",
                "count(*) over (partition by `group`) as of",
            )
            shown = f"nth <= {few.first} or nth > of - {few.last} or role like '{DECIDES}%'"
            rows = to_arrow(numbered.where(shown)).to_pylist()
        return [self._finding(rows, values, few) for values in self.wanted]

    def _described(self) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.matching()
        group = [F.expr(sql).alias(name) for name, sql in self.columns.items()]
        return rows.select(
            F.col(ORDER).alias("order"),
            F.struct(*[quoted(column, SPARK) for column in visible(rows.columns)]).alias("values"),
            F.col(ROLE).alias("role"),
            F.struct(F.expr(f"coalesce({self.broadcast}, false)").alias("_broadcast"), *group).alias("group"),
            F.struct(AT if AT in rows.columns else ORDER, SIGN).alias("place"),
        )

    def _finding(self, rows: Sequence[Values], wanted: Values | None, few: Few) -> Finding:
        if wanted is None:
            return Finding()
        return _group(rows, {"_broadcast": False, **wanted}, few) + _group(rows, {"_broadcast": True}, few)


def _equal(values: Mapping[str, Any]) -> Column:
    from pyspark.sql import functions as F

    test: Column = F.lit(True)
    for sql, value in values.items():
        test = test & (F.expr(sql).isNull() if value is None else F.expr(sql) == F.lit(value))
    return test


def _group(rows: Sequence[Values], wanted: Values, few: Few) -> Finding:
    group = [row for row in rows if {column: row["group"][column] for column in wanted} == wanted]
    if not group:
        return Finding()
    if "nth" not in group[0]:
        ordered = sorted(group, key=lambda row: _sortable(row["place"]))
        group = [{**row, "nth": nth, "of": len(group)} for nth, row in enumerate(ordered, 1)]
    shown = (
        Found(row["order"], row["values"], row["role"], row["nth"])
        for row in sorted(group, key=lambda row: row["nth"])
        if few.shows(row["nth"], row["of"]) or (row["role"] or "").startswith(DECIDES)
    )
    return Finding(group[0]["of"], tuple(shown))


def _sortable(place: Any) -> Any:
    if isinstance(place, Mapping):
        return tuple(map(_sortable, place.values()))
    return (place is not None, place)
