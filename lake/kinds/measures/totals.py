"""State columns that are sums: open while rows are added, then closed to the types of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lake.kinds.columns import AGAIN
from lake.kinds.measures.decimals import SumType
from lake.kinds.measures.measure import Measure, Total
from lake.kinds.sql_errors import NO_ROOM, raise_sql
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Totals:
    """Sums among the state columns of `measures` over `rows`, in groups with a `key`."""

    def __init__(self, measures: Mapping[str, Measure], rows: DataFrame, key: Sequence[str]) -> None:
        self.measures, self.key = measures, key
        states = {column: (name, s) for name, m in measures.items() for column, s in m.state(name).items()}
        self.totals = {column: (name, s) for column, (name, s) in states.items() if isinstance(s, Total)}
        texts = [f"{total.of} as {quoted(column, SPARK)}" for column, (_, total) in self.totals.items()]
        self.adding = {column: SumType(type_) for column, type_ in rows.selectExpr(*texts).dtypes} if texts else {}

    @property
    def fills(self) -> dict[str, str]:
        """{state column: SQL aggregate over signed rows, its open sum}."""
        return {column: self.adding[column].fill(total.of) for column, (_, total) in self.totals.items()}

    def close(self, groups: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        """Return `groups` with closed sums, and {measure: SQL of its value over them}.

        The query fails if a sum does not fit, but for groups marked as AGAIN.
        """
        from pyspark.sql import functions as F

        again, columns = AGAIN in groups.columns, {}
        for column, (name, total) in self.totals.items():
            adding = self.adding[column]
            type_ = "bigint" if adding.type == "bigint" and total.is_shown else adding.closed
            sql = self._checked(adding.fitted(quoted(column, SPARK), type_), "true", name, type_, again)
            columns[column] = F.expr(sql if total.is_shown else f"nullif({sql}, cast(0 as {type_}))").alias(column)
        closed = groups.select(*[columns.get(name, F.col(quoted(name, SPARK))) for name in groups.columns])
        values = {name: measure.value(name) for name, measure in self.measures.items()}
        for name, measure in self.measures.items():
            if required := measure.required(name):
                values[name] = self._checked(values[name], *required, again)
        return closed, values

    def _checked(self, value: str, needed: str, name: str, type_: str, again: bool) -> str:
        error = raise_sql(NO_ROOM, self.key, measure=name, type=type_.replace(" ", ""))
        return f"coalesce({value}, if({f'not {AGAIN} and ' * again}{needed}, cast({error} as {type_}), null))"
