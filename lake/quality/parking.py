"""Expectations of severity `park`: rows that fail one go to `<table>__parked` instead of the table.

They judge rows that the job's function returns, before the kind, and are part of the definition: a rebuild parks the
same rows. Rows that delete, and those of broadcast events, are never parked. Parked rows have the columns of the
function and those of COLUMN_COMMENTS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from lake.contracts.declared_text import json_text
from lake.quality.row_conditions import ROW_CONDITIONS
from lake.text import SPARK, literal, quoted

SUFFIX: Final = "__parked"
BY, PLACE, ROW = "parked_by", "parked_event", "parked_row"
COLUMN_COMMENTS: Final = {
    BY: "the expectations that the row fails",
    PLACE: "where it comes from: batch:bucket:offset of an event, the identity of a table's row as JSON",
    ROW: "tells rows of one event apart",
}


def parking_fault(type_: str, kwargs: Mapping[str, Any]) -> str:
    """Return why an expectation cannot park, or ""."""
    if type_ not in ROW_CONDITIONS:
        return "cannot park: it needs more than a single row"
    if kwargs.get("mostly", 1) != 1:
        return "cannot park with 'mostly': a row is parked by itself"
    listed = kwargs.get("value_set", [])
    values = [*map(kwargs.get, SCALAR_ARGUMENTS), *(listed if isinstance(listed, list) else [{"value_set": listed}])]
    wrong = [value for value in values if not isinstance(value, str | int | float | Decimal | None)]
    return f"cannot park by {json_text(wrong[0])}" if wrong else ""


def definition_text(type_: str, kwargs: Mapping[str, Any], zone: str | None) -> str:
    """Return the text of an expectation in a table's definition; a changed text requires a deploy.

    Types in SPARK_TEXTS keep the texts stored in existing warehouses.
    """
    if type_ not in SPARK_TEXTS or not kwargs.keys() <= {"column", "value_set", *BOUND_ARGUMENTS}:
        return f"{json.dumps([type_, kwargs], sort_keys=True, default=str)} in {zone or 'UTC'}"
    of_times = any(isinstance(kwargs.get(end), str) for end in ("min_value", "max_value"))
    text = SPARK_TEXTS[type_](quoted(str(kwargs["column"]), SPARK), kwargs)
    return f"{text} in {zone}" if of_times and zone not in {None, "UTC"} else text


def _bounds_text(column: str, kwargs: Mapping[str, Any]) -> str:
    tests = [
        f"{column} {sign}{'' if kwargs.get(f'strict_{end}') else '='} {_literal(kwargs[f'{end}_value'])}"
        for end, sign in (("min", ">"), ("max", "<"))
        if f"{end}_value" in kwargs
    ]
    return " AND ".join(tests) or "true"


def _in_set_text(column: str, kwargs: Mapping[str, Any]) -> str:
    values = ", ".join(map(_literal, kwargs["value_set"]))
    return f"{column} IN ({values})" if values else f"{column} IS NULL"


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return literal(value, SPARK) if isinstance(value, str) else format(Decimal(str(value)), "f")


BOUND_ARGUMENTS: Final = ("min_value", "max_value", "strict_min", "strict_max")
SCALAR_ARGUMENTS: Final = ("min_value", "max_value", "value", "sum_total")
SPARK_TEXTS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], str]]] = {
    "expect_column_values_to_not_be_null": lambda column, _: f"{column} IS NOT NULL",
    "expect_column_values_to_be_null": lambda column, _: f"{column} IS NULL",
    "expect_column_values_to_be_between": _bounds_text,
    "expect_column_value_lengths_to_be_between": lambda column, kwargs: _bounds_text(f"length({column})", kwargs),
    "expect_column_values_to_be_in_set": _in_set_text,
    "expect_column_values_to_not_be_in_set": lambda column, kwargs: f"NOT {_in_set_text(column, kwargs)}",
}
