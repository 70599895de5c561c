"""The two laws that every kind of table obeys, and the columns through which kind and engine speak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that the engine adds to a function's input and finds again in its output.
ORDER: Final = "_order"  # struct, totally ordered: (batch, bucket, offset) of an event, or a row's identity
SIGN: Final = "_sign"  # int: +1 a row that is there, -1 one that is gone
TIME: Final = "_time"  # timestamp: event time; absent over derived tables
WATERMARK: Final = "_watermark"  # timestamp: greatest event time of earlier batches; absent over derived tables
CARRIED: Final = (ORDER, SIGN, TIME, WATERMARK)

# The column by which `absorb` says that a key must be evaluated again.
AGAIN: Final = "_again"


@runtime_checkable
class Kind(Protocol):
    """How a derived table follows from the rows that its function returns.

    Pure: DataFrame in, DataFrame out; a kind knows neither Delta nor a clock.

    Locality:    evaluate(rows restricted to keys K) == evaluate(rows) restricted to K
    Absorption:  absorb(evaluate(a), b) == evaluate(a + b), for the keys that it does not mark as AGAIN

    `rows` have the function's columns and the carried ones. Columns of a result whose names begin with `_` are state:
    what absorption needs, hidden from readers, safe to lose.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Grows when the same declaration gives other rows than before."""

    row_by_row: ClassVar[bool]
    """Whether the declared function must map each row of its one input alone."""

    absorbs: ClassVar[bool]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that locality goes by; () makes the whole table one key."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the table's rows apart; they include the key."""

    def requires(self) -> dict[str, str]:
        """Columns that the function must return, each with what it is for."""

    def prepare(self, rows: DataFrame) -> DataFrame:
        """`rows` with the key's columns, where the kind itself makes some (a window)."""

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """The table from all `rows` (prepared, every sign +1) of the keys in question."""

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """The table's rows for the keys of `changes` (prepared, signed), given its rows `old` of those keys.

        Has the columns of `evaluate` and AGAIN, true where the key must be evaluated from the inputs instead.
        """


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Column names as a tuple, from one name or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def visible(columns: Iterable[str]) -> list[str]:
    """The columns that readers see."""
    return [column for column in columns if not column.startswith("_")]


def same(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> Column:
    """The null-safe equality of `columns` of two frames, as a join condition."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for column in columns:
        condition = condition & left[column].eqNullSafe(right[column])
    return condition
