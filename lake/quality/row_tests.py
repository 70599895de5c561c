"""Tests of expectations in DuckDB: numbers of failing rows, the first of them, and metrics of columns.

Rows are Arrow in memory, or files of a Delta table, read in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.errors import DeclarationError
from lake.lazy import pa
from lake.quality.columns import NUMBERS, SCALAR, ExpectationColumn, Key, UnsuitableExpectation, display
from lake.quality.expectation_types import SUM_CHANGED, UNIQUE
from lake.quality.row_conditions import ROW_CONDITIONS, ExpectationTerms, bounds_sql, expectation_columns, failure_sql
from lake.quality.statistics import COUNTS, JUDGED_BY, KINDS, METRICS, ColumnValues
from lake.store import duckdb_tables
from lake.text import quoted

if TYPE_CHECKING:
    from lake.quality.suite import Expectation

EXAMPLES: Final = 10
QUANTILES: Final = "column.quantile_values"
QUERY: Final = "unexpected_rows_query"
REPEATED: Final = '"is repeated"'


@dataclass(frozen=True)
class RowTest:
    """SQL conditions over `source`: rows in scope, rows considered, rows that fail."""

    source: str
    where: str
    considered: str
    failure_sql: str


@dataclass(frozen=True)
class FailureCounts:
    rows: int
    considered: int
    failed: int
    examples: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True)
class CheckedRows:
    con: duckdb.DuckDBPyConnection
    source: str
    columns: Mapping[str, ExpectationColumn]
    identity: Sequence[str] = ()

    def counts(self, expectations: Sequence[Expectation]) -> dict[Expectation, FailureCounts]:
        tests: dict[Expectation, RowTest] = {}
        for expectation in expectations:
            with expectation.convert_errors():
                tests[expectation] = self.test(expectation)
        counts: dict[Expectation, FailureCounts] = {}
        for source, of_source in groupby(sorted(tests, key=lambda e: tests[e].source), key=lambda e: tests[e].source):
            group = list(of_source)
            columns = ", ".join(
                f"count(*) FILTER (WHERE {test})"
                for t in map(tests.__getitem__, group)
                for test in (t.where, f"{t.where} AND {t.considered}", t.failure_sql)
            )
            found = self.con.execute(f"SELECT {columns} FROM {source}").fetchall()[0]
            for place, expectation in enumerate(group):
                rows, considered, failed = found[3 * place : 3 * place + 3]
                examples = self.examples(expectation, tests[expectation]) if failed else []
                counts[expectation] = FailureCounts(rows, considered, failed, examples)
        return counts

    def test(self, expectation: Expectation) -> RowTest:
        terms, type_ = ExpectationTerms(expectation.kwargs, self.columns), expectation.type
        where, considered = terms.where, terms.considered(type_)
        if type_ in ROW_CONDITIONS:
            return RowTest(self.source, where, considered, failure_sql(type_, terms))
        if type_ in UNIQUE:
            counted = f"{where} AND {considered}"
            return RowTest(self._marked(terms.checked_columns, counted), where, considered, f"{counted} AND {REPEATED}")
        low, high, inclusive = self._values(terms).outlier_bounds(expectation.kwargs)
        strict = {"strict_min": not inclusive, "strict_max": not inclusive}
        met = bounds_sql(terms.column, {"min_value": low, "max_value": high, **strict})
        return RowTest(self.source, where, considered, f"{where} AND {considered} AND NOT coalesce({met}, false)")

    def examples(self, expectation: Expectation, test: RowTest) -> list[dict[str, Any]]:
        names = list(dict.fromkeys([*self.identity, *(expectation.columns or ())]))
        columns = ", ".join(map(quoted, names))
        query = f"SELECT {columns} FROM {test.source} WHERE {test.failure_sql} ORDER BY {columns} LIMIT {EXAMPLES}"
        found: list[dict[str, Any]] = self.con.sql(query).to_arrow_table().to_pylist()
        return found

    def metrics(self, expectation: Expectation, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._metric(expectation, name) for name in names}

    def display(self, expectation: Expectation, name: str, value: Any) -> Any:
        if name.startswith("column.") and name not in COUNTS:
            column = ExpectationTerms(expectation.kwargs, self.columns).column
            return str(list(map(column.display, value))) if isinstance(value, list) else column.display(value)
        return display(value) if isinstance(value, Fraction) else value if isinstance(value, int) else str(value)

    def _metric(self, expectation: Expectation, name: str) -> Any:
        kwargs, terms = expectation.kwargs, ExpectationTerms(expectation.kwargs, self.columns)
        in_scope = f"FROM {self.source} WHERE {terms.where}"
        of_table: Mapping[str, Callable[[], Any]] = {
            "table.columns": lambda: list(self.columns),
            "table.column_count": lambda: len(self.columns),
            "table.row_count": lambda: self._count(in_scope),
            "unexpected_rows_query.row_count": lambda: self._count(f"FROM ({self._query(kwargs[QUERY])})"),
            "column.non_null_proportion": lambda: Fraction(self._values(terms).count, max(self._count(in_scope), 1)),
        }
        if name in of_table:
            return of_table[name]()
        if name not in METRICS:
            return []  # a sample of values, not needed besides their count
        terms.column.require_kind(*KINDS.get(name, SCALAR))
        return METRICS[name](self._values(terms), kwargs)

    def _values(self, terms: ExpectationTerms) -> ColumnValues:
        return ColumnValues(self.con, self.source, terms.column, terms.where)

    def _count(self, what: str) -> int:
        return int(self.con.execute(f"SELECT count(*) {what}").fetchall()[0][0])

    def _query(self, query: str) -> str:
        try:
            text = query.format(batch=self.source)
            self.con.execute(f"EXPLAIN {text}")
        except (LookupError, ValueError, duckdb.ProgrammingError, duckdb.DataError) as error:
            fix = "write a query of DuckDB's SQL over {batch}"
            raise UnsuitableExpectation(f"{QUERY} fails: {str(error).splitlines()[0]}", fix) from None
        return text.rstrip("; \n")

    def _marked(self, columns: Sequence[ExpectationColumn], where: str) -> str:
        """Return SQL that adds REPEATED, true if another row has equal `columns`."""
        for column in columns:
            column.require_kind(*SCALAR)
        keys = ", ".join(f"{column.sql} AS k{n}" for n, column in enumerate(columns))
        equal = " AND ".join(f"r.{column.sql} IS NOT DISTINCT FROM d.k{n}" for n, column in enumerate(columns))
        repeated = f"SELECT {keys}, true AS found FROM {self.source} WHERE {where} GROUP BY ALL HAVING count(*) > 1"
        joined = f"FROM {self.source} r LEFT JOIN ({repeated}) d ON {equal}"
        return f"(SELECT r.*, d.found IS NOT NULL AS {REPEATED} {joined})"


def exact_bounds(expectation: Expectation, columns: Mapping[str, ExpectationColumn], metric: str) -> dict[str, Any]:
    kwargs = expectation.kwargs
    count = ExpectationColumn(metric, pa.decimal128(38, 0))
    column = count if metric in COUNTS or not metric.startswith("column.") else ExpectationTerms(kwargs, columns).column
    if KINDS.get(metric) and pa.types.is_float32(column.type) and metric not in {"column.min", "column.max"}:
        column = ExpectationColumn(column.name, pa.float64())

    def key(value: Any, name: str) -> Key | None:
        return None if value is None else column.key(value, name)

    exact: dict[str, Any] = {n: key(kwargs[n], n) for n in ("min_value", "max_value", "value") if n in kwargs}
    if "value_set" in kwargs:
        column.one_of(kwargs["value_set"], "value_set")
        exact["value_set"] = [key(value, "value_set") for value in kwargs["value_set"] if value is not None]
    if metric == QUANTILES:
        shares, ranges = (kwargs["quantile_ranges"][name] for name in ("quantiles", "value_ranges"))
        if len(shares) != len(ranges) or not all(0 <= share <= 1 for share in shares):
            what = f"quantile_ranges has quantiles {shares} and {len(ranges)} value_ranges"
            raise UnsuitableExpectation(what, "write quantiles of 0 to 1, and a range for each")
        exact["ranges"] = [[key(end, "value_ranges") for end in ends] for ends in ranges]
    return exact


def register_rows(
    con: duckdb.DuckDBPyConnection, rows: pa.Table, zone: str | None, identity: Sequence[str] = ()
) -> CheckedRows:
    con.register("rows", rows)
    return CheckedRows(con, "rows", expectation_columns(rows.schema, zone), identity)


def find_unsuitable(
    expectations: Iterable[Expectation], schema: pa.Schema, zone: str | None
) -> Iterator[DeclarationError]:
    with duckdb_tables.connection() as con:
        rows = register_rows(con, schema.empty_table(), zone)
        for expectation in expectations:
            try:
                if expectation.rule.is_by_row:
                    rows.counts([expectation])
                with expectation.convert_errors():
                    if expectation.type == SUM_CHANGED:
                        ExpectationTerms(expectation.kwargs, rows.columns).column.require_kind(*NUMBERS)
                    for name in JUDGED_BY.get(expectation.type, ()):
                        exact_bounds(expectation, rows.columns, name)
                        rows.metrics(expectation, [name])
            except DeclarationError as fault:
                yield fault
