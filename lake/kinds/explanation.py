"""Explanation of a table: which input rows made a row, and the role of each, in words for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from lake.kinds.columns import ORDER
from lake.kinds.law import Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns of `traced`.
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


class KindExplanation(Law):
    """Hooks of a kind that explain rows and columns of its table."""

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
        """The time zone of its times; None if none is declared."""
        return None

    @property
    def keeping_late(self) -> Self:
        """This kind without the dropping of late rows."""
        return self

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """Return the given rows, of some keys of input number `side`, once for each row of the table that they go into.

        Adds INTO and ROLE. The rows must be prepared by the kind `keeping_late`.
        """
        from pyspark.sql import functions as F

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


def newest_of(key: Sequence[str]) -> str:
    """Return SQL of the role if the last row of a `key` in log order decides."""
    by = ", ".join(f"`{column}`" for column in key) or "null"
    return f"if({ORDER} = max({ORDER}) over (partition by {by}), '{DECIDES}', '{SUPERSEDED}')"
