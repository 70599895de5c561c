"""Locality: keys that a change of an input affects, and restriction of inputs to keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lake.kinds.law import Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
