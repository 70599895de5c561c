"""Measures of an Aggregate: how rows add up, how two sums combine, and the value that readers see.

A measure keeps *state* columns: `fill` aggregates signed rows, `combine` is SQL over two states `{a}` and `{b}`, and
`value` is SQL for readers. Additive state takes retractions; the group of a least or greatest value is evaluated again.
Source of the scheme: Beam's combiners (create, add, merge, extract).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from lake.errors import DeclarationError
from lake.kinds.columns import AGAIN, ORDER, names
from lake.kinds.measures.decimals import SumType, mean
from lake.kinds.sql import rounding
from lake.kinds.sql_errors import NO_ROOM, raise_sql
from lake.lazy import DataFrame
from lake.text import SPARK, quoted

COUNTED: Final = "sum(cast(_sign as bigint))"  # the number of rows
ADD: Final = "coalesce({a} + {b}, {a}, {b})"
LEAST: Final = "least({a}, {b})"
GREATEST: Final = "greatest({a}, {b})"
INEXACT: Final = ("float", "double", "string")  # their sums are floats


@dataclass(frozen=True)
class StateColumn:
    """State column of a measure.

    With `per`, a SQL expression, it is an array of structs (key, value) sorted by key: `fill` of the rows of each value
    of `per` but null. Zeros are left out; `combine` combines two values.
    """

    fill: str
    combine: str
    per: str = ""

    def merged(self, a: str, b: str) -> str:
        """Combine two values in SQL; either may be null."""
        if not self.per:
            return self.combine.format(a=a, b=b)
        both = f"map_from_entries({not_null(a)}), map_from_entries({not_null(b)})"
        zipped = f"map_zip_with({both}, (k, x, y) -> {self.combine.format(a='x', b='y')})"
        return f"sort_array(filter(map_entries({zipped}), e -> e.value <> 0))"


@dataclass(frozen=True)
class Total:
    """State column with the exact sum of `of`, SQL of integers or decimals, in any order of rows; see `Totals`.

    `is_shown`: readers see it, so a sum of bigints is a bigint. Any other is null for zero: a sum of no rows is alike.
    """

    of: str
    is_shown: bool = False


class Measure(ABC):
    retracts: ClassVar[bool]
    """True if a deleted row can be subtracted."""

    of_match: ClassVar[bool] = False
    """True if it reads the places of rows in a match, which only a Pattern has."""

    @property
    def revised(self) -> int:
        """Number that grows if the same measure gives other values than before."""
        return 0

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        """Yield errors if column `name` would be rounded; reads types alone."""
        yield from ()

    @abstractmethod
    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        """Return the state columns behind column `name`; readers see one that is called `name`."""

    def value(self, name: str) -> str:
        """Return SQL over the state columns: the value of column `name`."""
        return f"`{name}`"

    def required(self, name: str) -> tuple[str, str, str] | None:
        """Return when column `name` cannot be null, so that null means a value that does not fit.

        (SQL condition over the state columns, name for messages, SQL type); None if it may always be null.
        """
        return None


@dataclass(frozen=True)
class Count(Measure):
    """Number of rows (bigint)."""

    retracts: ClassVar[bool] = True

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(COUNTED, ADD)}


@dataclass(frozen=True)
class CountIf(Measure):
    """Number of rows for which the SQL `condition` is true (bigint)."""

    condition: str
    retracts: ClassVar[bool] = True

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        return rounding.faults(name, self.condition, rows)

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"sum(cast(if({self.condition}, _sign, 0) as bigint))", ADD)}


@dataclass(frozen=True)
class OfValues(Measure):
    """Measure of the values of SQL `of` in rows for which SQL `where` is true; nulls do not count."""

    of: str
    where: str = field(default="", kw_only=True)

    @property
    def value_sql(self) -> str:
        """SQL of a row's value; null if it does not count."""
        return f"if({self.where}, {self.of}, null)" if self.where else self.of

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        for sql in (self.of, self.where):
            yield from rounding.faults(name, sql, rows)

    @property
    def value_count(self) -> StateColumn:
        return StateColumn(f"sum(if(({self.value_sql}) is null, 0L, cast(_sign as bigint)))", ADD)


@dataclass(frozen=True)
class OfSums(OfValues):
    """Measure made of sums of `of`, integers or decimals."""

    retracts: ClassVar[bool] = True

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        type_ = rounding.type_of(rows, self.of)
        if type_ is not None and (summed := type_.simpleString()) in INEXACT:
            yield DeclarationError(f"{name} adds up a {summed}", fix="add decimals: cast(… as decimal(18, 2))")
        yield from super().faults(name, rows)


@dataclass(frozen=True)
class Sum(OfSums):
    """Sum of the SQL expression `of`: bigint of integers, decimal(p + 10, s) of decimals; null of no values.

    Floats are refused: their sum depends on the order of adding.
    """

    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        return {name: Total(self.value_sql, is_shown=True), f"_{name}_n": self.value_count}

    def value(self, name: str) -> str:
        return f"if(`_{name}_n` = 0, null, `{name}`)"


@dataclass(frozen=True)
class Avg(OfSums):
    """Mean of `of`, SQL of integers or decimals, as decimal(38, `scale`), rounded once, half up; null of no values."""

    scale: int = 6

    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        return {f"_{name}_sum": Total(self.value_sql), f"_{name}_n": self.value_count}

    def value(self, name: str) -> str:
        return mean(f"`_{name}_sum`", f"`_{name}_n`", self.scale)

    def required(self, name: str) -> tuple[str, str, str]:
        return f"`_{name}_n` > 0", name, f"decimal(38,{self.scale})"


@dataclass(frozen=True)
class Min(OfValues):
    """Least value of the SQL expression `of`; null of no values."""

    retracts: ClassVar[bool] = False

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"min(if(_sign > 0, {self.value_sql}, null))", LEAST)}


@dataclass(frozen=True)
class Max(OfValues):
    """Greatest value of the SQL expression `of`; null of no values."""

    retracts: ClassVar[bool] = False

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"max(if(_sign > 0, {self.value_sql}, null))", GREATEST)}


@dataclass(frozen=True)
class Ranked(OfValues):
    """Value of `of` at one end of the total order (`by`, log order), without rows that have none.

    `by` is SQL over the function's columns, most significant first; a null in it is older than any value.
    """

    by: str | Sequence[str] = field(kw_only=True)
    retracts: ClassVar[bool] = False
    pick: ClassVar[str]
    rank: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", names(self.by))
        if not self.by:
            raise DeclarationError(f"{type(self).__name__}({self.of!r}) needs an order", fix="add by='at'")

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        yield from super().faults(name, rows)
        for sql in self.by:
            yield from rounding.faults(name, sql, rows)

    def state(self, name: str) -> Mapping[str, StateColumn]:
        order = ", ".join(f"'by{number}', {sql}" for number, sql in enumerate(self.by))
        rank = f"({self.value_sql}) {self.rank}"
        place = f"named_struct('rank', {rank}, {order}, 'place', {ORDER}, 'value', {self.value_sql})"
        return {f"_{name}_at": StateColumn(f"{self.pick}({place})", LEAST if self.pick == "min" else GREATEST)}

    def value(self, name: str) -> str:
        return f"`_{name}_at`.value"


@dataclass(frozen=True)
class FirstValue(Ranked):
    """Value of `of` in the first row by `by`, ties by log order."""

    pick: ClassVar[str] = "min"
    rank: ClassVar[str] = "is null"


@dataclass(frozen=True)
class LastValue(Ranked):
    """Value of `of` in the last row by `by`, ties by log order."""

    pick: ClassVar[str] = "max"
    rank: ClassVar[str] = "is not null"


def not_null(entries: str) -> str:
    return f"coalesce({entries}, array())"


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
        return {column: self.adding[column].fill(total.of) for column, (_, total) in self.totals.items()}

    def close(self, groups: DataFrame) -> tuple[DataFrame, dict[str, str]]:
        """Return `groups` with closed sums, and {measure: SQL of its value}.

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
