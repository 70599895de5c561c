"""Expectations that park: rows that fail one are taken into `<table>__parked` and not into the table.

    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}, "severity": "park"}

They judge what the job's function returns, row by row, before the kind sees it, and are part of the definition: a
rebuild parks the same rows, and a changed expectation wants a deploy. They mean what they mean to the gate. Rows that
delete, and those of broadcast events, are never parked. A parked row has the columns that the function returned, and

    parked_by     string   the expectations that it fails
    parked_event  string   where it comes from: batch:bucket:offset of an event, the identity of a table's row as JSON
    parked_row    string   tells rows of one event apart
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lake.quality.meanings import MEETS

SUFFIX: Final = "__parked"
BY, PLACE, ROW = "parked_by", "parked_event", "parked_row"
MEANINGS: Final = {
    BY: "the expectations that the row fails",
    PLACE: "where it comes from: batch:bucket:offset of an event, the identity of a table's row as JSON",
    ROW: "tells rows of one event apart",
}
"""What a table of parked rows adds to the columns of its function."""


def refusal(type_: str, kwargs: Mapping[str, Any]) -> str:
    """Return why an expectation cannot park; empty if it can."""
    if type_ not in MEETS:
        return "cannot park: it needs more than a single row"
    if kwargs.get("mostly", 1) != 1:
        return "cannot park with 'mostly': a row is parked by itself"
    return ""
