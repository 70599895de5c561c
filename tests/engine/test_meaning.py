"""Comments of columns: the description of a contract field goes with its column through all kinds and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake.cli import lake
from lake.config import Settings
from lake.engine.plan import plan
from lake.read.shell import Conversation
from lake.read.sql import reader
from lake.store import snapshot
from lake.store.table_log import delta_table
from lake.testing import Lakehouse
from tests import shop

LEGS: Final = {
    "id": ("long", {"doc": "Which leg."}),
    "at": ("timestamp", {"doc": "When it left."}),
    "day": ("int", {"doc": "Day of the month."}),
    "plane": ("string", {"doc": "Tail number."}),
    "miles": ("int", {"doc": "How far.", "unit": "miles"}),
    "late": (["null", "int"], {"default": None, "unit": "minutes"}),
    "note": (["null", "string"], {"default": None}),
}
PLANES: Final = {
    "plane": ("string", {"doc": "The aircraft."}),
    "since": ("timestamp", {"doc": "Since when."}),
    "seats": ("int", {"doc": "How many sit in it.", "unit": "seats"}),
}
LEG, DAY, TAIL, MILES = "Which leg.", "Day of the month.", "Tail number.", "How far. [miles]"
LATE: Final = "[minutes]"
SEATS: Final = "How many sit in it. [seats]"
LEGS_OF, PLANES_OF = 'log("legs")', 'log("planes")'
TEN: Final = "id, at, day, plane, miles, late, note"

# Each job: its kind, inputs, lines of its docstring, returned columns, and their expected comments.
JOBS: Final[Mapping[str, tuple[str, list[str], str, str, dict[str, str]]]] = {
    "leg": (
        'Latest("id")',
        [LEGS_OF],
        "day: counted from 1\n    miles: along the great circle",
        'rows.selectExpr("id", "at", "day", "plane as tail", "miles", "late", "cast(late as string) as note")',
        {
            "id": LEG,
            "at": "When it left.",
            "day": "counted from 1",
            "tail": TAIL,
            "miles": "along the great circle [miles]",
            "late": LATE,
        },
    ),
    "expressed": (
        'Latest("id")',
        [LEGS_OF],
        "",
        'rows.selectExpr("id", "to_date(at) as day", "miles + 1 as miles", "coalesce(late, 0) as late",'
        ' "cast(plane as string) as plane", "upper(plane) as tail", "day as at", "struct(miles as m).m as far")',
        {"id": LEG, "at": DAY, "far": MILES},
    ),
    "partial": (
        'Latest("id", partial=True)',
        [LEGS_OF],
        "",
        'rows.select("id", "plane", "late", rows.miles.alias("far"))',
        {"id": LEG, "plane": TAIL, "late": LATE, "far": MILES},
    ),
    "daily": (
        'Aggregate("plane", {"n": Count(), "miles": Sum("miles")}, window=Calendar(unit="day", on="at", zone="UTC"))',
        [LEGS_OF],
        "n: legs",
        'rows.select("plane", "at", "miles")',
        {"plane": TAIL, "day": "the day, in UTC", "n": "legs"},
    ),
    "past": (
        'History("plane", sequence="since")',
        [PLANES_OF],
        "",
        "rows",
        {
            "plane": "The aircraft.",
            "since": "Since when.",
            "seats": SEATS,
            "valid_from": "when the version began, by since",
            "valid_to": "when it ended, not included; null while it lasts",
            "is_current": "whether it lasts",
            "version_id": "identifies the version for ever",
        },
    ),
    "folded": (
        'Fold("plane", sequence="at", state="miles int, legs int", start={"miles": 0, "legs": 0},'
        ' step={"miles": "state.miles + event.miles", "legs": "state.legs + 1"})',
        [LEGS_OF],
        "miles: flown",
        'rows.select("plane", "at", "miles")',
        {"plane": TAIL, "miles": "flown"},
    ),
    "streak": (
        'Pattern("plane", sequence="at", steps=[Step("late", "late > 0")], measures={"late": Max("late")})',
        [LEGS_OF],
        "",
        'rows.select("plane", "at", "late")',
        {"plane": TAIL, "match_id": "identifies the match, by its key and its first row"},
    ),
    "seated": (
        'Enrich("id", AsOf("tail", time="since"), time="at")',
        ["leg", PLANES_OF],
        "",
        '(rows.select("id", "tail", "at", "miles"), rows1.selectExpr("plane as tail", "since", "seats", "1 as one"))',
        {
            "id": LEG,
            "tail": TAIL,
            "at": "When it left.",
            "miles": "along the great circle [miles]",
            "seats": SEATS,
        },
    ),
    "joined": (
        'View("id", on={"past": {}})',
        ["leg", "past"],
        "seats: of its aircraft",
        'rows.join(rows1.where("is_current"), rows["tail"] == rows1.plane, "left")'
        '.select("id", rows.miles.alias("far"), "plane", "seats", "version_id", rows.late, rows.day)',
        {
            "id": LEG,
            "far": "along the great circle [miles]",
            "plane": "The aircraft.",
            "seats": "of its aircraft [seats]",
            "version_id": "identifies the version for ever",
            "late": LATE,
            "day": "counted from 1",
        },
    ),
    "queried": (
        'View("id")',
        ["joined"],
        "",
        'rows.sparkSession.sql("select id, max(far) as far, min(seats) as seats, plane as miles from {r}'
        ' group by id, plane", r=rows)',
        {"id": LEG, "miles": "The aircraft."},
    ),
    "mixed": (
        'View("plane", identity=("plane", "n"))',
        [LEGS_OF, PLANES_OF],
        "n: a number",
        'rows.selectExpr("plane", "miles as n").unionAll(rows1.selectExpr("plane", "seats as n")).distinct()',
        {"n": "a number"},
    ),
}
JOB: Final = '''
from lake import *
{imports}
@table({kind}, {inputs})
def {name}({rows}):
    """A row.

    {lines}
    """
    return {returned}
'''


def declare(settings: Settings, jobs: Mapping[str, str] | None = None) -> Lakehouse:
    contracts = (shop.contract("legs", LEGS, time="at"), shop.contract("planes", PLANES, time="since"))
    return shop.declare(settings, *contracts, jobs=jobs)


def written(name: str, **other: str) -> str:
    kind, inputs, lines, returned, _ = JOBS[name]
    tables = [each for each in inputs if "(" not in each]
    said = {
        "name": name,
        "kind": kind,
        "inputs": ", ".join(inputs),
        "rows": ", ".join(f"rows{n or ''}" for n in range(len(inputs))),
        "imports": "\n".join(f"from jobs.silver.{each} import {each}" for each in tables),
        "lines": lines,
        "returned": returned,
    }
    return JOB.format(**said | other)


def leg(number: int, **more: Any) -> dict[str, Any]:
    values = {"plane": f"N{number % 2}", "miles": 10 * number, "late": number, "day": number}
    return {"id": number, "at": f"2024-01-{number:02}T10:00:00Z", **values, **more}


def column_comments(lakehouse: Lakehouse, name: str) -> dict[str, str]:
    """Return the comments of a table's columns in Delta: {column: "comment [unit]"}."""
    table = lakehouse.project.table(lakehouse.project.tables[name])
    columns = snapshot.columns(delta_table(table.path))
    meant = {each.name: f"{each.comment} [{each.unit}]" if each.unit else each.comment for each in columns}
    return {column: meaning.strip() for column, meaning in meant.items() if meaning}


@pytest.mark.long
def test_column_has_the_comment_of_its_contract_field(spark: SparkSession, project: Settings) -> None:
    lakehouse = declare(project, {name: written(name) for name in JOBS})
    lakehouse.land("legs", *map(leg, range(1, 4))).land(
        "planes", {"plane": "N1", "since": "2024-01-01T00:00:00Z", "seats": 80}
    ).run()
    assert {name: column_comments(lakehouse, name) for name in JOBS} == {
        name: meant for name, (*_, meant) in JOBS.items()
    }
    built = {name: lakehouse.project.table(table).version() for name, table in lakehouse.project.tables.items()}

    # Other comments are no other definition: they come with the next rows.
    lakehouse = declare(project, {"leg": written("leg", lines="tail: painted on it")})
    assert {each.state for each in plan(lakehouse.project, (), lambda: pytest.fail("a session"))} == {"unchanged"}
    lakehouse.land("legs", leg(5)).run()
    assert column_comments(lakehouse, "leg") == {**JOBS["leg"][4], "day": DAY, "miles": MILES, "tail": "painted on it"}
    assert column_comments(lakehouse, "seated") == {**JOBS["seated"][4], "tail": "painted on it", "miles": MILES}
    assert column_comments(lakehouse, "joined") == {**JOBS["joined"][4], "far": MILES, "day": DAY}
    lakehouse.land("legs", leg(6)).run()
    table = lakehouse.project.table(lakehouse.project.tables["leg"])
    assert table.version() == built["leg"] + 3  # Two advances, and the new comments

    answers = reader(lakehouse.settings)
    [heading, _, *lines] = [*Conversation(answers).answer("\\d leg")][1:]
    assert heading.split() == ["column", "type", "unit", "comment"]
    assert any(line.split() == ["miles", "INTEGER", "miles", "How", "far."] for line in lines)
    environment = {"LAKE_WAREHOUSE": str(lakehouse.settings.warehouse_path)}
    done = CliRunner(env=environment).invoke(lake, ["tables", "--json", "--project", str(project.project)])
    [told] = [each for each in json.loads(done.stdout) if each["name"] == "leg"]
    assert {"name": "late", "type": "INTEGER", "comment": "", "unit": "minutes"} in told["columns"]
