"""Meaning of expectations: every type over every column type, against an oracle, in memory, in files and by Spark."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from lake.errors import DeclarationError
from lake.quality.expectation_types import known_types, rule_of
from lake.quality.gate import judge_frame
from lake.quality.gx import (
    ExpectationResult,
    build_judges,
    import_library,
    is_clearly_met,
    is_met_by_metrics,
    judge,
    judge_rows,
    row_result,
)
from lake.quality.row_conditions import ROW_CONDITIONS, expectation_columns
from lake.quality.row_tests import CheckedRows, FailureCounts, find_unsuitable
from lake.quality.statistics import JUDGED_BY
from lake.quality.suite import Expectation, read_suite
from lake.store import duckdb_tables
from lake.store.scan import Scan, to_frame
from lake.store.storage import Address
from tests.quality import oracle
from tests.quality.oracle import NUMBERS, TYPES, VALUES

pytestmark = pytest.mark.slow

Case = tuple[str, dict[str, Any]]
BOUNDS: Final = (
    *(0, 0.35, 9.95, -0.35, Decimal("9.9500000000000000001"), Decimal("0.3500000001"), 2**53 + 1, -1e308, 1e39),
    *(Decimal("1e400"), Decimal("-1e400")),
    *("2024-01-31", "2024-01-31T22:00", "2024-01-31T23:00+01:00", "it's", True),
)
COMPARABLE: Final = (*NUMBERS, "words", "flag", *oracle.TIMES)
PATTERNS: Final = ("^[a-zA-Z]", "1$", "^$", r"^\w+$", "[^a]", "^-?1")
IGNORED: Final[Sequence[dict[str, str]]] = (
    *({}, {"ignore_row_if": "either_value_is_missing"}, {"ignore_row_if": "both_values_are_missing"}),
    {"ignore_row_if": "neither"},
)
OF_LISTS: Final[Sequence[dict[str, str]]] = ({}, {"ignore_row_if": "any_value_is_missing"}, {"ignore_row_if": "never"})


def single() -> Iterator[Case]:
    """Yield expectations about one column."""
    for column in TYPES:
        of: dict[str, Any] = {"column": column}
        for null in ("not_be_null", "be_null"):
            yield f"expect_column_values_to_{null}", of
        yield "expect_column_values_to_be_unique", of
        for bound, end, strict in product(BOUNDS, ("min", "max"), (True, False)):
            yield "expect_column_values_to_be_between", of | {f"{end}_value": bound, f"strict_{end}": strict}
        for values in ([0, 0.35, 9.95, None, 1e39], ["it's", "2024-02-01"], ["2024-02-01", "2024-01-31T22:00"], [True]):
            yield "expect_column_values_to_be_in_set", of | {"value_set": values}
            yield "expect_column_values_to_not_be_in_set", of | {"value_set": values}
        yield "expect_column_values_to_be_in_set", of | {"value_set": []}
        yield "expect_column_value_lengths_to_be_between", of | {"min_value": 1, "max_value": 2, "strict_max": True}
        yield "expect_column_value_lengths_to_equal", of | {"value": 2}
        for pattern in PATTERNS:
            yield "expect_column_values_to_match_regex", of | {"regex": pattern}
            yield "expect_column_values_to_not_match_regex", of | {"regex": pattern}
        for how in ({}, {"match_on": "all"}):
            yield "expect_column_values_to_match_regex_list", of | {"regex_list": ["a", "1"]} | how
        yield "expect_column_values_to_not_match_regex_list", of | {"regex_list": ["a", "é"]}
        yield "expect_column_values_to_match_strftime_format", of | {"strftime_format": "%Y-%m-%d"}


def several() -> Iterator[Case]:
    """Yield expectations about several columns."""
    for a, b in product(TYPES, TYPES):
        pair = {"column_A": a, "column_B": b}
        for ignored in IGNORED if a in NUMBERS and b in NUMBERS else IGNORED[:1]:
            yield "expect_column_pair_values_to_be_equal", pair | ignored
            for or_equal in (False, True):
                yield "expect_column_pair_values_a_to_be_greater_than_b", pair | ignored | {"or_equal": or_equal}
    for pairs in ([[0, "it's"], [None, "A"], [1, None]], [[0.35, 1]]):
        for ignored in IGNORED:
            kwargs = {"column_A": "money", "column_B": "words", "value_pairs_set": pairs}
            yield "expect_column_pair_values_to_be_in_set", kwargs | ignored
    lists = [*map(list, combinations(NUMBERS, 2)), ["whole", "whole", "money"], ["long", "long", "wide"]]
    lists.append(["words", "day"])
    for columns, ignored in product([*lists, ["nested", "nested"]], OF_LISTS):
        listed = {"column_list": columns, **ignored}
        for total in (0, 0.7, 2**63 - 1 + 0.35, Decimal(2 * oracle.EXTREME), -0.35):
            yield "expect_multicolumn_sum_to_equal", listed | {"sum_total": total}
        yield "expect_multicolumn_values_to_be_equal", listed
        yield "expect_select_column_values_to_be_unique_within_record", listed
        yield "expect_compound_columns_to_be_unique", listed


def conditioned() -> Iterator[Case]:
    conditions = [
        {"type": "nullity", "column": {"name": "money"}, "is_null": False},
        {"type": "comparison", "column": {"name": "double"}, "operator": "!=", "parameter": 0.35},
        {"type": "comparison", "column": {"name": "money"}, "operator": "IN", "parameter": [0.35, 9.95]},
    ]
    for condition in [*conditions, {"type": "or", "conditions": conditions[:2]}]:
        kwargs = {"column": "whole", "min_value": 0, "row_condition": condition}
        yield "expect_column_values_to_be_between", kwargs
        yield "expect_column_values_to_be_unique", {"column": "flag", "row_condition": condition}


def of_one_column() -> Iterator[Case]:
    for column, ignored in product(("words", "wide"), OF_LISTS):
        yield "expect_multicolumn_values_to_be_equal", {"column_list": [column], **ignored}
        yield "expect_select_column_values_to_be_unique_within_record", {"column_list": [column], **ignored}


def expectation(case: Case) -> Expectation:
    return Expectation(*case, "stop", "", "quality/t.json:3")


ROWS: Final = oracle.rows()
CASES: Final = [*single(), *several()]
HELD: Final[Mapping[str, Callable[[oracle.Row], bool]]] = {
    "nullity": lambda row: row["money"] is not None,
    "!=": lambda row: row["double"] is not None and row["double"] != 0.35,
    "IN": lambda row: row["money"] in {Decimal("0.35"), Decimal("9.95")},
    "or": lambda row: HELD["nullity"](row) or HELD["!="](row),
}
"""The rows that the conditions leave."""


def wanted(case: Case, rows: Sequence[oracle.Row]) -> list[int] | None:
    type_, kwargs = case
    if condition := kwargs.get("row_condition"):
        rows = [row for row in rows if HELD[condition.get("operator") or condition["type"]](row)]
    return oracle.failing(type_, {name: v for name, v in kwargs.items() if name != "row_condition"}, rows)


def suitable(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if wanted(case, ROWS) is not None]


def must_agree(cases: Sequence[Case], findings: Sequence[ExpectationResult], rows: Sequence[oracle.Row]) -> None:
    for case, finding in zip(cases, findings, strict=True):
        failing = wanted(case, rows) or []
        shown = [row["id"] for row in finding.examples]
        assert (finding.failed, finding.success) == (len(failing), not failing), (case, failing, shown)
        assert shown == sorted(failing)[:10], case


def test_expectation_type_has_exactly_one_rule() -> None:
    for name in known_types():
        rule = rule_of(name)
        if not (rule.unsupported or rule.compares_editions):
            assert (name in ROW_CONDITIONS) + (name in JUDGED_BY) + (rule.is_by_row and not rule.is_row_local) == 1, (
                name
            )
    judged = {type_ for type_, _ in CASES}
    assert judged == {name for name in known_types() if name in ROW_CONDITIONS or name in oracle.UNIQUE}


def test_metrics_equal_those_of_great_expectations() -> None:
    import_library()
    import great_expectations.expectations as gxe

    for type_, names in JUDGED_BY.items():
        assert getattr(gxe, "".join(map(str.capitalize, type_.split("_")))).metric_dependencies == names


def library_meets(expectation: Expectation, count: FailureCounts) -> bool:
    judge: Any = build_judges([expectation])[0]
    metric = judge.map_metric
    metrics = {
        "table.row_count": count.rows,
        "column_values.nonnull.unexpected_count": count.rows - count.considered,
        f"{metric}.filtered_row_count": count.considered,
        f"{metric}.unexpected_count": count.failed,
    }
    return bool(judge._validate(metrics=metrics, runtime_configuration={"result_format": "BOOLEAN_ONLY"})["success"])


@pytest.mark.turns(7)
@pytest.mark.parametrize("mostly", [0.75, *(pytest.param(share, marks=pytest.mark.long) for share in (0, 0.5, 1))])
@pytest.mark.parametrize("type_", [name for name in known_types() if name in {*ROW_CONDITIONS, *oracle.UNIQUE}])
def test_share_of_failing_rows_is_judged_as_by_the_library(type_: str, mostly: float) -> None:
    kwargs = next(kwargs for name, kwargs in suitable(CASES) if name == type_)
    shared = expectation((type_, {**kwargs, "mostly": mostly} if "mostly" in rule_of(type_).arguments else kwargs))
    for rows, considered, failed in ((0, 0, 0), (5, 0, 0), (5, 3, 0), (5, 5, 0), *((5, 4, n) for n in range(5))):
        count = FailureCounts(rows, considered, failed, [])
        assert row_result(shared, count).success is library_meets(shared, count), count


@pytest.mark.parametrize(
    "type_", [name for name in JUDGED_BY if name.endswith("_to_be_between") and "quantile" not in name]
)
def test_library_meets_expectations_whose_value_is_within_their_bounds(type_: str) -> None:
    """It decides for all other values."""
    values = (None, math.nan, math.inf, 0, -1, 2, Fraction(1, 3), 10**30, 0.5)
    lows, highs, met = (None, 0, Fraction(1, 3), -math.inf), (None, 0, 2, Fraction(1, 3)), 0
    for value, low, high, *strict in product(values, lows, highs, *[(False, True)] * 2):
        exact = {"min_value": low, "max_value": high}
        bounded = {name: 0 for name, bound in exact.items() if bound is not None} or {"min_value": 0}
        kwargs = {"column": "v", **bounded, **dict(zip(("strict_min", "strict_max"), strict, strict=True))}
        said = expectation((type_, {name: kwargs[name] for name in kwargs if name in rule_of(type_).arguments}))
        if is_clearly_met(said, metrics := {JUDGED_BY[type_][-1]: value}, exact):
            met += 1
            assert is_met_by_metrics(said, metrics, exact), (value, exact)
    assert met > 100


COLUMNS = ["a", "b", "c"]
OF_TABLES: dict[str, tuple[dict[str, Any], list[Any], int]] = {
    "expect_column_to_exist": ({"column": "b"}, [COLUMNS, ["b"], ["a"], [], ["B"]], 2),
    "expect_column_to_exist at a place": ({"column": "b", "column_index": 1}, [COLUMNS, ["b"], ["a"]], 0),
    "expect_table_columns_to_match_ordered_list": ({"column_list": COLUMNS}, [COLUMNS, ["c", "b", "a"], ["a"], []], 1),
    "expect_table_columns_to_match_set": ({"column_set": COLUMNS}, [COLUMNS, ["c", "b", "a"], ["a"], []], 2),
    "expect_table_columns_to_match_set inexactly": (
        {"column_set": ["a"], "exact_match": False}, [COLUMNS, ["a"], ["b"], []], 1,
    ),
    "expect_table_column_count_to_equal": ({"value": 3}, [3, 2, 4, 0], 1),
    "expect_table_row_count_to_equal": ({"value": 0}, [0, 1, 2**60], 1),
    "expect_column_distinct_values_to_be_in_set": ({"column": "a", "value_set": [1]}, [0, 1, 9], 1),
    "expect_column_distinct_values_to_contain_set": ({"column": "a", "value_set": [1]}, [0, 1, 9], 1),
    "expect_column_distinct_values_to_equal_set": (
        {"column": "a", "value_set": [1]}, [(0, 0), (0, 1), (1, 0), (2, 2)], 1,
    ),
    "unexpected_rows_expectation": ({"unexpected_rows_query": "SELECT * FROM {batch}"}, [0, 1, 9], 1),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_TABLES)
def test_library_meets_expectations_of_tables_that_are_clearly_met(case: str) -> None:
    kwargs, values, clear = OF_TABLES[case]
    said, names = expectation((type_ := case.partition(" ")[0], kwargs)), JUDGED_BY[type_]
    counts = [name for name in names if name.endswith("count")] or [names[-1]]
    found = []
    for value in values:
        several = value if isinstance(value, tuple) else (value,)
        metrics: dict[str, Any] = {name: [] for name in names} | dict(zip(counts, several, strict=True))
        bounds = {"value": kwargs["value"]} if "value" in kwargs else {}
        if is_clearly_met(said, metrics, bounds):
            found.append(value)
            assert is_met_by_metrics(said, metrics, bounds), value
    assert len(found) == clear, found


@pytest.mark.parametrize("many", [250, pytest.param(10**6, marks=pytest.mark.long)])
def test_gate_fails_the_rows_of_the_oracle_for_every_column_type(many: int) -> None:
    cases = suitable(CASES)
    assert len(cases) > 900
    cases = [*random.Random(5).sample(cases, min(many, len(cases))), *conditioned(), *of_one_column()]
    for at in range(0, len(cases), 50):
        part = cases[at : at + 50]
        must_agree(part, judge_rows([*map(expectation, part)], oracle.table(ROWS), ["id"]), ROWS)


def test_unsuited_expectation_is_rejected_for_any_number_of_rows() -> None:
    some = random.Random(4).sample(CASES, 300)
    cases = [case for case in some if wanted(case, ROWS) is None]
    assert len(cases) > 100
    schema = oracle.table([]).schema
    faults = list(find_unsuitable([*map(expectation, some)], schema, None))
    assert len(faults) == len(cases)
    for fault, case in zip(faults, cases, strict=True):
        assert f"{expectation(case)} cannot be evaluated: " in str(fault)
        assert fault.where == "quality/t.json:3"
        assert fault.fix
    for case in random.Random(0).sample(cases, 10):
        with pytest.raises(DeclarationError, match="cannot be evaluated"):
            judge_rows([expectation(case)], oracle.table(ROWS), ["id"])


@pytest.mark.turns
@pytest.mark.parametrize("seed", range(3))
def test_gate_judges_rows_equally_in_slices(seed: int) -> None:
    """A value has no influence on the verdict about other rows."""
    random.Random(seed).shuffle(some := list(ROWS))
    cases = [case for case in suitable(CASES) if case[0] in ROW_CONDITIONS]
    cases = random.Random(seed).sample(cases, 60)
    for part in (some[:1], some[1:5], some[5:]):
        must_agree(cases, judge_rows([*map(expectation, cases)], oracle.table(part), ["id"]), part)


def test_gate_judges_files_like_rows_in_memory(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), oracle.table(ROWS), mode="append")
    scan = Scan(Address(str(tmp_path)))
    cases = random.Random(1).sample(suitable(CASES), 60)
    with duckdb_tables.connection() as con, scan.registered(con, "stored", scan.schema().names, "true"):
        rows = CheckedRows(con, "stored", expectation_columns(scan.schema(), None), ["id"])
        must_agree(cases, judge([*map(expectation, cases)], rows), ROWS)


@pytest.mark.long
def test_spark_judges_and_parks_rows_like_the_gate(spark: SparkSession) -> None:
    cases = [case for case in suitable([*CASES, *conditioned()]) if case[0] in ROW_CONDITIONS]
    frame = to_frame(spark, oracle.table(ROWS)).repartition(3)
    columns = expectation_columns(oracle.table([]).schema, None)
    passing = [case for case in cases if not wanted(case, ROWS)]
    some = [*passing, *random.Random(2).sample(cases, 40)]
    must_agree(some, judge_frame([*map(expectation, some)], frame, columns, ["id"]), ROWS)


# --- statistics of columns


def near(key: Fraction) -> tuple[Decimal, Decimal, bool]:
    """Return the nearest numbers of 50 digits below and above one, and whether they equal it."""
    from decimal import ROUND_CEILING, ROUND_FLOOR, Context

    low, high = (
        Context(prec=50, rounding=rounding).divide(key.numerator, Decimal(key.denominator))
        for rounding in (ROUND_FLOOR, ROUND_CEILING)
    )
    return low, high, low == high


def is_met(type_: str, rows: pa.Table, **kwargs: Any) -> bool:
    return judge_rows([Expectation(type_, kwargs, "stop", "", "here")], rows, [])[0].success


def column(kind: str, values: Sequence[Any]) -> pa.Table:
    return pa.table({"v": pa.array(values, TYPES[kind])})


SAMPLES: Final = [
    *[(name, VALUES[name]) for name in NUMBERS if name not in oracle.FLOATS],
    ("money", [Decimal("0.10"), Decimal("0.20"), None]),
    ("long", [Decimal(oracle.EXTREME)] * 3),
    ("whole", [2**63 - 1] * 4),
    ("double", [0.1, 0.2, 0.3, 1e16, -1e16, 5e-324, -0.0, None]),
    ("double", [1.7e308, 1.7e308, -1.7e308]),
    ("single", [VALUES["single"][4], 1.5, -2.25]),
]


@pytest.mark.parametrize(("kind", "values"), SAMPLES)
def test_column_statistics_are_exact_in_any_order(kind: str, values: Sequence[Any]) -> None:
    rows = column(kind, random.Random(3).sample(values, len(values)))
    held = [Fraction(value) for value in values if value is not None]
    for word, statistic in oracle.statistics(held).items():
        try:
            exact = Fraction(float(statistic)) if kind in oracle.FLOATS else statistic
        except OverflowError:
            continue
        type_, (low, high, is_it) = f"expect_column_{word}_to_be_between", near(exact)
        if word == "stdev" and exact and kind not in oracle.FLOATS:
            low, high, is_it = low * Decimal("0.99999999999999999999"), high * Decimal("1.00000000000000000001"), False
        if kind in oracle.FLOATS:
            low = high = Decimal(repr(float(exact)))
            is_it = True
        assert is_met(type_, rows, column="v", min_value=low, max_value=high), (word, exact)
        assert is_met(type_, rows, column="v", min_value=low, strict_min=True) is not is_it, word
        assert is_met(type_, rows, column="v", max_value=high, strict_max=True) is not is_it, word
        if not is_it:
            assert not is_met(type_, rows, column="v", max_value=low), word


def test_statistic_of_nan_or_of_no_rows_fails() -> None:
    for word in ("min", "max", "sum", "mean", "median", "stdev"):
        for values in ([1.0, oracle.NAN], [1.0, float("inf"), float("-inf"), oracle.NAN]):
            assert not is_met(f"expect_column_{word}_to_be_between", column("double", values), column="v", max_value=9)
        empty = is_met(f"expect_column_{word}_to_be_between", column("double", [None]), column="v", max_value=9)
        assert empty is (word == "sum"), word


def test_sets_counts_shares_and_quantiles_use_exact_values() -> None:
    money = column("money", [*map(Decimal, ("0.35", "0.35", "9.95", "1.00")), None])
    zeros = column("double", [0.0, -0.0, oracle.NAN, oracle.NAN, None])
    distinct, share = "expect_column_distinct_values_to", "expect_column_proportion_of"
    in_set, contain, equal = f"{distinct}_be_in_set", f"{distinct}_contain_set", f"{distinct}_equal_set"
    unique, filled = f"{share}_unique_values_to_be_between", f"{share}_non_null_values_to_be_between"
    query = "SELECT * FROM {batch} WHERE v > "
    for type_, rows, kwargs, met in (
        (in_set, money, {"value_set": [0.35, 9.95, 1, 7]}, True),
        (in_set, money, {"value_set": [0.35, 9.95]}, False),
        (contain, money, {"value_set": [0.35, 1]}, True),
        (contain, money, {"value_set": [0.35, 0.3501]}, False),
        (equal, money, {"value_set": [1, 0.35, 9.95]}, True),
        (equal, money, {"value_set": [1, 0.35, 9.95, 2]}, False),
        ("expect_column_most_common_value_to_be_in_set", money, {"value_set": [0.35]}, True),
        ("expect_column_most_common_value_to_be_in_set", zeros, {"value_set": [0], "ties_okay": True}, True),
        ("expect_column_most_common_value_to_be_in_set", zeros, {"value_set": [0]}, False),
        ("expect_column_unique_value_count_to_be_between", zeros, {"min_value": 2, "max_value": 2}, True),
        (unique, money, {"min_value": 0.75, "max_value": 0.75}, True),
        (filled, money, {"min_value": 0.8, "max_value": 0.8}, True),
        (filled, money, {"max_value": 0.79999999999999999}, True),
        ("expect_table_row_count_to_equal", money, {"value": 5}, True),
        ("expect_table_row_count_to_be_between", money, {"min_value": 5, "max_value": 5}, True),
        ("expect_table_column_count_to_equal", money, {"value": 1}, True),
        ("expect_table_column_count_to_be_between", money, {"min_value": 2}, False),
        ("expect_table_columns_to_match_set", money, {"column_set": ["v"]}, True),
        ("expect_table_columns_to_match_ordered_list", money, {"column_list": ["w"]}, False),
        ("unexpected_rows_expectation", money, {"unexpected_rows_query": f"{query}9.95"}, True),
        ("unexpected_rows_expectation", money, {"unexpected_rows_query": f"{query}9.94"}, False),
    ):
        named = {} if type_.startswith(("expect_table", "unexpected")) else {"column": "v"}
        assert is_met(type_, rows, **named, **kwargs) is met, (type_, kwargs)
    for middle, met in (([0.35, 0.35], True), ([0.35001, 1], False)):
        ranges = [[0.35, 0.35], middle, [9.95, None]]
        asked = {"quantiles": [0, 0.5, 1], "value_ranges": ranges}
        assert is_met("expect_column_quantile_values_to_be_between", money, column="v", quantile_ranges=asked) is met
    assert is_met("expect_column_to_exist", money, column="v")
    with pytest.raises(DeclarationError, match="unexpected_rows_query fails"):
        is_met("unexpected_rows_expectation", money, unexpected_rows_query="SELECT rlike(v) FROM {batch}")


def test_dates_and_times_have_extremes_and_quantiles() -> None:
    for kind in oracle.TIMES:
        rows, text = column(kind, VALUES[kind]), "2024-02-01"
        least, most = min(VALUES[kind]), max(VALUES[kind])
        assert is_met("expect_column_min_to_be_between", rows, column="v", min_value=str(least), max_value=str(least))
        assert is_met("expect_column_max_to_be_between", rows, column="v", min_value=str(most), max_value=str(most))
        assert is_met("expect_column_distinct_values_to_contain_set", rows, column="v", value_set=[text])


def test_outliers_and_z_scores_use_finite_values() -> None:
    values = [*[1.0, 2.0, 3.0, 4.0] * 5, 1000.0, oracle.NAN, float("inf"), None]
    rows = column("double", values).append_column("id", pa.array(range(len(values))))
    for type_, kwargs in (
        ("expect_column_values_to_not_be_outliers", {}),
        ("expect_column_values_to_not_be_outliers", {"method": "std", "multiplier": 2}),
        ("expect_column_value_z_scores_to_be_less_than", {"threshold": 2, "double_sided": True}),
    ):
        (finding,) = judge_rows([Expectation(type_, {"column": "v", **kwargs}, "stop", "", "")], rows, ["id"])
        assert [row["id"] for row in finding.examples] == [20, 21, 22], (type_, kwargs)
    fence = column("money", [*map(Decimal, ("1.00", "2.00", "3.00", "4.00", "7.00"))])  # Quartiles 2 and 4
    assert is_met("expect_column_values_to_not_be_outliers", fence, column="v", multiplier=1.5)
    assert not is_met("expect_column_values_to_not_be_outliers", fence, column="v", multiplier=1.49)


def test_mostly_is_a_share_of_the_considered_rows() -> None:
    rows = column("money", [Decimal("0.35")] * 7 + [Decimal("0.36")] * 3 + [None] * 5)
    for mostly, met in ((0.7, True), (0.71, False)):
        assert is_met("expect_column_values_to_be_between", rows, column="v", max_value=0.35, mostly=mostly) is met


def test_quality_file_numbers_are_read_exactly(tmp_path: Path) -> None:
    hashes = set()
    for text, met in (
        ("0.35", True),
        ("0.350000000000000000000000001", True),
        ("0.349999999999999999999999999", False),
    ):
        kwargs = f'{{"column": "v", "max_value": {text}}}'
        line = f'{{"type": "expect_column_values_to_be_between", "kwargs": {kwargs}}}'
        (tmp_path / "t.json").write_text(f'{{"expectations": [{line}]}}')
        suite = read_suite(tmp_path / "t.json")
        (finding,) = judge_rows(suite.expectations, column("money", [Decimal("0.35")]), [])
        assert finding.success is met, text
        assert json.dumps(finding.record)
        hashes.add(suite.hash)
    assert len(hashes) == 3


WHOLE: Final[Mapping[str, tuple[dict[str, Any], Sequence[str]]]] = {
    **{f"expect_column_{word}_to_be_between": ({}, NUMBERS) for word in ("sum", "mean", "median", "stdev")},
    **{f"expect_column_{word}_to_be_between": ({}, COMPARABLE) for word in ("min", "max")},
    "expect_column_unique_value_count_to_be_between": ({"min_value": 1}, (*COMPARABLE, "raw")),
    "expect_column_proportion_of_unique_values_to_be_between": ({"min_value": 0.1}, (*COMPARABLE, "raw")),
    "expect_column_proportion_of_non_null_values_to_be_between": ({"min_value": 0.1}, [*TYPES]),
    **{
        type_: ({"value_set": [True]}, ["flag"])
        for type_ in JUDGED_BY
        if type_.startswith("expect_column_") and type_.endswith("_set")
    },
    "expect_column_value_z_scores_to_be_less_than": ({"threshold": 3, "double_sided": True}, NUMBERS),
    "expect_column_values_to_not_be_outliers": ({}, NUMBERS),
}
"""Expectations about a whole column, with arguments, and the columns that they suit."""


def test_whole_column_expectation_is_rejected_for_unsuited_types() -> None:
    cases = [
        Expectation(type_, {"column": name} | kwargs, "stop", "", "here")
        for type_, (kwargs, _) in WHOLE.items()
        for name in TYPES
    ]
    refused = {(fault.args[0]) for fault in find_unsuitable(cases, oracle.table([]).schema, None)}
    for case in cases:
        suits = case.kwargs["column"] in WHOLE[case.type][1]
        assert any(str(text).startswith(f"{case} cannot be evaluated") for text in refused) is not suits, case


@pytest.mark.parametrize("name", COMPARABLE)
def test_column_extremes_equal_those_of_the_oracle(name: str) -> None:
    held = [value for value in VALUES[name] if not isinstance(value, float) or math.isfinite(value)]
    least, most = min(held, key=oracle.code_points), max(held, key=oracle.code_points)
    for type_, extreme in (("expect_column_min_to_be_between", least), ("expect_column_max_to_be_between", most)):
        bound = extreme if isinstance(extreme, bool | int | float | Decimal | str) else str(extreme)
        rows = column(name, [*held, None])
        assert is_met(type_, rows, column="v", min_value=bound, max_value=bound), (type_, bound)
        assert not is_met(type_, rows, column="v", min_value=bound, strict_min=True)
        assert not is_met(type_, rows, column="v", max_value=bound, strict_max=True)


@pytest.mark.parametrize(("quantiles", "ranges"), [([1.5], [[0, 1]]), ([0.5], []), ([0.5], [[0, 1], [0, 1]])])
def test_unsuited_quantiles_are_rejected_for_any_number_of_rows(
    quantiles: list[float], ranges: list[list[int]]
) -> None:
    wanted = {"quantiles": quantiles, "value_ranges": ranges}
    one_of = expectation(("expect_column_quantile_values_to_be_between", {"column": "v", "quantile_ranges": wanted}))
    schema = pa.schema({"v": pa.int32()})
    (fault,) = find_unsuitable([one_of], schema, None)
    assert "write quantiles of 0 to 1, and a range for each" in str(fault)
