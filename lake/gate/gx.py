"""Rows against expectations, by Great Expectations; the only module that imports it, on first need.

What a row-local expectation says of a row depends on the columns it names alone. So many rows are judged by the
distinct values of those columns, and rows are looked for only where a value failed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake import cost
from lake.errors import DeclarationError
from lake.quality.moments import Moments
from lake.quality.suite import Expectation

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
    from great_expectations.expectations.expectation import Expectation as Judge
    from pyspark.sql import DataFrame

EXAMPLES: Final = 10
"""How many failing rows are shown and recorded."""

NO_TIMES: Final = Moments({})
SELDOM: Final = ("altair", "scipy.stats")
"""What the library imports for drawings and for tests of distributions: 70 MB and 0.7 s."""

# The library keeps its state per process; tables are judged from several threads.
_lock = threading.Lock()


@dataclass(frozen=True)
class Finding:
    """What an expectation says of the rows that it judged.

    `failed` counts failing rows out of `rows`; both are None for an expectation that looks at no single row, which
    tells what it `observed` instead. `examples` are the first failing rows: their identity and the columns judged.
    """

    expectation: Expectation
    success: bool
    rows: int | None = None
    failed: int | None = None
    observed: Any = None
    examples: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def record(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return {
            "type": self.expectation.type,
            "kwargs": self.expectation.kwargs,
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


def prepare() -> None:
    """Imports the library on first need, which takes seconds."""
    with _lock:
        _context()


def judge_rows(
    expectations: Iterable[Expectation], rows: pa.Table, identity: Sequence[str], *, zone: str | None = None
) -> list[Finding]:
    """The findings of `expectations` on rows in memory, in their order. Times without an offset are in `zone`."""
    findings: dict[Expectation, Finding] = {}
    moments = Moments.of_rows(rows, zone)
    for group, frame in _frames(expectations, rows):
        for expectation, result in _validated(group, frame, moments, "BOOLEAN_ONLY"):
            findings[expectation] = (
                _met(expectation, rows) if result.success else _failure(expectation, rows, moments, identity)
            )
    return [findings[expectation] for expectation in expectations]


def judge_frame(
    expectations: Sequence[Expectation], rows: DataFrame, identity: Sequence[str], *, zone: str | None = None
) -> list[Finding]:
    """The findings of `expectations` on more rows than fit in memory, by Spark. As `judge_rows`."""
    moments = Moments.of_frame(rows, zone)
    findings = {e: Finding(e, bool(r.success)) for e, r in _validated(expectations, rows, moments, "BOOLEAN_ONLY")}
    failing = [e for e in expectations if not findings[e].success]
    for expectation, result in _validated(failing, rows, moments, "SUMMARY", keys=identity) if failing else ():
        examples = result.result.get("partial_unexpected_index_list") or ()
        findings[expectation] = _finding(
            expectation, result, [{k: _utc(v) for k, v in row.items()} for row in examples]
        )
    return [findings[expectation] for expectation in expectations]


def build(expectations: Iterable[Expectation], moments: Moments = NO_TIMES) -> list[Judge]:
    """The library's own objects, numbered in `meta`. Raises DeclarationError that tells every argument it refuses."""
    prepare()
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    judges, faults = [], []
    for number, expectation in enumerate(expectations):
        try:
            arguments = moments.arguments(expectation)
        except DeclarationError as fault:
            faults.append(fault)
            continue
        configuration = ExpectationConfiguration(expectation.type, arguments, meta={"number": number})
        try:
            judges.append(configuration.to_domain_obj())
        except (ValueError, TypeError) as error:
            fix = "correct its kwargs: see docs.greatexpectations.io"
            faults.append(DeclarationError(f"{expectation}: {_reason(error)}", where=expectation.where, fix=fix))
    if faults:
        raise DeclarationError.all(faults)
    return judges


def _frames(expectations: Iterable[Expectation], rows: pa.Table) -> Iterator[tuple[list[Expectation], pd.DataFrame]]:
    """Which expectations to judge on which rows: all on all of few rows, else each group on the values it needs."""
    few = rows.num_rows <= cost.JUDGED_AT_ONCE

    def needs(expectation: Expectation) -> tuple[bool, tuple[str, ...]]:
        names = _columns(expectation, rows)
        flat = not any(pa.types.is_nested(rows.schema.field(name).type) for name in names)
        return expectation.row_local and flat and not few, names

    ordered = sorted(expectations, key=needs)
    if few:
        if ordered:
            wanted = {name for expectation in ordered for name in _columns(expectation, rows)}
            yield ordered, _pandas(rows.select([name for name in rows.column_names if name in wanted]))
        return
    for (distinct, names), group in groupby(ordered, key=needs):
        selected = rows.select(names)
        yield list(group), _pandas(selected.group_by(list(names)).aggregate([]) if distinct else selected)


def _columns(expectation: Expectation, rows: pa.Table) -> tuple[str, ...]:
    """The columns to show to an expectation: at least one, for those that count rows."""
    if expectation.columns is None:
        return tuple(rows.column_names)
    return expectation.columns or tuple(rows.column_names[:1])


def _met(expectation: Expectation, rows: pa.Table) -> Finding:
    if not expectation.rule.by_row:
        return Finding(expectation, True)
    return Finding(expectation, True, rows.num_rows, 0 if expectation.every_row else None)


def _failure(expectation: Expectation, rows: pa.Table, moments: Moments, identity: Sequence[str]) -> Finding:
    """The finding of an expectation that fails on `rows`, with the failing ones."""
    frame = _pandas(rows.select(_columns(expectation, rows)))
    ((_, result),) = _validated([expectation], frame, moments, "COMPLETE")
    failing = pa.array(result.result.get("unexpected_index_list") or (), pa.int64())
    names = list(dict.fromkeys([*identity, *(expectation.columns or ())]))
    shown = rows.select(names).take(failing)
    if identity:
        shown = shown.sort_by([(name, "ascending") for name in identity])
    return _finding(expectation, result, shown.slice(0, EXAMPLES).to_pylist())


def _finding(
    expectation: Expectation, result: ExpectationValidationResult, examples: Sequence[Mapping[str, Any]]
) -> Finding:
    outcome = result.result
    observed = plain(outcome["observed_value"]) if "observed_value" in outcome else None
    return Finding(
        expectation,
        bool(result.success),
        outcome.get("element_count"),
        outcome.get("unexpected_count"),
        observed,
        examples,
    )


def _validated(
    expectations: Sequence[Expectation],
    rows: pd.DataFrame | DataFrame,
    moments: Moments,
    detail: str,
    keys: Sequence[str] = (),
) -> Iterator[tuple[Expectation, ExpectationValidationResult]]:
    """Each expectation with what the library says of `rows`. Raises DeclarationError where it cannot judge them."""
    judges = build(expectations, moments)
    from great_expectations import ExpectationSuite

    options: dict[str, Any] = {
        "result_format": detail,
        "partial_unexpected_count": EXAMPLES,
        "return_unexpected_index_query": False,
    }
    if keys:
        options["unexpected_index_column_names"] = list(keys)
    with _lock, _silence():
        batches = _spark_batches() if hasattr(rows, "sparkSession") else _pandas_batches()
        batch = batches.get_batch({"dataframe": rows})
        results = batch.validate(ExpectationSuite("gate", expectations=judges), result_format=options).results
    for result in results:  # grouped by the library, in an order of its own
        configuration: Any = result.expectation_config
        expectation = expectations[configuration.meta["number"]]
        if reason := _exception(result):
            fix = "correct its kwargs so that they suit the column"
            raise DeclarationError(f"{expectation} cannot be evaluated: {reason}", where=expectation.where, fix=fix)
        yield expectation, result


class Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@cache
def _context() -> EphemeralDataContext:
    # An ephemeral context writes no files; nothing is sent anywhere.
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")
    with _silence():
        for name in SELDOM:
            sys.modules.setdefault(name, Later(name))
        import great_expectations
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = great_expectations.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context


@cache
def _pandas_batches() -> BatchDefinition[Any]:
    asset = _context().data_sources.add_pandas("rows").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("all")


@cache
def _spark_batches() -> BatchDefinition[Any]:
    # Asked for only where a frame is judged: the library starts a JVM of its own where no session is at work.
    asset = _context().data_sources.add_spark("frames", persist=False).add_dataframe_asset("frames")
    return asset.add_batch_definition_whole_dataframe("all")


@contextmanager
def _silence() -> Iterator[None]:
    """Suppresses the library's warnings about its own workings, which users cannot fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pandas(rows: pa.Table) -> pd.DataFrame:
    """`rows` as the library compares them: whole numbers whole where some are null, instants in UTC.

    A decimal of up to 15 digits becomes the nearest double, which is one to one, so that a bound written as 0.1 is
    met by 0.10; longer ones stay decimals.
    """
    for index, column in enumerate(rows.columns):
        if pa.types.is_decimal(column.type):
            try:
                short = column.cast(pa.decimal128(15, column.type.scale)).cast(pa.float64())
            except pa.ArrowInvalid:
                continue
            rows = rows.set_column(index, rows.column_names[index], short)
    frame: pd.DataFrame = rows.to_pandas(integer_object_nulls=True)
    return frame


def _exception(result: ExpectationValidationResult) -> str:
    """Why the library could not judge; empty where it could."""
    info = result.exception_info or {}
    raised = [info] if "raised_exception" in info else list(info.values())
    return next((_first_line(e["exception_message"]) for e in raised if e.get("raised_exception")), "")


def _reason(error: Exception) -> str:
    """The first of what the library says: it tells each way in which each of several types did not fit."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join(re.sub(r" \(type=.*\)$", "", line) for line in lines[1:3]) or "; ".join(lines)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def _utc(value: Any) -> Any:
    """Spark hands instants over in the zone of this machine, without saying so."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value
