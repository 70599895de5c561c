"""The kind of a table: everything that the engine asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from lake.errors import DeclarationError
from lake.kinds.columns import ORDER
from lake.kinds.law import Locality
from lake.kinds.spark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    by = ", ".join(f"`{column}`" for column in key) or "null"
    return f"if({ORDER} = max({ORDER}) over (partition by {by}), '{DECIDES}', '{SUPERSEDED}')"


class Kind(Locality):
    """Rule by which a table follows from its inputs. It knows neither Delta nor a clock."""

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
        """DuckDB SQL over rows of the table, true of valid ones: those that editions are compared by."""
        return "true"

    @property
    def current_identity(self) -> tuple[str, ...]:
        return self.identity

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
        """Return the given rows, of some keys of input number `side`, once for each row of the table that they go
        into.

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
