"""The gate: a diff is judged before it is committed, a table before it is published.

A row-local expectation judges each diff, so a bad row never enters a table. All others judge the whole table at the
cut, and so do the invariants of its kind, which need no file. A table that has not changed since its
last judgement under the same suite is not judged again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import DeclarationError, QualityError
from lake.gate.failures import failures, way_out
from lake.gate.frames import judge_frame
from lake.gate.gx import Finding, judge, judge_rows, prepare
from lake.gate.judging import EXAMPLES, Rows, misfits
from lake.gate.relative import judge_since
from lake.kinds.columns import visible
from lake.quality import in_spark
from lake.quality.meanings import columns_of
from lake.quality.suite import Expectation, Suite, load_suite
from lake.quoting import quoted
from lake.store import small
from lake.store.ledger import checks
from lake.store.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.config import Settings
    from lake.declaration import Declaration
    from lake.store.ledger.checks import Check, Outcome, Scope
    from lake.store.table_head import TableHead
    from lake.store.tables import Table


class Stopped(QualityError):
    """A diff that failed its check."""

    def __init__(self, check: Check) -> None:
        super().__init__("\n".join(failures([check])), fix=way_out([check]))
        self.check = check


def warm_up(settings: Settings) -> None:
    """Starts to import what the gate needs in the background: seconds that are best spent beside the JVM's start.

    Not where no table has a quality file: it takes 130 MB.
    """
    if any(settings.path("quality").glob("*.json")):
        threading.Thread(target=prepare, name="gate", daemon=True).start()


def judge_diff(table: Table, declaration: Declaration, diff: pa.Table, *, cut: int) -> str | None:
    """Judges the new images of rows, without state columns, by the row-local expectations.

    Returns the hash of the suite that they meet, None where one only warns. Failures are recorded. Raises QualityError
    where one of severity stop failed, DeclarationError where the table's quality file is wrong.
    """
    suite = load_suite(table.settings, declaration.name)
    if suite is None or not suite.row_local or not diff.num_rows:
        return suite.hash if suite else None
    kind = declaration.kind
    _must_fit(suite, diff.schema, kind.zone)
    return _settle(table, suite, judge_rows(suite.row_local, diff, kind.identity, zone=kind.zone), cut)


def judge_diff_frame(table: Table, declaration: Declaration, diff: DataFrame, *, cut: int) -> str | None:
    """Judge a diff that Spark has, on its executors. As `judge_diff`."""
    suite = load_suite(table.settings, declaration.name)
    if suite is None or not suite.row_local:
        return suite.hash if suite else None
    schema, kind = in_spark.schema(diff), declaration.kind
    _must_fit(suite, schema, kind.zone)
    findings = judge_frame(suite.row_local, diff, columns_of(schema, kind.zone), kind.identity)
    return _settle(table, suite, findings, cut)


def judge_table(table: Table, declaration: Declaration, suite: Suite, *, version: int, cut: int) -> Check:
    """The judgement of the whole table at `version`, made, or remembered; one that is made is to be recorded.

    Row-local expectations are judged again only where not all diffs since the last judgement have met this suite.
    Raises DeclarationError where the suite is wrong.
    """
    last = checks.last_checks(table.settings, "table").get(table.name)
    if last is not None and ((last.suite, last.home) != (suite.hash, table.home) or not _is_there(table, last)):
        last = None
    if last is not None and _unchanged(table, last, version):
        if (last.version, last.cut) == (version, cut):
            return last
        return _made(table, suite, "table", cut, version, last.outcome, last.results)
    met = last is not None and last.outcome == "passed" and _met_since(table, suite, last, version)
    expectations = suite.whole_table if met else suite.expectations
    own = [expectation for expectation in expectations if not expectation.rule.since]
    findings = _judge_version(table, declaration, suite, own, version)
    findings += judge_since(
        table, declaration, [expectation for expectation in expectations if expectation.rule.since], version
    )
    findings += _judge_invariants(table, declaration, version)
    return _made(table, suite, "table", cut, version, _outcome(findings), [finding.record for finding in findings])


def record(settings: Settings, judged: Sequence[tuple[Table, Check]]) -> list[Check]:
    """The judgements with their numbers; those that are not recorded yet are, in one commit."""
    made = [replace(check, results=_kept(table, check)) for table, check in judged if not check.number]
    number = next((check.number for check in checks.record_checks(settings, made)), 0)
    return [check if check.number else replace(check, number=number) for _, check in judged]


def _settle(table: Table, suite: Suite, findings: Sequence[Finding], cut: int) -> str | None:
    """Records a judgement that found a failure; else returns the suite's hash. Raises QualityError where it stops."""
    outcome = _outcome(findings)
    if outcome == "passed":
        return suite.hash
    made = _made(table, suite, "diff", cut, None, outcome, [finding.record for finding in findings])
    [check] = record(table.settings, [(table, made)])
    if check.outcome == "stopped":
        raise Stopped(check)
    return None


def _outcome(findings: Iterable[Finding]) -> Outcome:
    failed = {finding.expectation.severity for finding in findings if not finding.success}
    return "stopped" if "stop" in failed else "warned" if failed else "passed"


def _made(  # noqa: PLR0913, PLR0917 - the parts of one entry
    table: Table,
    suite: Suite,
    scope: Scope,
    cut: int,
    version: int | None,
    outcome: Outcome,
    results: Sequence[Mapping[str, Any]],
) -> Check:
    now = datetime.now(UTC)
    return checks.Check(0, table.name, table.home, scope, cut, version, suite.hash, outcome, results, now)


def _kept(table: Table, check: Check) -> Sequence[Mapping[str, Any]]:
    return [_withheld(result) for result in check.results] if table.personal else check.results


def _withheld(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without values of rows: what is kept of a table about people tells of no one. A count may stay."""
    return {**result, "examples": [], "observed": result["observed"] if "_count_" in result["type"] else None}


def _is_there(table: Table, last: Check) -> bool:
    """Whether the judged version still is: damage leaves the number of a commit that it took to another one."""
    later = takewhile(lambda head: head.version >= (last.version or 0), table.heads())
    return any((head.version, head.cut) == (last.version, last.cut) for head in later)


def _unchanged(table: Table, last: Check, version: int) -> bool:
    """Whether every commit since the judgement `known`, up to `version`, changed no row."""
    return _each_since(table, last, version, lambda head: head.changed_nothing)


def _met_since(table: Table, suite: Suite, last: Check, version: int) -> bool:
    """Whether what every commit since the judgement `known`, up to `version`, wrote has met `suite`."""
    return _each_since(table, last, version, lambda head: head.changed_nothing or head.suite_passed == suite.hash)


def _each_since(table: Table, last: Check, version: int, holds: Callable[[TableHead], bool]) -> bool:
    """Whether `version` is not before the judgement `known`, and every commit between is ours, and one that `holds`."""
    since = last.version if last.version is not None else -1
    later = takewhile(lambda head: head.version > since, table.heads())
    return sum(holds(head) for head in later if head.version <= version) == version - since


def _judge_version(
    table: Table, declaration: Declaration, suite: Suite, expectations: Sequence[Expectation], version: int
) -> list[Finding]:
    """The findings on the table's files, of which DuckDB reads what the expectations look at."""
    scan, kind = Scan(table.path, version), declaration.kind
    schema = scan.schema()
    schema = pa.schema([schema.field(name) for name in visible(schema.names)])
    _must_fit(suite, schema, kind.zone)
    if not expectations:
        return []
    with small.connection() as con, scan.registered(con, "stored", schema.names, "true"):
        con.register("types", schema.empty_table())  # a column that no file has yet is null, and of no type
        con.execute("CREATE TEMP VIEW rows AS FROM types UNION ALL BY NAME FROM stored")
        return judge(expectations, Rows(con, "rows", columns_of(schema, kind.zone), kind.identity))


def _judge_invariants(table: Table, declaration: Declaration, version: int) -> list[Finding]:
    """A finding for each invariant of the table's kind, at `version`; examples are the identity of failing rows."""
    total = table.rows(version)
    identity = ", ".join(map(quoted, declaration.kind.identity))
    findings = []
    for name, sql in declaration.kind.invariants.items():
        broken = f"SELECT {identity}, count(*) OVER () AS _failed FROM ({sql.format(table='t')})"
        rows = small.rows(table.path, f"{broken} ORDER BY {identity} LIMIT {EXAMPLES}", version=version)
        failed = rows[0]["_failed"] if rows else 0
        examples = [{column: value for column, value in row.items() if column != "_failed"} for row in rows]
        expectation = Expectation(name, {}, "stop", f"holds of every {declaration.kind.name}", declaration.where)
        findings.append(Finding(expectation, not failed, total, failed, examples=examples))
    return findings


def _must_fit(suite: Suite, schema: pa.Schema, zone: str | None) -> None:
    """Raise DeclarationError with all expectations that cannot be evaluated over a table's columns."""
    if faults := list(suite.faults(schema.names)) or list(misfits(suite.expectations, schema, zone)):
        raise DeclarationError.all(faults)
