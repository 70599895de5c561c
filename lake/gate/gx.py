"""Expectations judged by Great Expectations, from metrics of ours; the only module that imports it, on first need.

Its classes check the arguments of an expectation and decide whether it is met. DuckDB counts what they are given, over
any number of rows, exactly. The bounds that they compare it with are exact, too.
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
from lake.gate.judging import QUANTILES, Count, Rows, bounds, registered
from lake.quality.statistics import JUDGED_BY
from lake.quality.suite import Expectation
from lake.store import small

if TYPE_CHECKING:
    import pyarrow as pa
    from great_expectations.expectations.expectation import Expectation as Judge

SELDOM: Final = ("altair", "scipy.stats")
"""Modules that the library imports for drawings and for tests of distributions: 70 MB and 0.7 s."""
FORMAT: Final = {"result_format": "BOOLEAN_ONLY", "include_unexpected_rows": False, "partial_unexpected_count": 0}
"""Form of the library's answer: its verdict alone."""
BOUNDS: Final = ("min_value", "max_value")
"""Arguments that are checked here: the library knows them as floats and days alone."""


@dataclass(frozen=True)
class Finding:
    """Verdict of an expectation.

    `failed` counts failing rows out of `rows`. Both are None for an expectation about a whole table, which has
    `observed` instead. `examples` are the first failing rows: their identity and the columns judged.
    """

    expectation: Expectation
    success: bool
    rows: int | None = None
    failed: int | None = None
    observed: Any = None
    examples: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def record(self) -> dict[str, Any]:
        """The finding for JSON."""
        return {
            "type": self.expectation.type,
            "kwargs": json.loads(json.dumps(self.expectation.kwargs, default=str)),  # long decimals as text
            "severity": self.expectation.severity,
            "where": self.expectation.where,
            "success": self.success,
            "rows": self.rows,
            "failed": self.failed,
            "observed": self.observed,
            "examples": [{name: plain(value) for name, value in row.items()} for row in self.examples],
        }


def plain(value: Any) -> Any:
    """`value` for a person and for JSON: numbers and text as they are, all else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def judge_rows(
    expectations: Sequence[Expectation], rows: pa.Table, identity: Sequence[str], *, zone: str | None = None
) -> list[Finding]:
    """Return the findings on rows in memory, in the order of `expectations`. Times without an offset are in `zone`."""
    with small.connection() as con:
        return judge(expectations, registered(con, rows, zone, identity))


def judge(expectations: Sequence[Expectation], rows: Rows) -> list[Finding]:
    """Return the findings of `expectations` on a table of DuckDB's, in their order. Raises DeclarationError."""
    judges = build(expectations)
    counts = rows.counts([expectation for expectation in expectations if expectation.rule.by_row])
    return [
        of_rows(each, judge, counts[each]) if each in counts else _of_table(each, judge, rows)
        for each, judge in zip(expectations, judges, strict=True)
    ]


def of_rows(expectation: Expectation, judge: Judge, count: Count) -> Finding:
    """Return the finding of an expectation about rows, which are counted."""
    metric = getattr(judge, "map_metric", "")
    metrics = {
        "table.row_count": count.rows,
        "column_values.nonnull.unexpected_count": count.rows - count.considered,
        f"{metric}.filtered_row_count": count.considered,
        f"{metric}.unexpected_count": count.failed,
    }
    return Finding(expectation, _verdict(judge, metrics), count.rows, count.failed, examples=count.examples)


def build(expectations: Iterable[Expectation]) -> list[Judge]:
    """Return the library's own objects. Raises DeclarationError with every argument that it refuses."""
    prepare()
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    judges, faults = [], []
    for expectation in expectations:
        bounded = {name: 0 for name in BOUNDS if expectation.kwargs.get(name) is not None}
        configuration = ExpectationConfiguration(expectation.type, {**expectation.kwargs, **bounded})
        try:
            judges.append(configuration.to_domain_obj())
        except (ValueError, TypeError) as error:
            fix = "correct its kwargs: see docs.greatexpectations.io"
            faults.append(DeclarationError(f"{expectation}: {_reason(error)}", where=expectation.where, fix=fix))
    if faults:
        raise DeclarationError.all(faults)
    return judges


@cache
def prepare() -> None:
    """Import the library on first need, which takes seconds."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")  # nothing is sent anywhere
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own workings, which users cannot fix
        for name in SELDOM:
            sys.modules.setdefault(name, Later(name))
        import great_expectations

        del great_expectations


class Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _of_table(expectation: Expectation, judge: Judge, rows: Rows) -> Finding:
    names = JUDGED_BY[expectation.type]
    with expectation.evaluated():
        exact = bounds(expectation, rows.columns, names[-1])
        metrics = rows.metrics(expectation, names)
    ranges = exact.pop("ranges", None)
    observed = rows.shown(expectation, names[-1], metrics[names[-1]])
    if ranges is None:
        met = _verdict(judge.copy(update=exact), metrics)
    else:  # the library lets a quantile be out of its range by a ten-thousandth
        met = all(_within(value, *ends) for value, ends in zip(metrics[QUANTILES], ranges, strict=True))
    return Finding(expectation, met, observed=observed)


def _within(value: Any, low: Any, high: Any) -> bool:
    """Return whether a value is within bounds of its own type; NaN is not."""
    return value is not None and value >= (value if low is None else low) and value <= (value if high is None else high)


def _verdict(judge: Judge, metrics: Mapping[str, Any]) -> bool:
    result: Any = judge._validate(metrics=dict(metrics), runtime_configuration={"result_format": dict(FORMAT)})
    return bool(result["success"])


def _reason(error: Exception) -> str:
    """The first of what the library says: it tells each way in which each of several types did not fit."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(re.sub(r" \(type=.*\)$", "", line) for line in lines[1:3]) or "; ".join(lines)
