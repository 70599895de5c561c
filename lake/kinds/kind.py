"""The kind of a table: the law that it obeys, and everything that the engine asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from lake.errors import DeclarationError
from lake.kinds.columns import ORDER, partition_by
from lake.lazy import DataFrame, F

ALL_FINAL: Final = datetime.max.replace(tzinfo=UTC)
"""The horizon of a log that waits for no producer: all its rows are final."""

# Columns of `Kind.traced`.
INTO: Final = "_into"  # struct: the identity of the table's row
ROLE: Final = "__role"  # string: one of the words below; null if unknown

DECIDES: Final = "decides"  # gives the table's row, or the columns named after it
SUPERSEDED: Final = "superseded"  # another row decides
COUNTS: Final = "counts"  # is added up
DROPPED: Final = "dropped, too late"
DELETES: Final = "deletes"
DELETED: Final = "deleted"  # older than a delete of its key, or than a truncate
TRUNCATES: Final = "truncates"
BEGINS: Final = "begins a version"
CONTINUES: Final = "continues a version"
TIMELESS: Final = "has no time"
APPLIED: Final = "applied"
REFUSED: Final = "refused"  # a reason follows
STEP: Final = "step"  # its name follows


def newest_of(key: Sequence[str]) -> str:
    """Return SQL of the role if the last row of a `key` in log order decides."""
    return f"if({ORDER} = max({ORDER}) over ({partition_by(key)}), '{DECIDES}', '{SUPERSEDED}')"


@dataclass(frozen=True)
class TimeBounds:
    """Times of a key's rows in column `on`: at most `before` before and `after` after the key's column."""

    on: str
    before: timedelta = timedelta(0)
    after: timedelta = timedelta(0)


class Kind(ABC):
    """Rule by which a table follows from the rows that its function returns. It knows neither Delta nor a clock.

    Locality:    evaluate(rows restricted to keys K) == evaluate(rows) restricted to K
    Absorption:  absorb(evaluate(a), b) == evaluate(a + b), for keys not marked as AGAIN
    Identity:    evaluate(rows) has one row per `identity`; checked before each commit

    `rows` have the function's columns and the carried ones (see lake.kinds.columns). The function's columns that begin
    with `_` do not enter the table. Columns of a result that begin with `_` are state for absorption: readers do not
    see it, and it is safe to lose.

    A broadcast event (a TRUNCATE, in bucket -1) has no key. It belongs to every restriction by keys and to all
    `changes`, and a new one affects all keys.
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

    @property
    def broadcast(self) -> str | None:
        """SQL over the function's rows, true of broadcast events that change the table; None if none do."""
        return None

    deletes: str | None = None
    """SQL over the function's rows, true of rows that delete their key; None if none do."""

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

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        """Yield errors if this declaration is not repeatable or would round the function's rows; reads types alone."""
        yield from ()

    recursive: bool = False
    """True if the query of a function over whole inputs may be recursive."""

    @property
    def invariants(self) -> Mapping[str, str]:
        """Conditions that every result satisfies: {name: DuckDB SQL over `{table}` for rows that break it}; a gate."""
        return {}

    current: ClassVar[str | None] = None
    """Boolean column, true of the rows that are valid now: editions are compared by these; None if all are."""

    @property
    def current_identity(self) -> tuple[str, ...]:
        return self.identity

    @property
    def file_order(self) -> tuple[str, ...]:
        """Columns that sort rows into files: rows that are not current hardly change, and are in files of their own."""
        return (self.current, *self.identity) if self.current else self.identity

    @property
    def meanings(self) -> Mapping[str, str]:
        """{column that the kind itself adds: its meaning}."""
        return {}

    @property
    def late_policy(self) -> tuple[str, timedelta] | None:
        """(treatment of a log's late rows, distance behind the watermark at which a row is late); None if no row is."""
        return None

    @property
    def zone(self) -> str | None:
        """The time zone of its times, if declared."""
        return None

    @property
    def keeping_late(self) -> Self:
        return self

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """Return `rows`, of some keys of input number `side`, once for each row of the table that they go into.

        Adds INTO and ROLE. The rows must be prepared by the kind `keeping_late`, which drops no late rows.
        """
        identity = [column for column in self.identity if column in rows.columns]
        return rows.withColumns({INTO: F.struct(*identity), ROLE: F.lit(None).cast("string")})

    def traced_among(self, sides: Sequence[DataFrame], side: int, /) -> DataFrame:
        """Do as `traced` for input number `side`, given the rows of those keys of all inputs."""
        return self.traced(sides[side], side)

    def lookup_values(self, row: Mapping[str, Any], side: int, /) -> dict[str, Any] | None:
        """Return the values by which input rows of `row` are found, in INTO or in their own columns.

        None if no row of input number `side` went into it. Columns missing from `row` are left out.
        """
        return {column: row[column] for column in self.identity if column in row}
