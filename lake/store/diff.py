"""Diffs: rows of a table to insert, update and delete, each with what becomes of it in the column CHANGE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CHANGE: Final = "_change"
"""The column of a diff that says what becomes of a row: insert, update or delete."""


@dataclass(frozen=True)
class Counts:
    """How many rows a commit changes."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted

    @classmethod
    def of(cls, diff: pa.Table | DataFrame) -> Counts:
        """The counts of a diff."""
        import pyarrow as pa

        if isinstance(diff, pa.Table):
            found = {each["values"]: each["counts"] for each in diff.column(CHANGE).value_counts().to_pylist()}
        else:
            found = {row[CHANGE]: row["count"] for row in diff.groupBy(CHANGE).count().collect()}
        return cls(found.get("insert", 0), found.get("update", 0), found.get("delete", 0))
