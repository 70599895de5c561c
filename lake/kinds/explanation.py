"""What became of a row in the row of a table that it belongs to, in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lake.kinds.kind import ORDER

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


def newest_of(key: Sequence[str]) -> str:
    """SQL of the standing where of several rows of one `key` the last in log order decides."""
    by = ", ".join(f"`{column}`" for column in key) or "null"
    return f"if({ORDER} = max({ORDER}) over (partition by {by}), '{DECIDES}', '{SUPERSEDED}')"
