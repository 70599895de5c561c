"""Verdicts of Great Expectations from metrics that DuckDB counts exactly.

The library is imported only to validate arguments of new expectations, and to judge a metric of the whole table that
`is_clearly_met` leaves open: the import takes seconds and 130 MB.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lake.errors import DeclarationError
from lake.lazy import pa
from lake.quality.columns import exact
from lake.quality.row_tests import QUANTILES, CheckedRows, FailureCounts, exact_bounds, register_rows
from lake.quality.statistics import ABSENT, JUDGED_BY, OUTSIDE
from lake.quality.suite import Expectation
from lake.store import duckdb_tables

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation as Judge

LAZY_MODULES: Final = ("altair", "scipy.stats")
"""Modules that the library imports for charts and distribution tests: 70 MB and 0.7 s."""
FORMAT: Final = {"result_format": "BOOLEAN_ONLY", "include_unexpected_rows": False, "partial_unexpected_count": 0}
DEVIATIONS: Final = (OUTSIDE[0], ABSENT[0], "unexpected_rows_query.row_count")
BOUNDS: Final = ("min_value", "max_value")
"""Arguments checked here, because the library accepts only floats and days."""


@dataclass(frozen=True)
class ExpectationResult:
    """Result of one expectation, with the first failing rows as `examples`.

    `failed` and `rows` are None for a whole-table expectation, which has `observed` instead.
    """

    expectation: Expectation
    success: bool
    rows: int | None = None
    failed: int | None = None
    observed: Any = None
    examples: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def record(self) -> dict[str, Any]:
        return {
            "type": self.expectation.type,
            "kwargs": json.loads(json.dumps(self.expectation.kwargs, default=str)),  # long decimals as text
            "severity": self.expectation.severity,
            "where": self.expectation.where,
            "success": self.success,
            "rows": self.rows,
            "failed": self.failed,
            "observed": self.observed,
            "examples": [{name: _json_value(value) for name, value in row.items()} for row in self.examples],
        }


def _json_value(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def judge_rows(
    expectations: Sequence[Expectation], rows: pa.Table, identity: Sequence[str], *, zone: str | None = None
) -> list[ExpectationResult]:
    """Times without an offset are in `zone`."""
    with duckdb_tables.connection() as con:
        return judge(expectations, register_rows(con, rows, zone, identity))


def judge(expectations: Sequence[Expectation], rows: CheckedRows) -> list[ExpectationResult]:
    counts = rows.counts([expectation for expectation in expectations if expectation.rule.is_by_row])
    return [row_result(e, counts[e]) if e in counts else _table_result(e, rows) for e in expectations]


def row_result(expectation: Expectation, count: FailureCounts) -> ExpectationResult:
    with expectation.convert_errors():
        allowed = (1 - exact(expectation.kwargs.get("mostly", 1))) * count.considered
    return ExpectationResult(expectation, count.failed <= allowed, count.rows, count.failed, examples=count.examples)


def build_judges(expectations: Iterable[Expectation]) -> list[Judge]:
    import_library()
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    judges, faults = [], []
    for expectation in expectations:
        bounded = {name: 0 for name in BOUNDS if expectation.kwargs.get(name) is not None}
        configuration = ExpectationConfiguration(expectation.type, {**expectation.kwargs, **bounded})
        try:
            judges.append(configuration.to_domain_obj())
        except (ValueError, TypeError, ArithmeticError) as error:
            fix = "correct its kwargs: see docs.greatexpectations.io"
            faults.append(DeclarationError(f"{expectation}: {_reason(error)}", where=expectation.where, fix=fix))
    DeclarationError.raise_any(faults)
    return judges


@cache
def import_library() -> None:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")  # send no telemetry
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its internals, which users cannot fix
        for name in LAZY_MODULES:
            sys.modules.setdefault(name, LazyModule(name))
        import great_expectations

        del great_expectations


class LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _table_result(expectation: Expectation, rows: CheckedRows) -> ExpectationResult:
    names = JUDGED_BY[expectation.type]
    with expectation.convert_errors():
        bounds = exact_bounds(expectation, rows.columns, names[-1])
        metrics = rows.metrics(expectation, names)
        ranges = bounds.pop("ranges", None)
        value = metrics[names[-1]]
        if ranges is not None:  # the library lets a quantile be out of its range by a ten-thousandth
            met = all(_within(value, *ends) for value, ends in zip(metrics[QUANTILES], ranges, strict=True))
        else:
            met = is_clearly_met(expectation, metrics, bounds) or is_met_by_metrics(expectation, metrics, bounds)
    return ExpectationResult(expectation, met, observed=rows.display(expectation, names[-1], value))


def is_clearly_met(expectation: Expectation, metrics: Mapping[str, Any], bounds: Mapping[str, Any]) -> bool:
    """Return whether a value is within its bounds, equal to the expected one, or a count of deviations 0."""
    kwargs, value = expectation.kwargs, metrics[JUDGED_BY[expectation.type][-1]]
    if expectation.type.endswith("_to_be_between"):
        excluded = [bounds.get(f"{end}_value") for end in ("min", "max") if kwargs.get(f"strict_{end}")]
        return value not in excluded and _within(value, *map(bounds.get, BOUNDS))
    match expectation.type:
        case "expect_column_to_exist":
            return kwargs.get("column_index") is None and kwargs["column"] in value
        case "expect_table_columns_to_match_ordered_list":
            return bool(value == kwargs["column_list"])
        case "expect_table_columns_to_match_set":
            return {*value} == {*kwargs["column_set"]}
        case "expect_table_column_count_to_equal" | "expect_table_row_count_to_equal":
            return bool(value == bounds["value"])
    deviations = [metrics[name] for name in DEVIATIONS if name in metrics]
    return bool(deviations) and not any(deviations)


def _within(value: Any, low: Any, high: Any) -> bool:
    return value is not None and value >= (value if low is None else low) and value <= (value if high is None else high)


def is_met_by_metrics(expectation: Expectation, metrics: Mapping[str, Any], bounds: dict[str, Any]) -> bool:
    [judge] = build_judges([expectation])
    configuration = {"result_format": dict(FORMAT)}
    result: Any = judge.copy(update=bounds)._validate(metrics=dict(metrics), runtime_configuration=configuration)
    return bool(result["success"])


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(re.sub(r" \(type=.*\)$", "", line) for line in lines[1:3]) or "; ".join(lines)
