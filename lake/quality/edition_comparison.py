"""Expectations that compare a table with its last edition: removed keys, change of row count or sum.

A table in no edition yet passes. For a History only current versions count, identified by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from lake.quality import expectation_types
from lake.quality.columns import ExpectationColumn, Key, display, exact
from lake.quality.gx import ExpectationResult
from lake.quality.row_tests import EXAMPLES
from lake.quality.statistics import ColumnValues
from lake.store import duckdb_tables
from lake.store.ledger.editions import latest_edition
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse
from lake.text import quoted

if TYPE_CHECKING:
    from lake.kinds.kind import Kind
    from lake.quality.suite import Expectation
    from lake.store.tables import Table


@dataclass(frozen=True)
class EditionComparison:
    """Table `now`, and as it was in its last edition: `before`. Reads only `columns`, and rows that are `current`."""

    before: Scan
    now: Scan
    key: tuple[str, ...]
    columns: Sequence[str]
    current: str

    def query_both(self, sql: str) -> list[dict[str, Any]]:
        with duckdb_tables.connection() as con, ExitStack() as stack:
            for name, scan in (("before", self.before), ("now", self.now)):
                stack.enter_context(scan.registered(con, name, self.columns, self.current))
            rows: list[dict[str, Any]] = con.sql(sql).to_arrow_table().to_pylist()
            return rows

    def removed_keys(self, expectation: Expectation) -> ExpectationResult:
        same = " AND ".join(f"before.{quoted(c)} IS NOT DISTINCT FROM now.{quoted(c)}" for c in self.key)
        keys = ", ".join(map(quoted, self.key))
        removed = self.query_both(
            f"""SELECT {keys}, count(*) OVER () AS _failed FROM before ANTI JOIN now ON {same}
                ORDER BY {keys} LIMIT {EXAMPLES}"""
        )
        failed = removed[0]["_failed"] if removed else 0
        kwargs, [counted] = expectation.kwargs, self.query_both("SELECT count(*) AS rows FROM before")
        allowed = max(exact(kwargs["share"]) * counted["rows"], exact(kwargs.get("rows", 0)))
        examples = [{name: row[name] for name in self.key} for row in removed]
        return ExpectationResult(expectation, failed <= allowed, counted["rows"], failed, examples=examples)

    def row_count(self, expectation: Expectation) -> ExpectationResult:
        [rows] = self.query_both("SELECT (SELECT count(*) FROM before) AS before, (SELECT count(*) FROM now) AS now")
        return _compare_numbers(expectation, Fraction(rows["before"]), Fraction(rows["now"]))

    def column_sum(self, expectation: Expectation) -> ExpectationResult:
        name = expectation.kwargs["column"]
        sums = []
        for table, scan in (("before", self.before), ("now", self.now)):
            with (
                duckdb_tables.connection() as con,
                scan.registered(con, table, [name], self.current),
                expectation.convert_errors(),
            ):
                column = ExpectationColumn(name, scan.schema().field(name).type)
                sums.append(ColumnValues(con, table, column, "true").power_sums().total)
        return _compare_numbers(expectation, *sums)


JUDGES: Final[Mapping[str, Callable[[EditionComparison, Expectation], ExpectationResult]]] = {
    expectation_types.KEYS_GONE: EditionComparison.removed_keys,
    expectation_types.ROWS_CHANGED: EditionComparison.row_count,
    expectation_types.SUM_CHANGED: EditionComparison.column_sum,
}


def judge_edition_changes(
    table: Table, kind: Kind, expectations: Iterable[Expectation], version: int
) -> list[ExpectationResult]:
    expectations = list(expectations)
    edition = latest_edition(table.settings) if expectations else None
    published = edition.tables.get(table.name) if edition else None
    if published is None:
        return [ExpectationResult(expectation, True) for expectation in expectations]
    old = Scan(Warehouse(table.settings).root / published.path, published.version)
    new = Scan(table.path, version)
    key, current = kind.current_identity, kind.current or "true"
    findings = []
    for expectation in expectations:
        columns = [*key, *(name for name in expectation.columns or () if name not in key)]
        if not set(columns) <= set(old.schema().names):
            findings.append(ExpectationResult(expectation, True))  # the edition's definition had no such column
            continue
        findings.append(JUDGES[expectation.type](EditionComparison(old, new, key, columns, current), expectation))
    return findings


def _compare_numbers(expectation: Expectation, before: Key, now: Key) -> ExpectationResult:
    """A number that is not finite must stay the same."""
    observed = f"{_text(now)}, where the last edition has {_text(before)}"
    if not (isinstance(before, Fraction) and isinstance(now, Fraction)):
        return ExpectationResult(expectation, str(before) == str(now), observed=observed)
    return ExpectationResult(
        expectation, abs(now - before) <= exact(expectation.kwargs["share"]) * abs(before), observed=observed
    )


def _text(number: Key) -> str:
    return str(display(number) if isinstance(number, Fraction) else number)
