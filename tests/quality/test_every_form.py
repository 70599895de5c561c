"""Every member of a quality file with every form of JSON: it is judged, or reported with its line and a fix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from lake.errors import DeclarationError
from lake.quality.expectation_types import EDITION_TYPES, known_types, rule_of
from lake.quality.gate import check_suite_fits
from lake.quality.gx import build_judges, judge_rows
from lake.quality.suite import Suite, read_suite
from tests.quality import oracle
from tests.quality.test_row_conditions import CASES, ROWS, WHOLE, suitable

pytestmark = pytest.mark.slow

LONG: Final = "0.12345678901234567890"
FORMS: Final = {
    **{form: form for form in ("null", "5", f"-{LONG}", '"words"', "[]", "[[1]]")},
    "a list of long numbers": f"[{LONG}]",
    "an object of a long number": f'{{"a": {LONG}}}',
    "a huge number": "9" * 900,
    "parts that are none": '{"type": "and", "conditions": 5}',
}
TABLE: Final = oracle.table(ROWS[:50])
MORE: Final[dict[str, dict[str, Any]]] = {
    "expect_column_most_common_value_to_be_in_set": {"column": "flag", "value_set": [True]},
    "expect_column_quantile_values_to_be_between": {
        "column": "money",
        "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
    },
    "expect_column_to_exist": {"column": "money"},
    "expect_table_column_count_to_be_between": {"min_value": 1},
    "expect_table_column_count_to_equal": {"value": 5},
    "expect_table_columns_to_match_ordered_list": {"column_list": ["id"]},
    "expect_table_columns_to_match_set": {"column_set": ["id"]},
    "expect_table_row_count_to_be_between": {"min_value": 1},
    "expect_table_row_count_to_equal": {"value": 5},
    "unexpected_rows_expectation": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE false"},
    **{type_: {"column": "money", "share": 0.5, "rows": 5} for type_ in EDITION_TYPES},
}


@cache
def valid_arguments(type_: str) -> dict[str, Any]:
    found = next((kwargs for case in CASES if case[0] == type_ for _, kwargs in suitable([case])), None)
    if found is None and type_ in WHOLE:
        kwargs, columns = WHOLE[type_]
        found = {"column": columns[0], **kwargs}
    return {name: value for name, value in (found or MORE[type_]).items() if name in rule_of(type_).arguments}


TYPES: Final = [type_ for type_ in known_types() if not rule_of(type_).unsupported]


def judged(file: Path, elements: str) -> list[str]:
    """Return the message and the fix of the fault, if any."""
    file.write_text(f'{{"expectations": [\n{elements}]}}')
    try:
        suite = read_suite(file)
        expectations = [each for each in (*suite.expectations, *suite.parking) if not each.rule.compares_editions]
        check_suite_fits(Suite(suite.table, (*suite.expectations, *suite.parking)), TABLE.schema, None)
        build_judges(expectations)
        for result in judge_rows(expectations, TABLE, ["id"]):
            json.dumps(result.record)
    except DeclarationError as fault:
        return str(fault).splitlines()
    return []


def members(type_: str) -> Iterator[str]:
    """Yield elements of a quality file with FORM in place of one argument."""
    kwargs = valid_arguments(type_)
    for name in sorted({*rule_of(type_).arguments, "row_condition", "ignore_row_if"}):
        yield json.dumps({"type": type_, "kwargs": kwargs | {name: "FORM"}})
        if name in kwargs:
            yield json.dumps({"type": type_, "kwargs": kwargs | {name: "FORM"}, "severity": "park"})


@pytest.mark.turns(16)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("type_", TYPES)
def test_argument_of_any_form_is_judged_or_reported(tmp_path: Path, type_: str, step: int) -> None:
    assert judged(tmp_path / "t.json", json.dumps({"type": type_, "kwargs": valid_arguments(type_)})) == []
    for number, element in enumerate(members(type_)):
        for form in [*FORMS.values()][number % step :: step]:
            lines = judged(tmp_path / "t.json", element.replace('"FORM"', form))
            assert sum("(quality/t.json:2)" in line for line in lines) == sum("fix: " in line for line in lines), lines


@pytest.mark.parametrize("form", FORMS)
def test_member_of_any_form_is_judged_or_reported(tmp_path: Path, form: str) -> None:
    element = {"type": TYPES[0], "kwargs": valid_arguments(TYPES[0]), "severity": "warn", "doc": "x"}
    for text in ['"FORM"', *(json.dumps(element | {name: "FORM"}) for name in element)]:
        lines = judged(tmp_path / "t.json", text.replace('"FORM"', FORMS[form]))
        assert sum("(quality/t.json:2)" in line for line in lines) == sum("fix: " in line for line in lines), lines
