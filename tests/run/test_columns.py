"""Which columns of its inputs a table depends on: every way to name, pass on, rename, drop and make one."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from lake.config import Settings
from lake.run.cut import pick_cut
from lake.run.inputs import Inputs
from lake.run.rebuild import Recomputed, rebuild_all
from lake.run.verify import Verdict, verify_all
from lake.store.scan import Scan
from lake.testing import Lakehouse

FIELDS: Final = [
    {"name": "id", "type": "long", "doc": "Number."},
    {"name": "k", "type": "int", "doc": "Kind."},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "doc": "EUR."},
    {"name": "from_x", "type": ["null", "string"], "default": None, "doc": "Where it began."},
    {"name": "to_x", "type": ["null", "string"], "default": None, "doc": "Where it ended."},
]
NEWEST: Final = 'Latest("id")'
QUERY: Final = 'View("id", identity=("id", "k"))'
JOBS: Final = {
    "whole": (NEWEST, "return s"),
    "positive": (NEWEST, 'return s.where("k > 0")'),
    "starred": (NEWEST, 'return s.select("*")'),
    "starred_more": (NEWEST, 'return s.selectExpr("*", "k * 2 as twice")'),
    "listed": (NEWEST, 'return s.select(*[c for c in s.columns if c != "price"])'),
    "patterned": (NEWEST, "return s.select(s.id, s.colRegex('`.*_x`'))"),
    "dropped": (NEWEST, 'return s.drop("price")'),
    "renamed": (NEWEST, 'return s.withColumnRenamed("price", "cost")'),
    "cast": (NEWEST, 'return s.select("id", *[F.col(c).cast("string").alias(f"{c}_text") for c in s.columns[:3]])'),
    "added": (NEWEST, 'return s.withColumn("twice", s.k * 2)'),
    "made": (NEWEST, 'return s.select("id", *[f"{end}_x" for end in ("from", "to")])'),
    "named": (NEWEST, 'return s.select("id", s["k"], s.price)'),
    "packed": (NEWEST, 'return s.select("id", F.to_json(F.struct(*[c for c in s.columns if c > "a"])).alias("all"))'),
    "queried": (NEWEST, 'return s.sparkSession.sql("select * from {s} where k >= 0", s=s)'),
    "counted": ('Aggregate("k", {"n": Count(), "dear": Sum("price")})', "return s"),
    "viewed": (QUERY, "return s"),
    "selected": (QUERY, 'return s.sparkSession.sql("select * from {s}", s=s)'),
    "excepted": (QUERY, 'return s.sparkSession.sql("select * except (price) from {s}", s=s)'),
    "struct": (QUERY, 'return s.sparkSession.sql("select id, k, to_json(struct(*)) as everything from {s}", s=s)'),
    "pairs": (
        'View("id", identity=("id", "k", "end"))',
        "return s.unpivot(['id', 'k'], [f'{end}_x' for end in ('from', 'to')], 'end', 'x')",
    ),
}  # fmt: skip
JOB: Final = '''
from pyspark.sql import functions as F
from lake import *

@table({kind}, log("things"))
def {name}(s):
    """One thing. It knows no note, and no colour."""
    {body}
'''


@pytest.fixture
def things(spark: object, project: Settings) -> Lakehouse:
    """A project with a job for each way to name columns."""
    declare(project, FIELDS)
    for name, (kind, body) in JOBS.items():
        project.path(f"jobs/silver/{name}.py").write_text(JOB.format(name=name, kind=kind, body=body))
    return Lakehouse(project.project, project.project)


def declare(settings: Settings, fields: list[dict[str, Any]]) -> None:
    contract = {"type": "record", "name": "things", "doc": "A thing.", "lake": {"key": ["id"], "buckets": 2}}
    settings.path("schemas/things.avsc").write_text(json.dumps(contract | {"fields": fields}))


def thing(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "k": number % 3 - 1, "price": f"{number}.50", "from_x": f"a{number}", "to_x": None} | more


def content(lakehouse: Lakehouse) -> dict[str, tuple[list[str], list[dict[str, Any]]]]:
    """Columns and rows of every table."""
    tables = {name: lakehouse.project.table(each) for name, each in lakehouse.project.tables.items()}
    return {name: (Scan(table.path).schema().names, lakehouse.table(name)) for name, table in tables.items()}


def rebuilt(lakehouse: Lakehouse, *names: str) -> list[Recomputed]:
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))
    return rebuild_all(inputs, names, tell=lambda _: None)


def unproved(lakehouse: Lakehouse) -> list[Verdict]:
    """The verdicts on tables that are not what their recomputation gives."""
    found = verify_all(lambda: lakehouse.spark, lakehouse.project, tell=lambda _: None)
    return [each for each in found if each.verdict != "identical"]


def test_every_way_to_use_columns_gives_the_same_by_every_verb(things):
    things.land("things", *map(thing, range(1, 5))).run()
    things.land("things", thing(2, k=7, to_x="b"), thing(5)).run()
    advanced = content(things)
    assert unproved(things) == []
    done = rebuilt(things)
    assert [(each.inserted, each.updated, each.deleted, each.columns) for each in done] == [(0, 0, 0, {})] * len(JOBS)
    assert content(things) == advanced
    assert unproved(things) == []
