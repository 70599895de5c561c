"""Counts of a batch's records by outcome, or of several batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

RECORDS: Final = ("read", "accepted", "duplicates", "quarantined", "control")


@dataclass(frozen=True)
class BatchCounts:
    """Numbers of records by outcome; `read` is their sum. Without a new batch: zeros, and the number of the last one.

    `not_by_duckdb` is the reason if DuckDB did not read a small batch.
    """

    batch: int
    read: int = 0
    accepted: int = 0
    duplicates: int = 0
    quarantined: int = 0
    control: int = 0
    engine: str | None = field(default=None, compare=False)
    not_by_duckdb: str | None = field(default=None, compare=False)

    @property
    def records(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in RECORDS}

    def after(self, earlier: BatchCounts) -> BatchCounts:
        """Return the sums with those of an earlier batch, and the number of this one."""
        sums = {name: count + earlier.records[name] for name, count in self.records.items()}
        # SPARK if any batch needed it: it comes last in alphabetical order.
        engine = max(self.engine or "", earlier.engine or "") or None
        return replace(self, **sums, engine=engine, not_by_duckdb=self.not_by_duckdb or earlier.not_by_duckdb)
