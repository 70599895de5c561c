"""Law of a kind: the result of all rows of some keys, of changes in them, and the keys that a change affects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Law(ABC):
    """Rule by which a table follows from the rows that its function returns.

    Locality:    evaluate(rows restricted to keys K) == evaluate(rows) restricted to K
    Absorption:  absorb(evaluate(a), b) == evaluate(a + b), for keys not marked as AGAIN
    Identity:    evaluate(rows) has one row per `identity`; checked before each commit

    `rows` have the function's columns and the carried ones (see lake.kinds.columns). The function's columns that begin
    with `_` do not enter the table. Columns of a result that begin with `_` are state for absorption: readers do not
    see it, and it is safe to lose.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Number that grows if the same declaration gives other rows than before."""

    @property
    def revision(self) -> int:
        """The `version`, plus a number for declarations of this kind that alone give other rows than before."""
        return self.version

    @property
    def digested(self) -> tuple[str, ...]:
        """Columns of the function that an id is made of. If one is nested, the `revision` grows by one.

        Earlier revisions gave ["a, b"] and ["a", "b"] one id.
        """
        return ()

    row_by_row: ClassVar[bool] = True
    """True if the declared function must map each row of an input alone, and returns one frame per input."""

    chooses: ClassVar[bool] = False
    """True if each value is null or taken from the same column of a row of the first input."""

    if TYPE_CHECKING:  # fields or properties of a kind

        @property
        def key(self) -> tuple[str, ...]:
            """The columns of locality; () makes the whole table one key."""

        @property
        def identity(self) -> tuple[str, ...]:
            """The columns that identify a row of the table, the key included."""

    @property
    def inputs(self) -> tuple[int, int]:
        """The least and the greatest number of inputs."""
        return 1, 1

    @abstractmethod
    def requires(self, side: int = 0, /) -> dict[str, str]:
        """Return {column that the function must return for input number `side`: its use}."""

    @property
    def needs_time(self) -> bool:
        """True if rows must carry TIME and WATERMARK: the input is a log with a declared event time."""
        return False

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        """Return the function's columns that are compared with times of other rows or logs."""
        return ()

    @property
    def needs_refusals(self) -> bool:
        """True if rows must carry DELIVERED, since missing rows matter and a refused record is a missing row."""
        return False

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """Add the key's columns that the kind itself makes (a window) to `rows` of input number `side`."""
        return rows

    evaluate: Callable[..., DataFrame]
    """evaluate(rows, …): the table from all rows of some keys; one prepared frame per input, signs +1."""

    @property
    def absorbs(self) -> bool:
        """True if `absorb` exists; otherwise the affected keys are evaluated."""
        return True

    absorb: Callable[..., DataFrame]
    """absorb(old, changes, …): the table's new rows for the affected keys, whose present rows are `old`.

    `changes` are signed, prepared rows of the first input; all rows of the other inputs follow. The result has the
    columns of `evaluate` and AGAIN, true if the key must be evaluated from the inputs instead. Such a key needs one
    row, whose other columns are ignored. An affected key without a row is deleted.
    """

    def at_horizon(self, rows: DataFrame, /, *horizons: datetime | None) -> DataFrame:
        """Set the columns of a result that depend on `horizons`, the watermark of each log at the cut.

        ALL_FINAL stands for a log that waits for no producer. Kinds that do not need time get none.
        """
        return rows

    def changed_by_horizon(self, *horizons: datetime | None) -> str | None:
        """Return SQL over rows of the table, true of those that `at_horizon` changes; None if it never changes any."""
        return None


@dataclass(frozen=True)
class TimeBounds:
    """Bounds of the times of a key's rows.

    In column `on` they are at most `before` before and `after` after the key's column.
    """

    on: str
    before: timedelta = timedelta(0)
    after: timedelta = timedelta(0)


class Locality(Law):
    """Rule by which rows of the inputs name keys of the table.

    A broadcast event (a TRUNCATE, in bucket -1) has no key. It belongs to every restriction by keys and to all
    `changes`, and a new one affects all keys.
    """

    @property
    def broadcast(self) -> str | None:
        """SQL over the function's rows, true of broadcast events that change the table; None if none do."""
        return None

    @property
    def deletes(self) -> str | None:
        """SQL over the function's rows, true of rows that delete their key; None if none do."""
        return None

    def key_of(self, source: str, columns: Sequence[str]) -> dict[str, str]:
        """Return {key column: SQL over a row of input `source`}, possibly for some key columns only.

        Called for kinds that are not `row_by_row`: it restricts the inputs of their function.
        """
        return {column: f"`{column}`" for column in self.key if column in columns}

    def names_key(self, side: int, /) -> bool:
        """Return whether rows of input number `side` have the key's columns."""
        return True

    @property
    def time_bounds(self) -> Mapping[str, TimeBounds]:
        """{key column, a date or timestamp: bounds of the times of a key's rows}."""
        return {column: TimeBounds(column) for column in self.key}

    def reaching(self, side: int, changes: DataFrame, /) -> DataFrame:
        """Return the part of signed `changes` that `reaches` reads, for an input whose rows do not name their keys."""
        raise NotImplementedError

    def reaches(self, side: int, quote: str, /) -> str:
        """Return SQL, for Spark and DuckDB, true if a change `k` affects the key of a row `t`; names in `quote`.

        `t` is a row of the table, or of the first input if the kind does not absorb.
        """
        raise NotImplementedError

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        """Return lists of SQL expressions: log order decides between prepared rows that are equal in one of the lists.

        All rows are equal in (). Without lists log order decides nothing.
        """
        return [()]
