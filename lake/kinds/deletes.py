"""How rows of a function take rows of a table away: deletes, truncates, and keys that change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns that rows carry while a kind works on them, beside all that the function returned.
FORMER: Final = "__former"  # whether the row stands for the delete of the key that it had before
GONE: Final = "__gone"  # whether the row is a delete


@dataclass(frozen=True)
class Removal:
    """What takes rows away. A delete or truncate counts from its own place in the order: what is older is gone.

    `deletes`: SQL over the function's rows: which of them delete their key.
    `truncate`: SQL over the function's rows: which are broadcast events that delete every key.
    `former`: SQL of the key before the change, by key column; where it is not null and differs, the row deletes the
    former key too.
    """

    deletes: str | None = None
    truncate: str | None = None
    former: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, key: Sequence[str], deletes: str | None, truncate: str | None, former: Mapping[str, str] | None = None
    ) -> Removal:
        """Checked against the `key`. Raises DeclarationError where `former` names a column that is not part of it."""
        for column in former or ():
            if column not in key:
                raise DeclarationError(f"former: {column!r} is not a key column", fix=did_you_mean(column, key))
        return cls(deletes, truncate, dict(former or {}))

    @property
    def by_key(self) -> bool:
        """Whether a key can be deleted by rows of its own."""
        return self.deletes is not None or bool(self.former)

    @property
    def declared(self) -> bool:
        return self.by_key or self.truncate is not None

    @property
    def gone(self) -> str:
        """SQL over prepared rows: whether the row is a delete of its key."""
        deletes = f"coalesce({self.deletes}, false)" if self.deletes else "false"
        return f"({FORMER} or {deletes})" if self.former else deletes

    @property
    def kept(self) -> str:
        """SQL over prepared rows: whether the row speaks of one key."""
        return f"not coalesce({self.truncate}, false)" if self.truncate else "true"

    def prepare(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """`rows`, and for each that changed its key one more, at the same place, that deletes the former key."""
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
