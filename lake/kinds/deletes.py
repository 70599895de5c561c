"""Kinds whose rows other rows remove: deletes, truncates, and keys that change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from lake.kinds.columns import names, partition_by
from lake.kinds.kind import Kind
from lake.lazy import DataFrame, F

# Columns of prepared rows, beside the function's.
FORMER: Final = "__former"  # true of a row that deletes its former key
GONE: Final = "__gone"  # true of a delete


@frozen(kw_only=True)
class KeyedRows(Kind):
    """Kind over rows of a key in the order of `sequence`. A delete or truncate removes only what is older.

    deletes: SQL over the function's rows, true of rows that delete their key
    truncate: SQL over the function's rows, true of broadcast events that delete every key
    former: {key column: SQL of its value before the change}; if it differs and is not null, the former key is deleted
    """

    by: tuple[str, ...] = field(converter=names, kw_only=False, alias="key")
    sequence: tuple[str, ...] = field(converter=names, default=())
    deletes: str | None = None
    truncate: str | None = None

    @property
    def former(self) -> Mapping[str, str] | None:
        return None

    @property
    def key(self) -> tuple[str, ...]:
        return self.by

    @property
    def _partition(self) -> str:
        return partition_by(self.by)

    @property
    def broadcast(self) -> str | None:
        return self.truncate

    @property
    def deletes_by_key(self) -> bool:
        return self.deletes is not None or bool(self.former)

    @property
    def gone(self) -> str:
        """SQL over prepared rows, true of those that delete their key."""
        deletes = f"coalesce({self.deletes}, false)" if self.deletes else "false"
        return f"({FORMER} or {deletes})" if self.former else deletes

    @property
    def kept(self) -> str:
        """SQL over the function's rows, false of truncates."""
        return f"not coalesce({self.truncate}, false)" if self.truncate else "true"

    def requires(self, side: int = 0, /) -> dict[str, str]:
        return dict.fromkeys(self.sequence, "sequence") | dict.fromkeys(self.by, "key")

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """Add to each row that changed its key a row at the same place that deletes the former key."""
        former = self.former
        if not former:
            return rows
        before = {column: f"coalesce({former[column]}, `{column}`)" for column in self.by if column in former}
        moved = " or ".join(f"not ({sql} <=> `{column}`)" for column, sql in before.items())
        images = F.expr(f"explode(if({moved}, array(false, true), array(false)))").alias(FORMER)
        keys = {
            column: F.expr(f"if({FORMER}, {sql}, `{column}`)").cast(rows.schema[column].dataType)
            for column, sql in before.items()
        }
        return rows.select("*", images).withColumns(keys)
