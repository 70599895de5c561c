"""A row's place: the values by which a key's rows are ordered, log order last, so that no two share one."""

from __future__ import annotations

from typing import Final

from lake.kinds.kind import ORDER

AT: Final = "_at"  # state: the place of what a table's row shows


def place(*sequence: str) -> str:
    """SQL of a row's place: a struct of its values of `sequence` and its log order; a null is older than any value."""
    return f"struct({', '.join(f'`{column}`' for column in (*sequence, ORDER))})"
