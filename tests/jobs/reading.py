"""Tables as written by hand: columns separated by two spaces or more, a dash for null."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

NULL = "-"


def cells(text: str) -> list[dict[str, str | None]]:
    """Return the rows of a table whose first line names its columns."""
    names, *rows = [re.split(r"\s{2,}", line.strip()) for line in text.strip().splitlines()]
    return [dict(zip(names, (None if cell == NULL else cell for cell in row), strict=True)) for row in rows]


def as_cells(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[dict[str, str | None]]:
    """Return `columns` of `rows` in the form of `cells`: times without seconds, lists in one cell."""
    return [{column: _cell(row[column]) for column in columns} for row in rows]


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    if hasattr(value, "strftime"):
        return str(value.strftime("%m-%d %H:%M"))
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
