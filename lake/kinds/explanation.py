"""Explanation: which rows of the inputs made a row of the table, and the role of each there, in words for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from lake.kinds.columns import ORDER
from lake.kinds.law import Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The columns by which `traced` tells what became of a row.
INTO: Final = "_into"  # struct: the identity of the table's row that it goes into
ROLE: Final = "__role"  # string: what it is there, one of the words below; null where a kind cannot say

DECIDES: Final = "decides"  # the table's row is this one, or has from it the columns that are named
SUPERSEDED: Final = "superseded"  # another row decides
COUNTS: Final = "counts"  # one of those that are added up
DROPPED: Final = "dropped, too late"
DELETES: Final = "deletes"
DELETED: Final = "deleted"  # older than a delete of its key, or than a truncate
TRUNCATES: Final = "truncates"
BEGINS: Final = "begins a version"
CONTINUES: Final = "continues a version"
TIMELESS: Final = "has no time"
APPLIED: Final = "applied"
REFUSED: Final = "refused"  # followed by why
STEP: Final = "step"  # followed by which


class KindExplanation(Law):
    """What became of the rows of the inputs, for the people who ask."""

    @property
    def meanings(self) -> Mapping[str, str]:
        """What the columns mean that the kind itself adds to the function's: {column: meaning}."""
        return {}

    @property
    def late_policy(self) -> tuple[str, timedelta] | None:
        """What becomes of a log's late rows, and how far behind the watermark they are late; None where none are."""
        return None

    @property
    def zone(self) -> str | None:
        """The time zone that its times are declared in; None where none is."""
        return None

    @property
    def keeping_late(self) -> Self:
        """This kind without what it drops for being late; itself where it drops nothing."""
        return self

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """All rows of some keys of input number `side`, once for each row of the table that they go into.

        Their columns, INTO and ROLE. They were prepared by the kind that is `keeping_late`.
        """
        from pyspark.sql import functions as F

        identity = [column for column in self.identity if column in rows.columns]
        return rows.withColumns({INTO: F.struct(*identity), ROLE: F.lit(None).cast("string")})

    def traced_among(self, sides: Sequence[DataFrame], side: int, /) -> DataFrame:
        """`traced` of input number `side`, given the rows of those keys of all inputs."""
        return self.traced(sides[side], side)

    def lookup_values(self, row: Mapping[str, Any], side: int, /) -> dict[str, Any] | None:
        """What rows of input number `side` that went into a table's `row` have in INTO, or in columns of their own.

        None where no row of that input did. Of `row`, some columns may be missing: then what is left.
        """
        return {column: row[column] for column in self.identity if column in row}


def newest_of(key: Sequence[str]) -> str:
    """SQL of the role where of several rows of one `key` the last in log order decides."""
    by = ", ".join(f"`{column}`" for column in key) or "null"
    return f"if({ORDER} = max({ORDER}) over (partition by {by}), '{DECIDES}', '{SUPERSEDED}')"
