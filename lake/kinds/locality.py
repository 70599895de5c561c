"""Locality: which keys a change of an input affects, and how inputs are restricted to keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from lake.kinds.law import Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Near:
    """The rows of a key have, in the column `on` of the function's rows, a time that is not more than `before` before
    the key's column, and not more than `after` after it.
    """

    on: str
    before: timedelta = timedelta(0)
    after: timedelta = timedelta(0)


class Locality(Law):
    """How rows of the inputs name the keys of the table.

    Rows of a broadcast event (TRUNCATE, say: bucket -1) have no key, belong to every restriction by keys and to every
    `changes`, and a new one affects all keys.
    """

    @property
    def broadcast(self) -> str | None:
        """SQL over the function's rows: which of them are of broadcast events that this kind heeds; None for none."""
        return None

    @property
    def deletes(self) -> str | None:
        """SQL over the function's rows: which of them delete their key; None for none."""
        return None

    def key_of(self, source: str, columns: Sequence[str]) -> dict[str, str]:
        """How a row of input `source` with these `columns` names its key: `{key column: SQL}`, possibly partial.

        Asked of kinds that are not `row_by_row`: their function sees inputs that are restricted by it.
        """
        return {column: f"`{column}`" for column in self.key if column in columns}

    def names_key(self, side: int, /) -> bool:
        """Whether rows of input number `side` have the key's columns."""
        return True

    @property
    def near(self) -> Mapping[str, Near]:
        """Which columns of the key, dates or timestamps, say where in time the rows of a key are."""
        return {column: Near(column) for column in self.key}

    def reaching(self, side: int, changes: DataFrame, /) -> DataFrame:
        """Of signed `changes` of input number `side`, whose rows do not name their keys, what `reaches` looks at."""
        raise NotImplementedError

    def reaches(self, side: int, quote: str, /) -> str:
        """SQL, for Spark and DuckDB, of whether a change `k` affects the key of a row `t`; names in `quote`.

        `t` is of the table, or of the first input where the kind does not absorb.
        """
        raise NotImplementedError

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        """Which prepared rows of input number `side` log order decides between, as lists of SQL expressions.

        It decides between rows that are equal in any one of the returned lists. All rows are equal in ();
        where there are no lists, log order decides nothing.
        """
        return [()]
