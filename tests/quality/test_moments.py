"""Times in expectations: a day, or a time in the zone of the table's windows, for columns of every time type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from lake.errors import DeclarationError
from lake.kinds.aggregate import Aggregate
from lake.kinds.measures.measure import Count
from lake.kinds.windows.window import Calendar, Tumbling
from lake.quality.gx import judge_rows
from lake.quality.suite import Expectation

pytestmark = pytest.mark.slow

VIENNA = "Europe/Vienna"
FIRST = datetime(2024, 3, 30, 22, 30, tzinfo=UTC)
INSTANTS = [
    FIRST + timedelta(minutes=30 * n) for n in range(6)
]  # Around midnight in Vienna, an hour before that of UTC
ROWS = pa.table(
    {
        "k": list(range(6)),
        "at": pa.array(INSTANTS, pa.timestamp("us", "UTC")),
        "local": pa.array([at.replace(tzinfo=None) for at in INSTANTS], pa.timestamp("us")),
        "day": [date(2024, 3, 29) + timedelta(days=n) for n in range(6)],
    }
)
FAILING: list[tuple[str, str | None, Mapping[str, Any], list[int]]] = [
    ("at", None, {"min_value": "2024-03-31"}, [0, 1, 2]),
    ("at", VIENNA, {"min_value": "2024-03-31"}, [0]),
    ("at", VIENNA, {"min_value": "2024-03-31T00:30"}, [0, 1]),
    ("at", VIENNA, {"min_value": "2024-03-31T00:30:00Z"}, [0, 1, 2, 3]),
    ("at", VIENNA, {"max_value": "2024-03-31T02:00:00+01:00", "strict_max": True}, [5]),
    ("at", None, {"min_value": "2024-03-30 23:00", "max_value": "2024-03-31"}, [0, 4, 5]),
    ("local", VIENNA, {"min_value": "2024-03-31"}, [0, 1, 2]),
    ("local", None, {"max_value": "2024-03-30T23:00"}, [2, 3, 4, 5]),
    ("day", VIENNA, {"min_value": "2024-03-31", "max_value": "2024-04-02"}, [0, 1, 5]),
]
SETS: list[tuple[str, str | None, list[str], list[int]]] = [
    ("at", VIENNA, ["2024-03-31", "2024-03-31T00:30"], [0, 3, 4, 5]),
    ("local", None, ["2024-03-31"], [0, 1, 2, 4, 5]),
    ("day", None, ["2024-03-31", "2024-04-01"], [0, 1, 4, 5]),
]


def expectations() -> list[tuple[Expectation, str | None, list[int]]]:
    between, in_set = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"
    return [
        (Expectation(type_, {"column": column} | dict(kwargs), "stop", "", "quality/t.json:3"), zone, failing)
        for type_, column, zone, kwargs, failing in (
            *((between, *case) for case in FAILING),
            *((in_set, column, zone, {"value_set": values}, failing) for column, zone, values, failing in SETS),
        )
    ]


def test_expectation_reads_days_and_times_in_the_zone_of_the_table() -> None:
    for expectation, zone, failing in expectations():
        (finding,) = judge_rows([expectation], ROWS, ("k",), zone=zone)
        assert [row["k"] for row in finding.examples] == failing, (expectation, zone)
        assert (finding.success, finding.failed) == (False, len(failing))


def test_expectation_of_extremes_reads_times_in_the_zone_of_the_table() -> None:
    for column, zone, least in (("at", VIENNA, "2024-03-30T23:30"), ("local", None, "2024-03-30T22:30")):
        for kwargs, holds in (({"min_value": least}, True), ({"min_value": "2024-03-31"}, False)):
            said = Expectation("expect_column_min_to_be_between", {"column": column, **kwargs}, "stop", "", "")
            assert judge_rows([said], ROWS, (), zone=zone)[0].success is holds


def test_row_condition_reads_times_in_the_zone_of_the_table() -> None:
    since = {"type": "comparison", "column": {"name": "at"}, "operator": ">=", "parameter": "2024-03-31"}
    until = since | {"operator": "<", "parameter": "2024-03-31T00:30"}
    both = {"type": "and", "conditions": [since, until]}
    for condition, zone, failing in (
        (since, None, [3, 4, 5]),
        (since, VIENNA, [1, 2, 3, 4, 5]),
        (both, VIENNA, [1]),
    ):
        kwargs = {"column": "k", "max_value": -1, "row_condition": condition}
        said = Expectation("expect_column_values_to_be_between", kwargs, "stop", "", "")
        (finding,) = judge_rows([said], ROWS, ("k",), zone=zone)
        assert [row["k"] for row in finding.examples] == failing
    bad = {"column": "k", "max_value": 1, "row_condition": since | {"parameter": "soon"}}
    with pytest.raises(DeclarationError, match="row_condition 'soon' is not a valid value of a timestamp"):
        judge_rows([Expectation("expect_column_values_to_be_between", bad, "stop", "", "")], ROWS, ())


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *product(("at", "local", "day"), ("soon", "2024-02-30", "31.3.2024", "")),
        ("local", "2024-03-31T00:00Z"),
        ("day", "2024-03-31T00:00"),
    ],
)
def test_expectation_reports_an_invalid_time_with_the_format(column: str, text: str) -> None:
    for name, value in (("min_value", text), ("value_set", ["2024-03-31", text])):
        type_ = f"expect_column_values_to_be_{'in_set' if name == 'value_set' else 'between'}"
        said = Expectation(type_, {"column": column, name: value}, "stop", "", "quality/t.json:3")
        with pytest.raises(DeclarationError, match=r"quality/t\.json:3") as raised:
            judge_rows([said], ROWS, ())
        assert f"{name} {text!r} is not a valid value of a " in str(raised.value)
        assert "2013-01-31" in raised.value.fix


def test_zone_of_a_table_is_that_of_its_window() -> None:
    hour = timedelta(hours=1)
    for window, zone in (
        (Tumbling(on="at", length=hour, zone=VIENNA), VIENNA),
        (Tumbling(on="at", length=hour), None),
        (Calendar(on="at", unit="day", zone=VIENNA), VIENNA),
        (None, None),
    ):
        assert Aggregate("k", {"n": Count()}, window=window).zone == zone
