"""Rows that remove rows of a table: deletes, truncates, and keys that change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns of prepared rows, beside the function's.
FORMER: Final = "__former"  # true of a row that deletes its former key
GONE: Final = "__gone"  # true of a delete


@dataclass(frozen=True)
class Removal:
    """SQL that marks removing rows. A delete or truncate removes only what is older by the kind's order.

    deletes: condition over the function's rows, true of rows that delete their key
    truncate: condition over the function's rows, true of broadcast events that delete every key
    former: {key column: SQL of its value before the change}; if it differs and is not null, the former key is deleted
    """

    deletes: str | None = None
    truncate: str | None = None
    former: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, key: Sequence[str], deletes: str | None, truncate: str | None, former: Mapping[str, str] | None = None
    ) -> Removal:
        """Raise DeclarationError if `former` names a column outside `key`."""
        for column in former or ():
            if column not in key:
                raise DeclarationError(f"former: {column!r} is not a key column", fix=did_you_mean(column, key))
        return cls(deletes, truncate, dict(former or {}))

    @property
    def by_key(self) -> bool:
        return self.deletes is not None or bool(self.former)

    @property
    def declared(self) -> bool:
        return self.by_key or self.truncate is not None

    @property
    def gone(self) -> str:
        deletes = f"coalesce({self.deletes}, false)" if self.deletes else "false"
        return f"({FORMER} or {deletes})" if self.former else deletes

    @property
    def kept(self) -> str:
        return f"not coalesce({self.truncate}, false)" if self.truncate else "true"

    def prepare(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """Add to each row that changed its key a row at the same place that deletes the former key."""
        from pyspark.sql import functions as F

        if not self.former:
            return rows
        before = {column: f"coalesce({self.former[column]}, `{column}`)" for column in key if column in self.former}
        moved = " or ".join(f"not ({sql} <=> `{column}`)" for column, sql in before.items())
        images = F.expr(f"explode(if({moved}, array(false, true), array(false)))").alias(FORMER)
        keys = {
            column: F.expr(f"if({FORMER}, {sql}, `{column}`)").cast(rows.schema[column].dataType)
            for column, sql in before.items()
        }
        return rows.select("*", images).withColumns(keys)
