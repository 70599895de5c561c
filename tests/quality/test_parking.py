"""Rows parked by an expectation are in `<table>__parked` and not in the table, after every command and in any
slicing.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from unittest.mock import ANY

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell, lake
from lake.config import Settings
from lake.errors import DeclarationError
from lake.ops import pipeline
from lake.project.project import load, sound_project
from lake.quality.row_conditions import ROW_CONDITIONS
from lake.quality.suite import Expectation
from lake.store.ledger import checks
from lake.store.table_head import DUCKDB
from lake.testing import Lakehouse
from tests.checks import spark_forbidden
from tests.quality import oracle
from tests.quality.test_row_conditions import several, single
from tests.shop import contract, declare

CONTRACT: Final = contract(
    "sales", {"shop": "string?", "sale": "int?", "amount": "double?", "op": "string?"}, broadcast="op = 'T'"
)
JOBS: Final = {
    "silver/current_sale": '''
from lake import Latest, log, table

@table(Latest("sale", deletes="_op = 'D'", truncate="_op = 'T'"), log("sales"))
def current_sale(sales):
    """A sale as it is."""
    return sales.selectExpr("sale", "shop", "amount", "op as _op")
''',
    "gold/shop_total": '''
from lake import Aggregate, Count, Sum, table
from jobs.silver.current_sale import current_sale

@table(Aggregate("shop", measures={"sales": Count(), "amount": Sum("cents")}), current_sale)
def shop_total(sales):
    """What a shop sold."""
    return sales.selectExpr("shop", "sale", "cast(amount * 100 as decimal(12,0)) as cents")
''',
    "silver/first_sale": '''
from lake import First, log, table

@table(First("shop"), log("sales"))
def first_sale(sales):
    """A shop's first sale."""
    return sales.where("op is null").select("shop", "sale", "amount")
''',
}
PARKING: Final[dict[str, list[dict[str, Any]]]] = {
    "current_sale": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "amount"}},
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "shop", "regex": "^[a-c]$"}},
    ],
    "shop_total": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "cents", "max_value": 5000}}],
}
EVENTS: Final = [
    {"shop": "a", "sale": 1, "amount": 1.5},
    {"shop": "a", "sale": 2, "amount": -1.0},  # Parked
    {"shop": "b", "sale": 3, "amount": 60.0},  # Parked out of the totals
    {"shop": "b", "sale": 3, "amount": None},  # Parked: the former row stays
    {"shop": "x", "sale": 4, "amount": -2.0},  # Parked by two
    {"shop": "a", "sale": 1, "amount": None, "op": "D"},  # A delete has no amount
    {"shop": "c", "sale": 5, "amount": 50.0},
]


def park(project: Settings, parking: dict[str, list[dict[str, Any]]]) -> Lakehouse:
    for table, expectations in parking.items():
        parked = [{"severity": "park", **each} for each in expectations]
        project.path(f"quality/{table}.json").write_text(json.dumps({"expectations": parked}))
    return declare(project, CONTRACT, jobs=JOBS)


def command(shop: Lakehouse, *words: str) -> Result:
    shell = Shell(project=shop.source.project)
    shell.__dict__["spark"] = shop.spark
    environment = {"LAKE_WAREHOUSE": str(shop.settings.warehouse_path), "LAKE_LANDING": str(shop.settings.landing)}
    return CliRunner(env=environment).invoke(lake, list(words), obj=shell, catch_exceptions=False)


@pytest.fixture
def shop(spark: SparkSession, project: Settings) -> Lakehouse:
    return park(project, PARKING)


@pytest.mark.long
def test_parked_rows_are_in_their_own_table_after_every_command(shop: Lakehouse) -> None:
    for at in range(0, len(EVENTS), 3):
        shop.land("sales", *EVENTS[at : at + 3]).run()
    assert {row["sale"]: row["amount"] for row in shop.table("current_sale")} == {3: 60.0, 5: 50.0}
    parked = shop.table("current_sale__parked")
    between, regex = "expect_column_values_to_be_between(amount)", "expect_column_values_to_match_regex(shop)"
    assert {row["sale"]: row["parked_by"] for row in parked} == {
        2: between,
        3: "expect_column_values_to_not_be_null(amount)",
        4: f"{between}; {regex}",
    }
    assert [(row["shop"], int(row["amount"])) for row in shop.table("shop_total")] == [("c", 5000)]
    (over,) = shop.table("shop_total__parked")
    assert (over["shop"], over["parked_event"]) == ("b", '{"sale":3}')
    rebuilt = command(shop, "rebuild", "current_sale", "current_sale__parked", "--json")
    assert [(each["inserted"], each["updated"], each["deleted"]) for each in json.loads(rebuilt.stdout)["tables"]] == [
        (0, 0, 0),
        (0, 0, 0),
    ]
    assert {each["verdict"] for each in json.loads(command(shop, "verify", "--all", "--json").stdout)["tables"]} == {
        "identical"
    }

    assert "current_sale__parked" in command(shop, "graph").output
    (two,) = (row["parked_event"] for row in parked if row["sale"] == 2)
    assert command(shop, "void", "sales", two, "--reason", "a typing error").exit_code == 0
    shop.land("sales", {"op": "T"}, {"shop": "a", "sale": 6, "amount": 7.0}).run()
    assert {row["sale"] for row in shop.table("current_sale__parked")} == {3, 4}
    assert {row["sale"] for row in shop.table("current_sale")} == {6}
    answer = command(shop, "sql", "select sale, parked_by from current_sale__parked order by sale", "--json")
    assert [row["sale"] for row in json.loads(answer.stdout)] == [3, 4]


def test_tables_that_park_rows_need_no_spark(project: Settings) -> None:
    shop = park(project, PARKING)
    for events in (EVENTS[:4], EVENTS[4:]):
        shop.land("sales", *events)
        done = pipeline.run(shop.settings, spark_forbidden, lambda _: None)
        assert {table.engine for table in done.tables} == {DUCKDB}
    assert [row["sale"] for row in shop.table("current_sale")] == [3, 5]
    assert [row["sale"] for row in shop.table("current_sale__parked")] == [2, 3, 4]


@pytest.mark.long
def test_tables_of_parked_rows_keep_the_laws(shop: Lakehouse) -> None:
    shop.land("sales", *EVENTS[:4]).land("sales", *EVENTS[4:]).run().check_laws()


@pytest.mark.long
def test_parking_expectations_are_part_of_the_definition(shop: Lakehouse, project: Settings) -> None:
    shop.land("sales", *EVENTS).run()
    more = {
        "current_sale": [{"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "shop", "value_set": []}}]
    }
    park(project, more | {"first_sale": []})
    project.path("quality/shop_total.json").unlink()
    changed = Lakehouse(project.project, shop.home)
    plan = {each["table"]: each for each in json.loads(command(changed, "plan", "--json").stdout)["tables"]}
    assert plan["first_sale"]["state"] == "unchanged"
    assert plan["current_sale"]["state"] == "changed"
    assert any("parking" in change for change in plan["current_sale"]["changes"]), plan["current_sale"]
    assert command(changed, "deploy").exit_code == 0
    assert changed.table("current_sale") == []
    assert {row["sale"] for row in changed.table("current_sale__parked")} == {1, 2, 3, 4, 5}
    assert "shop_total__parked" not in changed.project.tables
    verdicts = json.loads(command(changed, "verify", "--all", "--json").stdout)["tables"]
    assert {each["verdict"] for each in verdicts} == {"identical"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('@table(View(key=(), identity="sale"), log("sales"))', "a View cannot park rows"),
        (
            '@table(History("sale", sequence="amount", snapshots=True), log("sales"))',
            "rows of full dumps cannot be parked",
        ),
    ],
)
def test_parking_is_rejected_for_a_kind_without_rows(project: Settings, text: str, said: str) -> None:
    park(project, {"odd": PARKING["current_sale"][:1]})
    job = (
        f'from lake import *\n\n{text}\ndef odd(sales):\n    """A sale."""\n    return sales.select("sale", "amount")\n'
    )
    project.path("jobs/silver/odd.py").write_text(job)
    with pytest.raises(DeclarationError, match=said) as fault:
        load(project)
    assert "quality/odd.json:1" in str(fault.value)


@pytest.mark.parametrize(
    "text", ['{"severity": "park"', '{"expectations": [{"type": "expect_parcels", "severity": "park"}]}']
)
def test_faulty_quality_file_leaves_the_other_tables_sound(project: Settings, text: str) -> None:
    park(project, {})
    project.path("quality/current_sale.json").write_text(text)
    found, faults = sound_project(project)
    assert [*found.tables] == ["first_sale"]
    assert ["quality/current_sale.json:1" in str(fault) for fault in faults] == [True]


def escaped(text: str) -> str:
    """Return the JSON text with all letters of its strings as escapes."""
    return re.sub("[a-z]", lambda letter: f"\\u{ord(letter[0]):04x}", text)


@pytest.mark.parametrize("word", ["expectations", "type", "kwargs", "severity", "park", "column"])
def test_escaped_word_of_a_quality_file_counts_like_a_plain_one(project: Settings, word: str) -> None:
    park(project, PARKING)
    plain = load(project)
    file = project.path("quality/current_sale.json")
    file.write_text(file.read_text().replace(f'"{word}"', f'"{escaped(word)}"'))
    found = load(project)
    assert found.tables.keys() == plain.tables.keys()
    lines = [(each.type, each.kwargs, each.where) for each in plain.tables["current_sale"].parking]
    assert [(each.type, each.kwargs, each.where) for each in found.tables["current_sale"].parking] == lines


def test_name_of_a_parked_table_is_reserved(project: Settings) -> None:
    park(project, PARKING)
    job = JOBS["silver/first_sale"].replace("first_sale", "current_sale__parked")
    project.path("jobs/silver/current_sale__parked.py").write_text(job)
    with pytest.raises(
        DeclarationError, match="current_sale__parked: has the name of the table where current_sale parks rows"
    ):
        load(project)


@pytest.mark.long
def test_parking_reports_a_column_that_the_function_does_not_return(shop: Lakehouse, project: Settings) -> None:
    park(project, {"first_sale": [{"type": "expect_column_values_to_be_null", "kwargs": {"column": "amout"}}]})
    shop.land("sales", *EVENTS)
    with pytest.raises(DeclarationError, match="parks by 'amout', which the function does not return") as fault:
        command(shop, "run")
    assert "did you mean 'amount'" in str(fault.value)


VISITS: Final = contract("visits", {"who": "string", "at": "timestamp", "day": "date", "local": "string"}, time="at")
VISITED: Final = '''
from lake import Aggregate, Calendar, Count, log, table

@table(
    Aggregate("who", measures={"visits": Count()}, window=Calendar(unit="day", on="at", zone="Asia/Kolkata")),
    log("visits"),
)
def visited(visits):
    """How often somebody came on a day."""
    return visits.selectExpr("who", "at", "day", "cast(local as timestamp_ntz) as local")
'''
MOMENTS: Final = [f"2024-01-0{day}T{time}" for day in (1, 2, 3) for time in ("00:00", "18:29", "18:30", "23:59")]


def visits(project: Settings, **bound: str) -> Lakehouse:
    """Return a table of days in India that parks rows before the bound of a column."""
    [(column, text)] = bound.items()
    expectation = {"type": "expect_column_values_to_be_between", "kwargs": {"column": column, "min_value": text}}
    park(project, {"visited": [expectation]})
    return declare(project, VISITS, jobs={"gold/visited": VISITED})


@pytest.mark.long
@pytest.mark.parametrize(
    ("bound", "parked"),
    [
        ({"at": "2024-01-02"}, 2),
        ({"at": "2024-01-02T00:00"}, 2),
        ({"at": "2024-01-02T00:00Z"}, 4),
        ({"at": "2024-01-02T01:00+01:00"}, 4),
        ({"day": "2024-01-02"}, 4),
        ({"local": "2024-01-02"}, 4),
        ({"local": "2024-01-02T18:30"}, 6),
    ],
)
def test_parking_reads_times_in_the_zone_of_the_windows(
    spark: SparkSession, project: Settings, bound: dict[str, str], parked: int
) -> None:
    shop = visits(project, **bound)
    shop.land("visits", *({"who": "a", "at": f"{at}:00Z", "day": at[:10], "local": at} for at in MOMENTS)).run()
    assert len(shop.table("visited__parked")) == parked
    assert sum(row["visits"] for row in shop.table("visited")) == len(MOMENTS) - parked


@pytest.mark.long
@pytest.mark.parametrize("bound", [{"at": "2024-13-01"}, {"day": "2024-01-02T06:00"}, {"local": "2024-01-02T06:00Z"}])
def test_parking_reports_an_invalid_time_with_its_place(
    spark: SparkSession, project: Settings, bound: dict[str, str]
) -> None:
    shop = visits(project, **bound).land("visits", {"who": "a", "at": "2024-01-01T00:00:00Z"})
    with pytest.raises(DeclarationError, match="is not a valid value of a") as fault:
        shop.run()
    assert "quality/visited.json:1" in str(fault.value)


JUDGED: Final = ("whole", "money", "double", "words", "day")
PAYMENTS: Final = contract(
    "payments",
    {
        "id": "int",
        "whole": "long?",
        "money": "decimal(10, 2)?",
        "double": "double?",
        "words": "string?",
        "day": "date?",
    },
)
JUDGING: Final = '''
from lake import Latest, log, table

@table(Latest("id"), log("payments"))
def {name}(payments):
    """A payment; what is -7 is not a number."""
    reading = "if(double = -7, double('NaN'), double) as double"
    return payments.selectExpr("id", "whole", "money", reading, "words", "day")
'''


def judged_cases() -> list[tuple[str, dict[str, Any]]]:
    cases = [*single(), *several()]
    named = ("column", "column_A", "column_B")
    mine = [
        (type_, kwargs)
        for type_, kwargs in cases
        if {*kwargs.get("column_list", ()), *(kwargs[n] for n in named if n in kwargs)} <= {*JUDGED}
        and type_ in ROW_CONDITIONS
        and not any(isinstance(value, Decimal) for value in kwargs.values())
        and oracle.failing(type_, kwargs, oracle.rows()) is not None
    ]
    by_type = {type_: [case for case in mine if case[0] == type_] for type_, _ in mine}
    return [case for few in by_type.values() for case in random.Random(6).sample(few, min(4, len(few)))]


@pytest.mark.long
@pytest.mark.parametrize("in_process_rows", [10_000, 0])
def test_parked_rows_are_those_that_fail_the_gate(spark: SparkSession, project: Settings, in_process_rows: int) -> None:
    """The verdict is the oracle's, however the rows of a change are held."""
    cases, rows = judged_cases(), oracle.rows()
    for name, severity in (("warned", "warn"), ("kept", "park")):
        listed = [{"type": type_, "kwargs": kwargs, "severity": severity} for type_, kwargs in cases]
        project.path(f"quality/{name}.json").write_text(json.dumps({"expectations": listed}))
    jobs = {f"silver/{name}": JUDGING.format(name=name) for name in ("warned", "kept")}
    shop = declare(project, PAYMENTS, jobs=jobs)
    shop.settings = replace(shop.settings, in_process_rows=in_process_rows)
    events = [
        {"id": row["id"]}
        | {name: str(row[name]) if name in {"money", "day"} else row[name] for name in JUDGED if row[name] is not None}
        for row in rows
    ]
    for event in events:
        if event.get("double") != event.get("double"):
            event["double"] = -7
    shop.land("payments", *events[:9]).land("payments", *events[9:]).run()
    failing = [oracle.failing(*case, rows) or [] for case in cases]
    results = checks.last_checks(shop.settings, "diff")["warned"].results
    assert [(result["failed"], result["examples"][:1]) for result in results if result["type"] in ROW_CONDITIONS] == [
        (len(ids), [ANY] if ids else []) for ids in failing
    ]
    parked = {row["id"] for row in shop.table("kept__parked")}
    assert parked == {row for ids in failing for row in ids}
    for row in shop.table("kept__parked"):
        assert row["parked_by"].split("; ") == [
            str(Expectation(*case, "park", "", ""))
            for case, ids in zip(cases, failing, strict=True)
            if row["id"] in ids
        ]
    assert {row["id"] for row in shop.table("kept")} == {row["id"] for row in rows} - parked
