"""Measures of an Aggregate: how rows add up, how two sums combine, and what a reader sees of them.

A measure keeps *state* columns. Each is filled from signed rows by a SQL aggregate (`fill`), two of them combine by a
SQL expression over `{a}` and `{b}` (`combine`), and the value that readers see is a SQL expression over the state
columns (`value`). Additive state takes retractions; a least or greatest value does not, and its group is evaluated
again. The scheme is that of Beam's combiners: create, add, merge, extract. Measures that keep a number for each value
are in `sketches`, those of squares in `variance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from lake.errors import DeclarationError
from lake.kinds.columns import ORDER, names
from lake.kinds.measures.decimals import mean
from lake.kinds.sql import rounding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTED: Final = "sum(cast(_sign as bigint))"  # how many rows there are
ADD: Final = "coalesce({a} + {b}, {a}, {b})"
LEAST: Final = "least({a}, {b})"
GREATEST: Final = "greatest({a}, {b})"


@dataclass(frozen=True)
class StateColumn:
    """One state column.

    With `per`, a SQL expression, the state is an array of structs (key, value) sorted by key: for each value of `per`
    that is not null what `fill` makes of its rows. Entries whose value is zero are left out; `combine` is that of two
    values.
    """

    fill: str
    combine: str
    per: str = ""

    def merged(self, a: str, b: str) -> str:
        """SQL of two values of the column made one; either may be null."""
        if not self.per:
            return self.combine.format(a=a, b=b)
        both = f"map_from_entries({not_null(a)}), map_from_entries({not_null(b)})"
        zipped = f"map_zip_with({both}, (k, x, y) -> {self.combine.format(a='x', b='y')})"
        return f"sort_array(filter(map_entries({zipped}), e -> e.value <> 0))"


@dataclass(frozen=True)
class Total:
    """One state column: the exact sum of `of`, SQL of integers or decimals, in any order of rows; see `Totals`.

    One that is `seen` by readers is a bigint of bigints. Any other is null for zero, so that a sum of nothing is alike
    however it came about.
    """

    of: str
    seen: bool = False


class Measure(ABC):
    """One column of an Aggregate."""

    retracts: ClassVar[bool]
    """Whether a row that is gone can be subtracted."""

    of_match: ClassVar[bool] = False
    """Whether it goes by the places of rows in a match of a Pattern, which an Aggregate has not."""

    @property
    def revised(self) -> int:
        """Grows when the same measure gives other values than before."""
        return 0

    @property
    def summed(self) -> str | None:
        """SQL of what is added up, which must not be a float; None where nothing is."""
        return None

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        """Why column `name` would be rounded over the function's `rows`; by their types alone."""
        yield from ()

    @abstractmethod
    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        """The state columns behind column `name`; one called `name` is seen by readers."""

    def value(self, name: str) -> str:
        """SQL over the state columns: the value of column `name`."""
        return f"`{name}`"

    def required(self, name: str) -> tuple[str, str, str] | None:
        """When column `name` must have a value, so that null is one that does not fit: SQL over the state columns, what
        to call it, its SQL type. None if null never is.
        """
        return None


@dataclass(frozen=True)
class Count(Measure):
    """The number of rows (bigint)."""

    retracts: ClassVar[bool] = True

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(COUNTED, ADD)}


@dataclass(frozen=True)
class CountIf(Measure):
    """The number of rows for which the SQL `condition` is true (bigint)."""

    condition: str
    retracts: ClassVar[bool] = True

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        return rounding.faults(name, self.condition, rows)

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"sum(cast(if({self.condition}, _sign, 0) as bigint))", ADD)}


@dataclass(frozen=True)
class OfValues(Measure):
    """A measure of the values of the SQL expression `of`, of the rows for which the SQL `where` is true.

    Null values do not count.
    """

    of: str
    where: str = field(default="", kw_only=True)

    @property
    def taken(self) -> str:
        """SQL of a row's value; null where it does not count."""
        return f"if({self.where}, {self.of}, null)" if self.where else self.of

    def faults(self, name: str, rows: DataFrame) -> Iterator[DeclarationError]:
        for sql in (self.of, self.where):
            yield from rounding.faults(name, sql, rows)

    @property
    def values(self) -> StateColumn:
        """How many values there are."""
        return StateColumn(f"sum(if(({self.taken}) is null, 0L, cast(_sign as bigint)))", ADD)


@dataclass(frozen=True)
class Sum(OfValues):
    """The sum of the SQL expression `of`: bigint of integers, decimal(p + 10, s) of decimals; null of no values.

    Floats are refused: their sum depends on the order of adding.
    """

    retracts: ClassVar[bool] = True

    @property
    def summed(self) -> str:
        return self.of

    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        """The number of values tells a sum of nothing from a sum of zero."""
        return {name: Total(self.taken, seen=True), f"_{name}_n": self.values}

    def value(self, name: str) -> str:
        return f"if(`_{name}_n` = 0, null, `{name}`)"


@dataclass(frozen=True)
class Avg(OfValues):
    """The mean of `of`, SQL of integers or decimals, as decimal(38, `scale`), half up; null of no values.

    It is rounded once.
    """

    scale: int = 6
    retracts: ClassVar[bool] = True

    @property
    def summed(self) -> str:
        return self.of

    def state(self, name: str) -> Mapping[str, StateColumn | Total]:
        return {f"_{name}_sum": Total(self.taken), f"_{name}_n": self.values}

    def value(self, name: str) -> str:
        return mean(f"`_{name}_sum`", f"`_{name}_n`", self.scale)

    def required(self, name: str) -> tuple[str, str, str]:
        return f"`_{name}_n` > 0", name, f"decimal(38,{self.scale})"


@dataclass(frozen=True)
class Min(OfValues):
    """The least value of the SQL expression `of`; null of no values."""

    retracts: ClassVar[bool] = False

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"min(if(_sign > 0, {self.taken}, null))", LEAST)}


@dataclass(frozen=True)
class Max(OfValues):
    """The greatest value of the SQL expression `of`; null of no values."""

    retracts: ClassVar[bool] = False

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"max(if(_sign > 0, {self.taken}, null))", GREATEST)}


@dataclass(frozen=True)
class Ranked(OfValues):
    """The value of `of` at one end of the total order (`by`, log order), rows without a value left out.

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
        """Rows without a value rank behind those with one, so that the state is never null."""
        order = ", ".join(f"'by{number}', {sql}" for number, sql in enumerate(self.by))
        rank = f"({self.taken}) {self.rank}"
        place = f"named_struct('rank', {rank}, {order}, 'place', {ORDER}, 'value', {self.taken})"
        return {f"_{name}_at": StateColumn(f"{self.pick}({place})", LEAST if self.pick == "min" else GREATEST)}

    def value(self, name: str) -> str:
        return f"`_{name}_at`.value"


@dataclass(frozen=True)
class FirstValue(Ranked):
    """The value of `of` in the first row by `by`, ties by log order."""

    pick: ClassVar[str] = "min"
    rank: ClassVar[str] = "is null"


@dataclass(frozen=True)
class LastValue(Ranked):
    """The value of `of` in the last row by `by`, ties by log order."""

    pick: ClassVar[str] = "max"
    rank: ClassVar[str] = "is not null"


def not_null(entries: str) -> str:
    """SQL of an array that is empty where `entries` is null."""
    return f"coalesce({entries}, array())"
