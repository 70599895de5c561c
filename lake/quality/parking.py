"""Expectations that park: rows that fail one are taken into `<table>__parked` and not into the table.

    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}, "severity": "park"}

They judge what the job's function returns, row by row, before the kind sees it, and are part of the definition: a
rebuild parks the same rows, and a changed expectation wants a deploy. A null meets all but the one that asks for
values. Rows that delete, and those of broadcast events, are never parked. A parked row has the columns that the
function returned, and

    parked_by     string   the expectations that it fails
    parked_event  string   where it comes from: batch:bucket:offset of an event, the identity of a table's row as JSON
    parked_row    string   tells rows of one event apart
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from lake.quoting import SPARK, literal, quoted

SUFFIX: Final = "__parked"
BY, PLACE, ROW = "parked_by", "parked_event", "parked_row"
MEANINGS: Final = {
    BY: "the expectations that the row fails",
    PLACE: "where it comes from: batch:bucket:offset of an event, the identity of a table's row as JSON",
    ROW: "tells rows of one event apart",
}
"""What a table of parked rows adds to the columns of its function."""


def refusal(type_: str, kwargs: Mapping[str, Any]) -> str:
    """Why an expectation cannot park; empty where it can."""
    if type_ not in MEETS:
        return "cannot park: it needs more than a single row, or more than Spark SQL"
    if beyond := sorted(set(kwargs) - ARGUMENTS):
        return f"cannot park with {beyond[0]!r}"
    values = [value for v in kwargs.values() for value in (v if isinstance(v, list) else [v])]
    wrong = [value for value in values if not isinstance(value, str | int | float | bool)]
    return f"cannot park by {json.dumps(wrong[0])}" if wrong else ""


def meets(type_: str, kwargs: Mapping[str, Any]) -> str:
    """Spark SQL of whether a row meets an expectation, of values of its columns' types; null, too, meets it."""
    return MEETS[type_](kwargs)


def _column(kwargs: Mapping[str, Any], name: str = "column") -> str:
    return quoted(str(kwargs[name]), SPARK)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return f"{'timestamp' if isinstance(value, datetime) else 'date'} '{value.isoformat()}'"
    if isinstance(value, int | float):
        return format(Decimal(repr(value)), "f")
    return literal(value, SPARK)


def _within(column: str, kwargs: Mapping[str, Any]) -> str:
    tests = [
        f"{column} {sign}{'' if kwargs.get(f'strict_{end}') else '='} {_value(kwargs[f'{end}_value'])}"
        for end, sign in (("min", ">"), ("max", "<"))
        if f"{end}_value" in kwargs
    ]
    return " AND ".join(tests) or "true"


def _in_set(kwargs: Mapping[str, Any]) -> str:
    values = ", ".join(map(_value, kwargs["value_set"]))
    return f"{_column(kwargs)} IN ({values})" if values else f"{_column(kwargs)} IS NULL"


def _greater(kwargs: Mapping[str, Any]) -> str:
    sign = ">=" if kwargs.get("or_equal") else ">"
    return f"{_column(kwargs, 'column_A')} {sign} {_column(kwargs, 'column_B')}"


MEETS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "expect_column_values_to_not_be_null": lambda kwargs: f"{_column(kwargs)} IS NOT NULL",
    "expect_column_values_to_be_null": lambda kwargs: f"{_column(kwargs)} IS NULL",
    "expect_column_values_to_be_between": lambda kwargs: _within(_column(kwargs), kwargs),
    "expect_column_value_lengths_to_be_between": lambda kwargs: _within(f"length({_column(kwargs)})", kwargs),
    "expect_column_values_to_be_in_set": _in_set,
    "expect_column_values_to_not_be_in_set": lambda kwargs: f"NOT {_in_set(kwargs)}",
    "expect_column_values_to_match_regex": lambda kwargs: f"{_column(kwargs)} RLIKE {_value(kwargs['regex'])}",
    "expect_column_values_to_not_match_regex": lambda kwargs: f"NOT {_column(kwargs)} RLIKE {_value(kwargs['regex'])}",
    "expect_column_pair_values_a_to_be_greater_than_b": _greater,
    "expect_column_pair_values_to_be_equal": lambda kwargs: (
        f"{_column(kwargs, 'column_A')} = {_column(kwargs, 'column_B')}"
    ),
}
"""What can park, each as Spark SQL; regular expressions are Java's."""
ARGUMENTS: Final = frozenset(
    {"column", "column_A", "column_B", "min_value", "max_value", "strict_min", "strict_max", "value_set", "regex"}
    | {"or_equal"}
)
