"""Gate: expectations that stop a diff or a table, warnings, and their reports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from lake import Latest
from lake.config import Settings
from lake.errors import DeclarationError, QualityError
from lake.project.declaration import Declaration, log
from lake.quality import failures, gate
from lake.quality.gx import build_judges
from lake.quality.suite import load_suite
from lake.store import delta
from lake.store.delta import Position
from lake.store.ledger import checks
from lake.store.ledger.editions import EditionTable, record_edition
from lake.store.rows import Rows
from lake.store.scan import to_frame
from lake.store.tables import Table
from lake.store.warehouse import Warehouse

pytestmark = pytest.mark.slow

ROWS = pa.table(
    {
        "carrier": ["AA", "UA", "UA", None],
        "day": [date(2013, 1, 1), date(2013, 1, 1), date(2013, 1, 2), date(2013, 1, 3)],
        "flights": pa.array([4, -1, None, 2**60 + 1], pa.int64()),
        "share": pa.array([Decimal("0.10"), Decimal("0.25"), None, Decimal("1.00")], pa.decimal128(5, 2)),
        "at": pa.array([datetime(2013, 1, n, tzinfo=UTC) for n in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture
def declaration() -> Declaration:
    def carrier_daily(flights: DataFrame) -> DataFrame:
        """One row per carrier and day."""
        return flights

    return Declaration(
        "carrier_daily", Latest(key=("carrier", "day"), sequence="day"), (log("flights"),), carrier_daily
    )


Expect = Callable[..., None]


@pytest.fixture
def expect(project: Settings) -> Expect:
    """Return a function that writes the quality file: `expect(("expect_…", {...}), severity="warn")`."""

    def write(*expectations: tuple[str, Mapping[str, Any]], severity: str = "stop") -> None:
        written = [{"type": name, "kwargs": kwargs, "severity": severity} for name, kwargs in expectations]
        (project.path("quality") / "carrier_daily.json").write_text(json.dumps({"expectations": written}, indent=1))

    return write


def at(settings: Settings) -> Table:
    return Table(settings, "silver", "carrier_daily", "carrier_daily")


def not_null(column: str) -> tuple[str, Mapping[str, Any]]:
    return "expect_column_values_to_not_be_null", {"column": column}


def between(column: str, **exact_bounds: object) -> tuple[str, Mapping[str, Any]]:
    return "expect_column_values_to_be_between", {"column": column, **exact_bounds}


def test_gate_passes_and_records_nothing_if_a_diff_meets_every_expectation(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(not_null("day"), between("at", min_value="2013-01-01T00:00:00Z"))
    gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)
    assert checks.last_checks(project) == {}


def test_gate_stops_for_a_failing_row_and_names_its_key(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(between("flights", min_value=0))
    with pytest.raises(QualityError) as told:
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=7)
    assert str(told.value).startswith(
        "carrier_daily: expect_column_values_to_be_between(flights) failed for 1 of 4 rows: "
        "carrier=UA day=2013-01-01 flights=-1 (quality/carrier_daily.json:3)\n  fix: "
    )
    check = checks.last_checks(project)["carrier_daily"]
    assert (check.scope, check.cut, check.version, check.outcome) == ("diff", 7, None, "stopped")
    assert check.results[0]["examples"] == [{"carrier": "UA", "day": "2013-01-01", "flights": -1}]


def test_gate_records_a_warning_and_passes_the_diff(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(not_null("carrier"), severity="warn")
    gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)
    check = checks.last_checks(project)["carrier_daily"]
    assert (check.outcome, check.results[0]["failed"]) == ("warned", 1)
    assert check.results[0]["examples"] == [{"carrier": None, "day": "2013-01-03"}]


def test_gate_reports_all_stops_at_once(project: Settings, declaration: Declaration, expect: Expect) -> None:
    expect(not_null("carrier"), between("flights", min_value=0))
    with pytest.raises(QualityError, match=r"not_be_null\(carrier\)(.|\n)*be_between\(flights\)"):
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


FAILING: list[tuple[tuple[str, Mapping[str, Any]], int]] = [
    (between("flights", min_value=-1, max_value=2**61), 0),
    (between("flights", min_value=0), 1),
    (between("share", min_value=0.1, max_value=1), 0),
    (between("share", min_value=0.1, max_value=1, strict_min=True), 1),
    (between("share", max_value=0.25), 1),
    (between("at", min_value="2013-01-02T00:00:00Z"), 1),
    (between("at", max_value="2013-01-02T00:00:00+01:00"), 3),
    (between("day", min_value="2013-01-02"), 2),
    (not_null("share"), 1),
    (("expect_column_values_to_be_in_set", {"column": "carrier", "value_set": ["AA", "UA"]}), 0),
    (("expect_column_values_to_be_in_set", {"column": "share", "value_set": [0.1, 0.25, 1]}), 0),
    (("expect_column_values_to_match_regex", {"column": "carrier", "regex": "^A"}), 2),
    (
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {"column_A": "flights", "column_B": "share", "ignore_row_if": "either_value_is_missing"},
        ),
        1,
    ),
    (
        (
            "expect_column_values_to_not_be_null",
            {
                "column": "flights",
                "row_condition": {"type": "nullity", "column": {"name": "share"}, "is_null": False},
            },
        ),
        0,
    ),
]
"""Expectations, and how many of ROWS fail each."""


@pytest.mark.parametrize("copies", [1, 1000])
def test_gate_compares_nulls_decimals_instants_and_dates(
    project: Settings, declaration: Declaration, expect: Expect, copies: int
) -> None:
    expect(*(expectation for expectation, _ in FAILING), severity="warn")
    gate.judge_diff(at(project), declaration.kind, Rows(pa.concat_tables([ROWS] * copies)), cut=1)
    results = checks.last_checks(project)["carrier_daily"].results
    assert [result["failed"] for result in results] == [failing * copies for _, failing in FAILING]


def test_gate_shows_the_first_ten_failing_rows_by_key(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(between("flights", min_value=0))
    rows = pa.table(
        {"carrier": [f"C{n:02}" for n in range(40)][::-1], "day": [date(2013, 1, 1)] * 40, "flights": [-1] * 40}
    )
    with pytest.raises(QualityError, match=r"failed for 40 of 40 rows: carrier=C00 .*carrier=C09 day=\S+ flights=-1 …"):
        gate.judge_diff(at(project), declaration.kind, Rows(rows), cut=1)


def test_gate_passes_a_table_without_a_quality_file(project: Settings, declaration: Declaration) -> None:
    gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


def test_suite_judges_a_share_of_rows_over_the_whole_table(project: Settings, expect: Expect) -> None:
    expect(not_null("day"), (not_null("share")[0], {"column": "share", "mostly": 0.7}), unique := compound())
    suite = load_suite(project, "carrier_daily")
    assert suite is not None
    assert [expectation.columns for expectation in suite.row_local] == [("day",)]
    assert [expectation.type for expectation in suite.whole_table] == [not_null("")[0], unique[0]]


def compound() -> tuple[str, Mapping[str, Any]]:
    return "expect_compound_columns_to_be_unique", {"column_list": ["carrier", "day"]}


def comparison(column: str, value: object) -> Mapping[str, Any]:
    return {"type": "comparison", "column": {"name": column}, "operator": "==", "parameter": value}


def row_count(**exact_bounds: int) -> tuple[str, Mapping[str, Any]]:
    return "expect_table_row_count_to_be_between", exact_bounds


# --- whole tables


@pytest.fixture
def put(project: Settings) -> Callable[..., int]:
    """Return a function that appends rows in one commit with a position, and returns its version. `met`: the rows have
    been judged as a diff by the current expectations.
    """
    path, app = at(project).path, at(project).app

    def append(rows: pa.Table, *, met: bool = False) -> int:
        position = delta.head(path, app) or delta.start(app)
        counts = {"inserted": rows.num_rows, "updated": 0, "deleted": 0}
        suite = load_suite(project, "carrier_daily") if met else None
        judged = suite.hash if suite else None
        following: Position = position.next(verb="advance", cut=position.txn + 1, counts=counts, met=judged)
        write_deltalake(str(path), rows, mode="append", commit_properties=following.commit_properties)
        return position.version + 1

    return append


@pytest.fixture
def judged(project: Settings, declaration: Declaration, monkeypatch: pytest.MonkeyPatch) -> Callable[..., checks.Check]:
    """Return a function that checks a version of the table; `judged.times` counts its judgements of rows."""
    monkeypatch.setattr(Declaration, "layer", "silver")

    def judge(version: int, cut: int = 1) -> checks.Check:
        suite = load_suite(project, "carrier_daily")
        assert suite is not None
        table = at(project)
        check = gate.judge_table(table, declaration.kind, suite, where=declaration.where, version=version, cut=cut)
        [recorded] = gate.record_checks(project, [(table, check)])
        return recorded

    return judge


def test_gate_judges_a_whole_table_by_whole_table_expectations(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(compound(), row_count(min_value=9))
    version = put(pa.concat_tables([ROWS, ROWS.slice(1, 1)]))
    check = judged(version)
    unique, count = check.results
    assert check.outcome == "stopped"
    assert unique["failed"] == 2
    assert unique["examples"] == [{"carrier": "UA", "day": "2013-01-01"}] * 2
    assert (count["observed"], count["failed"]) == (5, None)
    assert str(failures.stop_error([check])).splitlines()[1] == (
        "carrier_daily: expect_table_row_count_to_be_between failed: expected min_value 9, found 5 "
        "(quality/carrier_daily.json:13)"
    )


def test_gate_judges_a_version_once(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(compound())
    version = put(ROWS)
    first = judged(version)
    monkeypatch.setattr(gate, "judge", None)
    assert judged(version) == first
    empty = put(ROWS.slice(0, 0))
    again = judged(empty, cut=2)
    assert (again.version, again.cut, again.outcome, again.results) == (empty, 2, "passed", first.results)


def test_gate_judges_changed_rows_by_whole_table_expectations(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(compound(), between("flights", min_value=-1))
    assert len(judged(put(ROWS)).results) == 2
    assert [result["type"] for result in judged(put(ROWS, met=True), cut=2).results] == [compound()[0]]


def test_gate_judges_rows_of_another_suite_when_an_older_cut_passes(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(between("flights", min_value=-1))
    first = put(ROWS.slice(0, 1), met=True)
    second = put(ROWS, met=True)
    expect(between("flights", min_value=0))
    assert [judged(second, cut=2).outcome, judged(first).outcome, judged(second, cut=2).outcome] == [
        "stopped",
        "passed",
        "stopped",
    ]


def test_gate_reports_warned_rows_with_the_whole_table(
    project: Settings,
    declaration: Declaration,
    expect: Expect,
    put: Callable[..., int],
    judged: Callable[..., checks.Check],
) -> None:
    expect(between("flights", min_value=0), severity="warn")
    judged(put(ROWS.slice(0, 1), met=True))
    assert gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=2) is None
    check = judged(put(ROWS), cut=2)
    assert check.outcome == "warned"
    assert [told.partition(":")[0] for told in failures.warning_messages([check])] == ["carrier_daily"]


def test_gate_judges_rows_of_another_tool_by_every_expectation(
    project: Settings, expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(between("flights", min_value=0))
    judged(put(ROWS.slice(0, 1), met=True))
    write_deltalake(str(at(project).path), ROWS, mode="append")
    assert judged(put(ROWS.slice(0, 1), met=True), cut=2).outcome == "stopped"


def test_gate_judges_existing_rows_when_the_suite_changes(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(compound())
    version = put(ROWS)
    judged(version)
    expect(compound(), between("flights", min_value=0))
    assert judged(version).outcome == "stopped"
    assert judged(put(pa.concat_tables([ROWS]).slice(0, 0)), cut=2).outcome == "stopped"


def test_gate_treats_a_column_absent_from_all_files_as_null(
    project: Settings, expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    put(ROWS)
    more = {"note": pa.array([], pa.string()), "fee": pa.array([], pa.decimal128(10, 2))}
    added = pa.table({name: ROWS.slice(0, 0)[name] for name in ROWS.column_names} | more)
    write_deltalake(str(at(project).path), added, mode="append", schema_mode="merge")
    expect(
        *(
            ("expect_column_values_to_be_in_set", {"column": "note", "value_set": ["x"]}),
            between("fee", max_value=9.95),
        ),
        ("expect_column_max_to_be_between", {"column": "note", "max_value": "z"}),
        not_null("note"),
    )
    results = judged(delta.version(at(project).path)).results
    assert [(result["success"], result["failed"]) for result in results] == [
        (True, 0),
        (True, 0),
        (False, None),
        (False, 4),
    ]


def test_gate_judges_an_empty_table(
    expect: Expect, put: Callable[..., int], judged: Callable[..., checks.Check]
) -> None:
    expect(compound(), between("share", min_value=0), row_count(min_value=1))
    assert [result["success"] for result in judged(put(ROWS.slice(0, 0))).results] == [True, True, False]


# --- wrong quality files


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"expectations": [\n}', r"not valid JSON: .* \(quality/carrier_daily.json:2\)"),
        ("[]", r'not \{"expectations": \[\.\.\.\]\}'),
        (
            '{"expectations": [\n\n{"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "x"}}]}',
            r"unknown expectation .*json:3\)\n  fix: did you mean 'expect_column_values_to_be_between'",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"colum": "x"}}]}',
            r"has no argument 'colum'.*\n  fix: did you mean 'column'(.|\n)*needs the argument 'column'",
        ),
        (
            '{"expectations": [\n{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "x"},\n'
            '"severity": "fatal"}]}',
            r"severity 'fatal' is not one of stop, warn, park \(quality/carrier_daily.json:2\)",
        ),
        ('{"expectations": [7]}', "an expectation must be an object"),
        ('{"expectation": [], "expectations": []}', "unknown member 'expectation'"),
        (
            '{"expectations": [{"type": "expect_table_row_count_to_equal_other_table",'
            '"kwargs": {"other_table_name": "x"}}]}',
            "needs a SQL database",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_be_of_type", "kwargs":'
            ' {"column": "x", "type_": "int"}}]}',
            "engine's names of types",
        ),
        (
            '{"expectations": [{"type": "expect_column_kl_divergence_to_be_less_than", "kwargs": {"column": "x"}}]}',
            "cannot be judged exactly",
        ),
        (
            '{"expectations": [\n{"type": "expect_column_values_to_match_regex",'
            ' "kwargs": {"column": "carrier", "regex": "(?=A)"}}]}',
            r"'\(\?=A\)' cannot be used: .*carrier_daily.json:2\)\n  fix: regular expressions are RE2's",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_match_strftime_format",'
            ' "kwargs": {"column": "carrier", "strftime_format": "%Q"}}]}',
            r"'%Q' cannot be used: .*\n  fix: time formats are DuckDB's",
        ),
        (
            '{"expectations": [{"type": "expect_column_values_to_be_between",'
            ' "kwargs": {"column": "flights", "min_value": NaN}}]}',
            "not valid JSON: NaN",
        ),
    ],
)
def test_gate_reports_a_faulty_quality_file_with_its_place(
    project: Settings, declaration: Declaration, text: str, told: str
) -> None:
    (project.path("quality") / "carrier_daily.json").write_text(text)
    with pytest.raises(DeclarationError, match=told):
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


def test_gate_reports_an_unknown_column_with_its_line_and_the_nearest_name(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(not_null("day"), not_null("carier"))
    with pytest.raises(DeclarationError, match=r"no column 'carier' \(quality/carrier_daily.json:10\)\n.*'carrier'"):
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


def test_gate_reports_arguments_rejected_by_great_expectations_with_their_line(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(("expect_column_value_lengths_to_be_between", {"column": "carrier", "min_value": "two"}))
    with pytest.raises(DeclarationError, match=r"carrier_daily.json:3\)"):
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


def test_gate_reports_an_expectation_unsuited_to_a_column_type_with_its_line(
    project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(between("carrier", min_value=0))
    with pytest.raises(DeclarationError, match=r"cannot be evaluated: .*carrier_daily.json:3\)"):
        gate.judge_diff(at(project), declaration.kind, Rows(ROWS), cut=1)


# --- large ones


def test_gate_judges_a_spark_diff_like_one_in_memory(
    spark: SparkSession, project: Settings, declaration: Declaration, expect: Expect
) -> None:
    expect(*(expectation for expectation, _ in FAILING), severity="warn")
    rows = pa.concat_tables([ROWS, ROWS.slice(1, 1)])
    found = []
    for diff in (rows, to_frame(spark, rows).repartition(2)):
        gate.judge_diff(at(project), declaration.kind, Rows(diff), cut=1)
        found.append(checks.last_checks(project, "diff")["carrier_daily"].results)
    assert found[0] == found[1]
    assert len(found[0]) == len(FAILING)
    expect(between("flights", min_value=0))
    with pytest.raises(QualityError, match="carrier=UA day=2013-01-01 flights=-1"):
        gate.judge_diff(at(project), declaration.kind, Rows(to_frame(spark, ROWS)), cut=1)


@pytest.mark.long
def test_gate_imports_lazy_modules_only_when_needed() -> None:
    script = """
        import sys
        from lake.quality.gx import LAZY_MODULES, LazyModule, import_library
        import_library()
        assert all(type(sys.modules[name]) is LazyModule for name in LAZY_MODULES), LAZY_MODULES
    """
    subprocess.run([sys.executable, "-c", dedent(script)], check=True)


def test_quality_files_of_this_repository_are_complete(request: pytest.FixtureRequest) -> None:
    from lake.config import load_settings
    from lake.engine.plan import load_suites
    from lake.project.project import load

    settings = load_settings(request.config.rootpath)
    project = load(settings)
    suites = load_suites(project)
    assert set(suites) == set(project.tables)
    for suite in suites.values():
        assert suite.row_local, f"{suite.table} judges no row"
        assert suite.whole_table, f"{suite.table} judges no table"
        assert build_judges(suite.expectations)
        assert all(expectation.doc for expectation in suite.expectations), (
            f"{suite.table}: an expectation does not say why"
        )


def test_gate_compares_keys_rows_and_sums_with_the_last_edition(
    project: Settings,
    declaration: Declaration,
    expect: Expect,
    put: Callable[..., int],
    judged: Callable[..., checks.Check],
) -> None:
    """Every expectation passes without an edition. Then a quarter of the keys, of the rows and of a sum disappear; then
    everything.
    """

    def since(**shares: float) -> list[tuple[str, Mapping[str, Any]]]:
        gone, rows, flights = shares["gone"], shares["rows"], shares["flights"]
        return [
            ("expect_keys_gone_since_last_edition_to_be_at_most", {"share": gone}),
            ("expect_row_count_change_since_last_edition_to_be_at_most", {"share": rows}),
            ("expect_column_sum_change_since_last_edition_to_be_at_most", {"column": "flights", "share": flights}),
        ]

    exact = since(gone=0.25, rows=0.25, flights=0.5)
    expect(*exact)
    rows = ROWS.set_column(2, "flights", pa.array([4, 3, None, 1], pa.int64()))
    version = put(rows)
    assert judged(version).outcome == "passed"
    entry = EditionTable("silver", "silver/carrier_daily", version, "f")
    assert at(project).path == Warehouse(project).root / entry.path
    record_edition(project, 1, {"carrier_daily": entry})
    write_deltalake(str(at(project).path), rows.slice(1), mode="overwrite")
    version = delta.version(at(project).path)
    assert judged(version, cut=2).outcome == "passed"
    for shares, failing in (
        ({"gone": 0.24, "rows": 0.25, "flights": 0.5}, 0),
        ({"gone": 0.25, "rows": 0.2, "flights": 0.5}, 1),
        ({"gone": 0.25, "rows": 0.25, "flights": 0.49}, 2),
    ):
        expect(*since(**shares))
        check = judged(version, cut=2)
        assert [result["success"] for result in check.results] == [n != failing for n in range(3)]
    gone, count, total = check.results
    assert (gone["failed"], gone["rows"], gone["examples"]) == (1, 4, [{"carrier": "AA", "day": "2013-01-01"}])
    assert count["observed"] == "3, where the last edition has 4"
    assert total["observed"] == "4, where the last edition has 8"
    expect(*exact)
    write_deltalake(str(at(project).path), rows.slice(0, 0), mode="overwrite")
    check = judged(delta.version(at(project).path), cut=3)
    assert check.outcome == "stopped"
    assert "_to_be_at_most failed for 4 of 4 rows: carrier=AA day=2013-01-01" in str(failures.stop_error([check]))
    expect(("expect_keys_gone_since_last_edition_to_be_at_most", {"share": 0.1, "rows": 4}))
    assert judged(delta.version(at(project).path), cut=3).outcome == "passed"
    for kwargs, told in (
        ({"share": "10 %"}, "share of expect_keys"),
        ({"rows": 1}, "needs the argument 'share'"),
        ({"share": 1, "of": 1}, "has no argument 'of'"),
    ):
        expect(("expect_keys_gone_since_last_edition_to_be_at_most", kwargs))
        with pytest.raises(DeclarationError, match=told):
            load_suite(project, "carrier_daily")
