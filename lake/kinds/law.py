"""The law of a kind: what it makes of all rows of some keys, and of what changed in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Law(ABC):
    """How a table follows from the rows that its function returns.

    Locality:    evaluate(rows restricted to keys K) == evaluate(rows) restricted to K
    Absorption:  absorb(evaluate(a), b) == evaluate(a + b), for the keys that it does not mark as AGAIN
    Identity:    evaluate(rows) has one row of an `identity`; tried before each commit

    `rows` have the function's columns and the carried ones (see lake.kinds.columns). A function's columns whose names
    begin with `_` are for the kind alone and do not enter the table. Columns of a result whose names begin with `_` are
    state: what absorption needs, hidden from readers, safe to lose.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    """Grows when the same declaration gives other rows than before."""

    @property
    def revision(self) -> int:
        """The `version`, and more where only some declarations of this kind give other rows than before."""
        return self.version

    @property
    def digested(self) -> tuple[str, ...]:
        """The function's columns that an id is made of: one more than the `revision` counts where one is nested.

        Nested values of one text, ["a, b"] and ["a", "b"], had one id once.
        """
        return ()

    row_by_row: ClassVar[bool] = True
    """Whether the declared function must map each row of an input alone: it returns one frame per input."""

    chooses: ClassVar[bool] = False
    """Whether each value of a column is null, or one that the same column has in a row of the first input with it."""

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

    @abstractmethod
    def requires(self, side: int = 0, /) -> dict[str, str]:
        """Columns that the function must return for input number `side`, each with what it is for."""

    @property
    def needs_time(self) -> bool:
        """Whether rows must carry TIME and WATERMARK: the input is a log whose contract declares an event time."""
        return False

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        """The function's columns for input number `side` that are compared with the times of other rows or logs."""
        return ()

    @property
    def heeds_refusals(self) -> bool:
        """Whether rows must carry DELIVERED: what is not there matters, so what was refused does."""
        return False

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """`rows` of input number `side` with the key's columns, where the kind itself makes some (a window)."""
        return rows

    evaluate: Callable[..., DataFrame]
    """evaluate(rows, …): the table from all rows of the keys in question; one frame per input, prepared, signs +1."""

    @property
    def absorbs(self) -> bool:
        """Whether `absorb` is there; where it is not, the affected keys are evaluated."""
        return True

    absorb: Callable[..., DataFrame]
    """absorb(old, changes, …): the table's rows for the affected keys, given its rows `old` of those keys.

    `changes` are signed rows of the first input, prepared; after them come all rows of the other inputs. Has the
    columns of `evaluate` and AGAIN, true where the key must be evaluated from the inputs instead; of such a key at
    least one row must be there, its other columns are ignored. An affected key without a row is gone.
    """

    def at_horizon(self, rows: DataFrame, /, *horizons: datetime | None) -> DataFrame:
        """`rows` of a result with the columns that depend on `horizons`: of each input, which is a log, the
        watermark at the cut, or `lake.kinds.kind.ALL_FINAL`; none where the kind does not need time.
        """
        return rows

    def changed_by_horizon(self, *horizons: datetime | None) -> str | None:
        """SQL over rows of the table: which of them `at_horizon` changes; None where it changes none, ever."""
        return None
