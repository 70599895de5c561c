"""The kind of a table: everything that the engine asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError
from lake.kinds.explanation import KindExplanation
from lake.kinds.locality import Locality

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALL_FINAL: Final = datetime.max.replace(tzinfo=UTC)
"""The horizon of a log that waits for no producer any more: all its rows are final."""


class Kind(Locality, KindExplanation):
    """Rule by which a table follows from its inputs. It knows neither Delta nor a clock.

    Its own members serve plans, gates and expectations.
    """

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        """Yield errors if this declaration is not repeatable or would round the function's rows; reads types alone."""
        yield from ()

    @property
    def may_recurse(self) -> bool:
        """True if the query of a function over whole inputs may be recursive."""
        return False

    @property
    def invariants(self) -> Mapping[str, str]:
        """Conditions that every result satisfies: {name: DuckDB SQL over `{table}` for rows that break it}; a gate."""
        return {}

    @property
    def current(self) -> str:
        """DuckDB SQL over rows of the table, true of rows that are valid now: those that editions are compared by."""
        return "true"

    @property
    def current_identity(self) -> tuple[str, ...]:
        """The columns that identify a current row."""
        return self.identity
