"""The laws that every kind of table obeys, and the columns through which kind and engine speak."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lake.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that the engine adds to a function's input and finds again in its output.
ORDER: Final = "_order"  # struct, totally ordered: of an event (batch, arrival, bucket, offset), or a row's identity
SIGN: Final = "_sign"  # int: +1 a row that is there, -1 one that is gone
TIME: Final = "_time"  # timestamp: event time; absent over derived tables
WATERMARK: Final = "_watermark"  # timestamp: greatest event time of earlier batches; absent over derived tables
DELIVERED: Final = (
    "_delivered"  # struct, see lake.kinds.snapshots; only for kinds that heed refusals, over logs that have any
)
CARRIED: Final = (ORDER, SIGN, TIME, WATERMARK, DELIVERED)

# The column by which `absorb` says that a key must be evaluated again.
AGAIN: Final = "_again"


# The columns by which `traced` tells what became of a row.
INTO: Final = "_into"  # struct: the identity of the table's row that it goes into
STANDING: Final = "_standing"  # string: what it is there; null where a kind cannot say


class Kind(ABC):
    """How a derived table follows from the rows that its function returns.

    Pure: DataFrame in, DataFrame out; a kind knows neither Delta nor a clock.

    Locality:    evaluate(rows restricted to keys K) == evaluate(rows) restricted to K
    Absorption:  absorb(evaluate(a), b) == evaluate(a + b), for the keys that it does not mark as AGAIN
    Identity:    evaluate(rows) has one row of an `identity`; tried before each commit

    `rows` have the function's columns and the carried ones. A function's columns whose names begin with `_` are for
    the kind alone and do not enter the table. Columns of a result whose names begin with `_` are state: what
    absorption needs, hidden from readers, safe to lose.

    Rows of a broadcast event (TRUNCATE, say: bucket -1) have no key, belong to every restriction by keys and to every
    `changes`, and a new one touches all keys.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Grows when the same declaration gives other rows than before."""

    @property
    def revision(self) -> int:
        """The `version`, and more where only some declarations of this kind give other rows than before."""
        return self.version

    row_by_row: ClassVar[bool] = True
    """Whether the declared function must map each row of an input alone: it returns one frame per input."""

    if TYPE_CHECKING:  # kinds have them as fields or as properties

        @property
        def key(self) -> tuple[str, ...]:
            """The columns that locality goes by; () makes the whole table one key."""

        @property
        def identity(self) -> tuple[str, ...]:
            """The columns that tell the table's rows apart; they include the key."""

    @property
    def inputs(self) -> tuple[int, int]:
        """The least and the greatest number of inputs."""
        return 1, 1

    @property
    def absorbs(self) -> bool:
        """Whether `absorb` is there; where it is not, touched keys are evaluated."""
        return True

    @property
    def needs_time(self) -> bool:
        """Whether rows must carry TIME and WATERMARK: the input is a log whose contract declares an event time."""
        return False

    @abstractmethod
    def requires(self, side: int = 0, /) -> dict[str, str]:
        """Columns that the function must return for input number `side`, each with what it is for."""

    def key_of(self, source: str, columns: Sequence[str]) -> dict[str, str]:
        """How a row of input `source` with these `columns` names its key: `{key column: SQL}`, possibly partial.

        Asked of kinds that are not `row_by_row`: their function sees inputs that are restricted by it.
        """
        return {column: f"`{column}`" for column in self.key if column in columns}

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """`rows` of input number `side` with the key's columns, where the kind itself makes some (a window)."""
        return rows

    evaluate: Callable[..., DataFrame]
    """evaluate(rows, …): the table from all rows of the keys in question; one frame per input, prepared, signs +1."""

    absorb: Callable[..., DataFrame]
    """absorb(old, changes, …): the table's rows for the touched keys, given its rows `old` of those keys.

    `changes` are signed rows of the first input, prepared; after them come all rows of the other inputs. Has the
    columns of `evaluate` and AGAIN, true where the key must be evaluated from the inputs instead; of such a key at
    least one row must be there, its other columns are ignored. A touched key without a row is gone.
    """

    @property
    def broadcast(self) -> str | None:
        """SQL over the function's rows: which of them are of broadcast events that this kind heeds."""
        return None

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        """Which prepared rows of input number `side` log order decides between: those alike in the SQL of one of these.

        () is alike in all rows; where the list is empty, log order decides nothing.
        """
        return [()]

    @property
    def heeds_refusals(self) -> bool:
        """Whether rows must carry DELIVERED: what is not there matters, so what was refused does."""
        return False

    @property
    def invariants(self) -> Mapping[str, str]:
        """What always holds of a result: {name: DuckDB SQL over `{table}` for the rows that break it}; a gate."""
        return {}

    def names_key(self, side: int, /) -> bool:
        """Whether rows of input number `side` have the key's columns."""
        return True

    def reaching(self, side: int, changes: DataFrame, /) -> DataFrame:
        """Of signed `changes` of input number `side`, whose rows do not name their keys, what `reaches` looks at."""
        raise NotImplementedError

    def reaches(self, side: int, quote: str, /) -> str:
        """SQL, for Spark and DuckDB, of whether a change `k` touches the key of a row `t`; names in `quote`.

        `t` is of the table, or of the first input where the kind does not absorb.
        """
        raise NotImplementedError

    def aged(self, rows: DataFrame, horizon: datetime | None) -> DataFrame:
        """`rows` of a result with the columns that depend on `horizon`, the log's greatest event time at the cut."""
        return rows

    def due(self, horizon: datetime | None) -> str | None:
        """SQL over rows of the table: which of them `aged` changes at `horizon`; None where it changes none, ever."""
        return None

    @property
    def tolerant(self) -> Kind:
        """This kind without what it drops for being late; itself where it drops nothing."""
        return self

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """All rows of some keys of input number `side`, once for each row of the table that they go into.

        Their columns, INTO and STANDING (see lake.kinds.explanation). They were prepared by the `tolerant` kind.
        """
        from pyspark.sql import functions as F

        known = [column for column in self.identity if column in rows.columns]
        return rows.withColumns({INTO: F.struct(*known), STANDING: F.lit(None).cast("string")})

    def found_by(self, row: Mapping[str, Any], side: int, /) -> dict[str, Any] | None:
        """What rows of input number `side` that went into a table's `row` have in INTO, or in columns of their own.

        None where no row of that input did. Of `row`, some columns may be missing: then what is left.
        """
        return {column: row[column] for column in self.identity if column in row}


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Column names as a tuple, from one name or several. Raises DeclarationError for what is neither."""
    found = (given,) if isinstance(given, str) else given
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise DeclarationError(f"expected names of columns, found {given!r}", fix='write "a" or ("a", "b")')
    return tuple(found)


def as_sql(*names: str) -> tuple[str, ...]:
    """The SQL of columns."""
    return tuple(f"`{name}`" for name in names)


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


def in_log_order(rows: DataFrame) -> bool:
    """Whether `rows` are of a log, where what comes later is newer, and not of a table."""
    return "_batch" in rows.select(f"{ORDER}.*").columns


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Of each `key` the last row in log order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*key).orderBy(F.desc(ORDER))
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")


def digest(rows: DataFrame, columns: Iterable[str]) -> str:
    """SQL for an identifier of the values of `columns` of `rows`: 32 hexadecimal digits of the SHA-256 of an encoding.

    The encoding marks nulls and writes each value's length before it, so that no two lists of values share one. What
    is nested is written twice: its text does not tell ["a, b"] from ["a", "b"], JSON has no microseconds.
    """
    types = dict(rows.dtypes)
    texts = [f"cast(`{column}` as string)" for column in columns]
    texts += [f"to_json(`{column}`)" for column in columns if types[column].startswith(("array<", "struct<", "map<"))]
    parts = (f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
    return f"left(sha2(concat({', '.join(parts)}), 256), 32)"
