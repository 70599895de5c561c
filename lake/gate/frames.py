"""Rows of Spark against expectations about single rows, where they are too many for this process.

The text that judges rows in memory judges them on the executors; Spark counts and sorts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lake.gate.gx import Finding, build, of_rows
from lake.gate.judging import EXAMPLES, Count
from lake.quality.in_spark import evaluated
from lake.quality.meanings import Terms, fails
from lake.quoting import SPARK, quoted
from lake.store.scan import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.quality.columns import Column
    from lake.quality.suite import Expectation


def judge_frame(
    expectations: Sequence[Expectation], rows: DataFrame, columns: Mapping[str, Column], identity: Sequence[str]
) -> list[Finding]:
    """Return the findings of expectations about single rows, in their order. Raises DeclarationError."""
    from pyspark.sql import functions as F

    judges, tests = build(expectations), list[str]()
    for expectation in expectations:
        with expectation.evaluated():
            terms = Terms(expectation.kwargs, columns)
            tests += [terms.where, f"{terms.where} AND {terms.considered(expectation.type)}"]
            tests.append(fails(expectation.type, terms))
    held = ", ".join(f"CASE WHEN {test} THEN {number} END" for number, test in enumerate(tests))
    names = sorted({name for expectation in expectations for name in expectation.columns or ()})
    held = f"list_filter([{held}], lambda number: number IS NOT NULL)"
    tested = rows.withColumn("held by", evaluated(held, names, "array<int>"))
    count = [F.count_if(F.array_contains("held by", number)) for number in range(len(tests))]
    found = tested.agg(*(column.alias(str(number)) for number, column in enumerate(count))).first()
    findings = []
    for place, (expectation, judge) in enumerate(zip(expectations, judges, strict=True)):
        about, considered, failed = (found[str(3 * place + part)] for part in range(3)) if found else (0, 0, 0)
        failing = tested.where(F.array_contains("held by", 3 * place + 2))
        examples = _first(failing, [*identity, *(expectation.columns or ())]) if failed else []
        findings.append(of_rows(expectation, judge, Count(about, considered, failed, examples)))
    return findings


def _first(rows: DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """The first rows in the order of these columns, nulls last."""
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name, SPARK)) for name in dict.fromkeys(names)]
    ordered = rows.select(*columns).orderBy(*(column.asc_nulls_last() for column in columns))
    found: list[dict[str, Any]] = to_arrow(ordered.limit(EXAMPLES)).to_pylist()
    return found
