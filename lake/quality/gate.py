"""Quality gate: judges a diff before it is committed, and a table before it is published.

Row-local expectations judge each diff. The others, and the invariants of the kind, judge the whole table at the cut,
unless it has not changed since its last check under the same suite.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from lake.contracts.declared_text import files_in
from lake.errors import DeclarationError, QualityError
from lake.kinds.columns import visible
from lake.kinds.grouped_map import arrow_schema
from lake.lazy import DataFrame, F, pa
from lake.quality import row_conditions
from lake.quality.edition_comparison import judge_edition_changes
from lake.quality.failures import fix_text, stop_messages
from lake.quality.gx import ExpectationResult, build_judges, import_library, judge, judge_rows, row_result
from lake.quality.row_conditions import ExpectationTerms, expectation_columns, failure_sql
from lake.quality.row_tests import EXAMPLES, CheckedRows, FailureCounts, find_unsuitable
from lake.quality.suite import Expectation, Suite, load_suite
from lake.store import duckdb_tables
from lake.store.ledger import checks
from lake.store.rows import Rows
from lake.store.scan import Scan, to_arrow
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from lake.config import Settings
    from lake.kinds.kind import Kind
    from lake.quality.columns import ExpectationColumn
    from lake.store.ledger.checks import Check, Outcome, Scope
    from lake.store.table_head import TableHead
    from lake.store.tables import Table


class GateStopped(QualityError):
    def __init__(self, check: Check) -> None:
        super().__init__("\n".join(stop_messages([check])), fix=fix_text([check]))
        self.check = check


def warm_up(settings: Settings) -> None:
    """Import the gate's library in a thread before the first check of a project."""
    if files_in(settings.path("quality"), ".json") and not checks.last_checks(settings, "table"):
        threading.Thread(target=import_library, name="gate", daemon=True).start()


def judge_diff(table: Table, kind: Kind, diff: Rows, *, cut: int) -> str | None:
    """Judge new rows, without state columns, by the row-local expectations, and record failures.

    Returns the suite's hash, None without a suite or after a warning. Raises GateStopped, or DeclarationError for a
    wrong quality file.
    """
    suite = load_suite(table.settings, table.name)
    if suite is None or not suite.row_local or diff.is_empty:
        return suite.hash if suite else None
    rows = diff.in_memory
    schema = arrow_schema(diff.held.schema) if rows is None else rows.schema
    _validate(table, suite, schema, kind.zone)
    if rows is None:
        findings = judge_frame(suite.row_local, diff.held, expectation_columns(schema, kind.zone), kind.identity)
    else:
        findings = judge_rows(suite.row_local, rows, kind.identity, zone=kind.zone)
    return _record_and_stop(table, suite, findings, cut)


def judge_table(  # noqa: PLR0913 how the table is declared, and which version of it
    table: Table, kind: Kind, suite: Suite, *, where: str, version: int, cut: int
) -> Check:
    """Return the check of the table at `version`: the last one if it still holds, else a new, unrecorded one.

    Skips row-local expectations if all diffs since the last check passed the suite. Messages of the kind's invariants
    name `where`. Raises DeclarationError.
    """
    last = checks.last_checks(table.settings, "table").get(table.name)
    if last is not None and ((last.suite, last.home) != (suite.hash, table.home) or not _version_exists(table, last)):
        last = None
    if last is not None and _all_commits_since(table, last, version, lambda head: head.changed_nothing):
        if (last.version, last.cut) == (version, cut):
            return last
        return replace(last, number=0, cut=cut, version=version, checked_at=datetime.now(UTC))
    passed_since = (
        last is not None
        and last.outcome == "passed"
        and _all_commits_since(table, last, version, lambda h: h.changed_nothing or h.suite_passed == suite.hash)
    )
    expectations = suite.whole_table if passed_since else suite.expectations
    comparing = [expectation for expectation in expectations if expectation.rule.compares_editions]
    others = [expectation for expectation in expectations if not expectation.rule.compares_editions]
    findings = _judge_version(table, kind, suite, others, version)
    findings += judge_edition_changes(table, kind, comparing, version)
    findings += _judge_invariants(table, kind, where, version)
    return _check_of(table, suite, findings, cut, version)


def record_checks(settings: Settings, judged: Sequence[tuple[Table, Check]]) -> list[Check]:
    """Record new checks in one commit, and return all checks with their numbers."""
    new = [
        replace(check, results=list(map(_without_values, check.results))) if table.personal else check
        for table, check in judged
        if not check.number
    ]
    number = next((check.number for check in checks.record_checks(settings, new)), 0)
    return [check if check.number else replace(check, number=number) for _, check in judged]


def _record_and_stop(table: Table, suite: Suite, findings: Sequence[ExpectationResult], cut: int) -> str | None:
    if _outcome(findings) == "passed":
        return suite.hash
    new = _check_of(table, suite, findings, cut, None)
    [check] = record_checks(table.settings, [(table, new)])
    if check.outcome == "stopped":
        raise GateStopped(check)
    return None


def _outcome(findings: Iterable[ExpectationResult]) -> Outcome:
    failed = {finding.expectation.severity for finding in findings if not finding.success}
    return "stopped" if "stop" in failed else "warned" if failed else "passed"


def _check_of(
    table: Table, suite: Suite, findings: Sequence[ExpectationResult], cut: int, version: int | None
) -> Check:
    scope: Scope = "diff" if version is None else "table"
    results, now = [finding.record for finding in findings], datetime.now(UTC)
    return checks.Check(0, table.name, table.home, scope, cut, version, suite.hash, _outcome(findings), results, now)


def _without_values(result: Mapping[str, Any]) -> dict[str, Any]:
    return {**result, "examples": [], "observed": result["observed"] if "_count_" in result["type"] else None}


def _version_exists(table: Table, last: Check) -> bool:
    """Return whether the judged version was not lost; if it was, another commit may have its number."""
    later = takewhile(lambda head: head.version >= (last.version or 0), table.heads())
    return any((head.version, head.cut) == (last.version, last.cut) for head in later)


def _all_commits_since(table: Table, last: Check, version: int, holds: Callable[[TableHead], bool]) -> bool:
    since = last.version if last.version is not None else -1
    later = takewhile(lambda head: head.version > since, table.heads())
    return sum(holds(head) for head in later if head.version <= version) == version - since


def _judge_version(
    table: Table, kind: Kind, suite: Suite, expectations: Sequence[Expectation], version: int
) -> list[ExpectationResult]:
    scan = Scan(table.path, version)
    schema = scan.schema()
    schema = pa.schema([schema.field(name) for name in visible(schema.names)])
    _validate(table, suite, schema, kind.zone)
    if not expectations:
        return []
    with duckdb_tables.connection() as con, scan.registered(con, "stored", schema.names, "true"):
        con.register("types", schema.empty_table())  # a column that no file has yet is null, and of no type
        con.execute("CREATE TEMP VIEW rows AS FROM types UNION ALL BY NAME FROM stored")
        return judge(expectations, CheckedRows(con, "rows", expectation_columns(schema, kind.zone), kind.identity))


def _judge_invariants(table: Table, kind: Kind, where: str, version: int) -> list[ExpectationResult]:
    total = table.rows(version)
    identity = ", ".join(map(quoted, kind.identity))
    findings = []
    for name, sql in kind.invariants.items():
        broken = f"SELECT {identity}, count(*) OVER () AS _failed FROM ({sql.format(table='t')})"
        rows = duckdb_tables.rows(table.path, f"{broken} ORDER BY {identity} LIMIT {EXAMPLES}", version=version)
        failed = rows[0]["_failed"] if rows else 0
        examples = [{column: value for column, value in row.items() if column != "_failed"} for row in rows]
        expectation = Expectation(name, {}, "stop", f"holds of every {kind.name}", where)
        findings.append(ExpectationResult(expectation, not failed, total, failed, examples=examples))
    return findings


@lru_cache(maxsize=256)
def check_suite_fits(suite: Suite, schema: pa.Schema, zone: str | None) -> None:
    """Raise DeclarationError if an expectation cannot judge rows of `schema`, whose times are in `zone`."""
    DeclarationError.raise_any(suite.faults(schema.names))
    DeclarationError.raise_any(find_unsuitable(suite.expectations, schema, zone))


def _validate(table: Table, suite: Suite, schema: pa.Schema, zone: str | None) -> None:
    check_suite_fits(suite, schema, zone)
    last = checks.last_checks(table.settings, "table").get(table.name)
    if last is None or last.suite != suite.hash:
        build_judges(expectation for expectation in suite.expectations if not expectation.rule.compares_editions)


def judge_frame(
    expectations: Sequence[Expectation],
    rows: DataFrame,
    columns: Mapping[str, ExpectationColumn],
    identity: Sequence[str],
) -> list[ExpectationResult]:
    """Judge single rows on Spark's executors, with the SQL of rows in memory. Raises DeclarationError."""
    tests = list[str]()
    for expectation in expectations:  # three tests each: is a row in scope, is it considered, does it fail
        with expectation.convert_errors():
            terms = ExpectationTerms(expectation.kwargs, columns)
            tests += [terms.where, f"{terms.where} AND {terms.considered(expectation.type)}"]
            tests.append(failure_sql(expectation.type, terms))
    numbers = ", ".join(f"CASE WHEN {test} THEN {number} END" for number, test in enumerate(tests))
    names = sorted({name for expectation in expectations for name in expectation.columns or ()})
    true_tests = f"list_filter([{numbers}], lambda number: number IS NOT NULL)"
    tested = rows.withColumn("true tests", row_conditions.evaluate_sql(true_tests, names, "array<int>"))
    count = [F.count_if(F.array_contains("true tests", number)) for number in range(len(tests))]
    found = tested.agg(*(column.alias(str(number)) for number, column in enumerate(count))).first()
    findings = []
    for number, expectation in enumerate(expectations):
        in_scope, considered, failed = (found[str(3 * number + part)] for part in range(3)) if found else (0, 0, 0)
        failing = tested.where(F.array_contains("true tests", 3 * number + 2))
        examples = _examples(failing, [*identity, *(expectation.columns or ())]) if failed else []
        findings.append(row_result(expectation, FailureCounts(in_scope, considered, failed, examples)))
    return findings


def _examples(rows: DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    columns = [F.col(quoted(name, SPARK)) for name in dict.fromkeys(names)]
    ordered = rows.select(*columns).orderBy(*(column.asc_nulls_last() for column in columns))
    found: list[dict[str, Any]] = to_arrow(ordered.limit(EXAMPLES)).to_pylist()
    return found
