"""Which columns of its inputs a table depends on: every way to name, pass on, rename, drop and make one, by every verb,
while its contract grows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine import write as writing
from lake.engine.backfill import backfill
from lake.engine.plan import plan
from lake.engine.rebuild import Recomputed, rebuild_all
from lake.engine.verify import Verdict, verify_all
from lake.evaluation.evaluation import Evaluation
from lake.evaluation.inputs import Inputs
from lake.kinds.columns import visible
from lake.publish.cut import pick_cut
from lake.store.table_head import TableHead
from lake.testing import Commands, Lakehouse
from tests import shop

FIELDS: Final = {
    "id": "long",
    "at": "timestamp",
    "k": "int",
    "price": "decimal(9, 2)",
    "from_x": "string?",
    "to_x": "string?",
}
NOTE: Final = "string?"
NAMES: Final = [*FIELDS]

next_head = writing._next
NEWEST, QUERY = 'Latest("id")', 'View("id", identity=("id", "k"))'
THINGS: Final = 'log("things")'
Made = Callable[[list[str]], Collection[str]]

# Each job: its kind, its input, its body, and the columns of its table by those of its input.
JOBS: Final[Mapping[str, tuple[str, str, str, Made]]] = {
    "whole": (NEWEST, THINGS, "return s", lambda c: c),
    "positive": (NEWEST, THINGS, 'return s.where("k > 0")', lambda c: c),
    "starred": (NEWEST, THINGS, 'return s.select("*")', lambda c: c),
    "starred_more": (NEWEST, THINGS, 'return s.selectExpr("*", "k * 2 as twice")', lambda c: [*c, "twice"]),
    "listed": (
        NEWEST,
        THINGS,
        'return s.select(*[c for c in s.columns if c != "price"])',
        lambda c: {*c} - {"price"},
    ),
    "patterned": (
        NEWEST,
        THINGS,
        "return s.select(s.id, s.colRegex('`.*_x`'))",
        lambda c: ["id", *(each for each in c if each.endswith("_x"))],
    ),
    "dropped": (NEWEST, THINGS, 'return s.drop("price")', lambda c: {*c} - {"price"}),
    "renamed": (
        NEWEST,
        THINGS,
        'return s.withColumnRenamed("price", "cost")',
        lambda c: ["cost", *({*c} - {"price"})],
    ),
    "cast": (
        NEWEST,
        THINGS,
        'return s.select("id", *[F.col(c).cast("string").alias(f"{c}_text") for c in s.columns if c > "a"])',
        lambda c: ["id", *(f"{each}_text" for each in c)],
    ),
    "added": (NEWEST, THINGS, 'return s.withColumn("twice", s.k * 2)', lambda c: [*c, "twice"]),
    "packed": (
        NEWEST,
        THINGS,
        'return s.select("id", F.to_json(F.struct(*[c for c in s.columns if c > "a"])).alias("all"))',
        lambda _: ["id", "all"],
    ),
    "queried": (
        NEWEST,
        THINGS,
        'return s.sparkSession.sql("select * from {s} where k >= 0", s=s)',
        lambda c: c,
    ),
    "viewed": (QUERY, THINGS, "return s", lambda c: c),
    "selected": (QUERY, THINGS, 'return s.sparkSession.sql("select * from {s}", s=s)', lambda c: c),
    "excepted": (
        QUERY,
        THINGS,
        'return s.sparkSession.sql("select * except (price) from {s}", s=s)',
        lambda c: {*c} - {"price"},
    ),
    "starred_struct": (
        QUERY,
        THINGS,
        's = s.select([c for c in s.columns if c > "a"])\n'
        '    return s.sparkSession.sql("select id, k, to_json(struct(*)) as everything from {s}", s=s)',
        lambda _: ["id", "k", "everything"],
    ),
    "made": (
        NEWEST,
        THINGS,
        'return s.select("id", *[f"{end}_x" for end in ("from", "to")])',
        lambda _: ["id", "from_x", "to_x"],
    ),
    "named": (NEWEST, THINGS, 'return s.select("id", s["k"], s.price)', lambda _: ["id", "k", "price"]),
    "counted": (
        'Aggregate("k", {"n": Count(), "dear": Sum("price")})',
        THINGS,
        "return s",
        lambda _: ["k", "n", "dear"],
    ),
    "past": (
        'History("id", sequence="at", track=["k"])',
        THINGS,
        's = s.withColumn("kind", s.k)\n    return s.select("id", "at", "k", "kind")',
        lambda _: ["id", "at", "k", "kind", "valid_from", "valid_to", "is_current", "version_id"],
    ),
    "pairs": (
        'View("id", identity=("id", "k", "end"))',
        THINGS,
        "return s.unpivot(['id', 'k'], [f'{end}_x' for end in ('from', 'to')], 'end', 'x')",
        lambda _: ["id", "k", "end", "x"],
    ),
    "child": (NEWEST, "whole", "return s", lambda c: c),
    "child_starred": ('View("id")', "whole", 'return s.sparkSession.sql("select * from {s}", s=s)', lambda c: c),
    "child_named": (NEWEST, "whole", 'return s.select("id", "price")', lambda _: ["id", "price"]),
}
SOME: Final = ("whole", "packed", "selected", "made", "child")
PASSING_ON: Final = {
    *("packed", "starred_struct"),  # into a column that is there already
    *(name for name, (*_, made) in JOBS.items() if {*made([*NAMES, "note_x"])} != {*made(NAMES)}),
}
JOB: Final = '''
from pyspark.sql import functions as F
from lake import *
{imports}
@table({kind}, {input})
def {name}(s):
    """One thing. It says nothing of price_x or note_x."""
    # nor does note_x matter here
    {body}
'''


def declare(settings: Settings, **more: str) -> Lakehouse:
    """The project with the contract's fields, and `more` of them."""
    return shop.declare(settings, shop.contract("things", FIELDS | more, time="at"))


def write(settings: Settings, name: str, body: str = "") -> None:
    kind, source, returned, _ = JOBS[name]
    imports = "" if source == THINGS else f"from jobs.silver.{source} import {source}"
    text = JOB.format(name=name, kind=kind, input=source, body=body or returned, imports=imports)
    settings.path(f"jobs/silver/{name}.py").write_text(text)


def thing(number: int, **more: Any) -> dict[str, Any]:
    at = f"2024-01-{number:02}T10:00:00Z"
    return {"id": number, "at": at, "k": number % 3 - 1, "price": f"{number}.50", "from_x": f"a{number}"} | more


def content(lakehouse: Lakehouse) -> dict[str, list[dict[str, Any]]]:
    return {name: lakehouse.table(name) for name in lakehouse.project.tables}


def columns(lakehouse: Lakehouse) -> dict[str, set[str]]:
    tables = {name: lakehouse.project.table(each) for name, each in lakehouse.project.tables.items()}
    return {name: {*visible(table.schema().names)} for name, table in tables.items()}


def expected(lakehouse: Lakehouse, *more: str) -> dict[str, set[str]]:
    return {name: {*JOBS[name][3]([*NAMES, *more])} for name in lakehouse.project.tables}


def rebuilt(lakehouse: Lakehouse, *names: str) -> list[Recomputed]:
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))
    return rebuild_all(inputs, names, tell=lambda _: None)


def backfilled(lakehouse: Lakehouse, name: str) -> list[Any]:
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    declaration = lakehouse.project.tables[name]
    return backfill(lambda: lakehouse.spark, lakehouse.project, declaration, start, end, tell=lambda _: None)


def changed(done: Collection[Any]) -> dict[str, Any]:
    """What was changed of tables that ought to be right."""
    told = {
        each.table: (each.inserted, each.updated, each.deleted, dict(getattr(each, "columns", {}))) for each in done
    }
    return {name: what for name, what in told.items() if what != (0, 0, 0, {})}


def verdicts(lakehouse: Lakehouse) -> list[Verdict]:
    return verify_all(lambda: lakehouse.spark, lakehouse.project, tell=lambda _: None)


def unproved(lakehouse: Lakehouse) -> list[Verdict]:
    return [each for each in verdicts(lakehouse) if each.verdict != "identical"]


def states(lakehouse: Lakehouse, connect: Callable[[], SparkSession]) -> dict[str, str]:
    return {each.table: each.state for each in plan(lakehouse.project, (), connect)}


def no_session() -> NoReturn:
    raise AssertionError("a session was asked for")


@pytest.mark.long
@pytest.mark.parametrize("names", [SOME, tuple(JOBS)], ids=["some", "all"])
def test_every_way_to_use_columns_gives_the_same_by_every_verb(
    spark: SparkSession, project: Settings, tmp_path_factory: pytest.TempPathFactory, commands: Commands, names: Any
) -> None:
    things, one_by_one = declare(project), names if names != SOME else ("whole",)
    for name in names:
        write(project, name)
    things.land("things", *map(thing, range(1, 6))).run()
    things.land("things", thing(2, k=7, to_x="b"), thing(7)).run()
    advanced = content(things)
    assert columns(things) == expected(things)
    for name in one_by_one:
        assert changed([*rebuilt(things, name), *backfilled(things, name)]) == {}
    assert changed(rebuilt(things)) == {}
    assert content(things) == advanced

    things = declare(project, note_x=NOTE)
    grown = {name: "wider" if name in PASSING_ON else "unchanged" for name in names}
    grown |= {name: "follows" for name in names if name.startswith("child")}
    assert states(things, lambda: things.spark) == grown
    things.land("things", thing(3, k=8, note_x="n"), thing(9, note_x="m")).run()
    assert columns(things) == expected(things)
    for name in one_by_one:
        assert changed(backfilled(things, name)) == {}
    assert unproved(things) == []
    assert states(things, no_session) == grown

    deployed = commands.lake("deploy", at=things)
    assert deployed.code == 0, deployed.err
    things = declare(project, note_x=NOTE)
    assert columns(things) == expected(things, "note_x")
    assert {*states(things, no_session).values()} == {"unchanged"}
    things.land("things", thing(10, note_x="o"), thing(1, k=9, note_x="p")).run()
    assert changed(rebuilt(things)) == {}
    assert unproved(things) == []
    fresh = Lakehouse(project.project, tmp_path_factory.mktemp("fresh"))
    landed, anew = (each.settings.path(each.settings.landing) for each in (things, fresh))
    shutil.copytree(landed, anew, dirs_exist_ok=True)
    assert content(fresh.run()) == content(things)


@pytest.mark.long
def test_a_column_that_readers_have_goes_only_where_somebody_says_so(
    spark: SparkSession, project: Settings, commands: Commands
) -> None:
    things = declare(project)
    write(project, "whole")
    write(project, "child")
    things.land("things", *map(thing, range(1, 4))).run()
    before = columns(things)
    write(project, "whole", 'return s.drop("price").withColumn("k", s.k.cast("bigint"))')
    for line in (("rebuild", "whole"), ("deploy",)):
        refused = commands.lake(*line, at=things)
        assert refused.code == 2, refused.err
        assert "published columns would change: price removed (decimal(9,2)) (" in refused.err
        assert "--yes" in refused.err
    told = commands.lake("rebuild", "whole", "--dry-run", at=things)
    assert (told.code, "whole: column price removed (decimal(9,2))" in told.out) == (0, True)
    assert columns(things) == before

    assert commands.lake("rebuild", "whole", "--yes", at=things).code == 0
    things = declare(project)
    [_, child] = plan(things.project, (), no_session)
    assert child.state == "changed"
    assert child.changes == ("column whole.k: integer → long", "column whole.price: decimal(9,2) → none")
    things.land("things", thing(2, k=5))
    behind = commands.lake("run", at=things)
    assert (behind.code, "column whole.price: decimal(9,2) → none" in behind.err) == (2, True), behind.err
    assert "Traceback" not in behind.err
    deployed = commands.lake("deploy", "--yes", at=things)
    assert deployed.code == 0, deployed.err
    things = declare(project)
    assert columns(things) == {"whole": {*NAMES} - {"price"}, "child": {*NAMES} - {"price"}}
    assert unproved(things) == []


@pytest.mark.long
def test_a_wider_column_loses_readers_nothing_and_is_deployed_without_a_question(
    project: Settings, commands: Commands
) -> None:
    things = declare(project)
    write(project, "renamed")
    write(project, "counted")

    def lake(*words: str, code: int = 0) -> str:
        done = commands.lake(*words, at=things)
        assert done.code == code, done.err
        return done.out + done.err

    things.land("things", thing(1), thing(2))
    lake("run")
    declare(project, k="long", price="decimal(12, 4)")
    for field, change in (("k", "was int, becomes bigint"), ("price", "was decimal(9,2), becomes decimal(12,4)")):
        assert f"{field}: {change} with the next batch; older events stay as they are; lake deploy builds" in lake(
            "schemas"
        )
    things.land("things", thing(3, price="3.1234"))
    assert "lake deploy" in lake("run", code=2)
    planned = lake("plan")
    assert "renamed: column cost: decimal(9,2) → decimal(12,4); readers lose no value" in planned
    assert "renamed: column k: int → bigint; readers lose no value" in planned
    assert "edition 3 of cut 2: 2 tables" in lake("deploy")
    things = declare(project, k="long", price="decimal(12, 4)")
    assert [str(row["cost"]) for row in things.table("renamed")] == ["1.5000", "2.5000", "3.1234"]
    assert "identical" in lake("verify")

    declare(project, k="double", price="decimal(12, 4)")
    assert "k: was bigint, becomes double" in (told := lake("schemas"))
    assert "; lake deploy --yes builds" in told
    assert "renamed: column k: bigint → double; lake deploy needs --yes for it" in lake("plan")
    refused = lake("deploy", code=2)
    assert "published columns would change: k bigint → double" in refused
    assert "cost" not in refused


@pytest.mark.long
def test_tables_whose_positions_say_no_columns_go_on(
    spark: SparkSession, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = declare(project)
    for name in ("whole", "named", "child"):
        write(project, name)
    monkeypatch.setattr(writing, "_next", as_it_was)
    things.land("things", *map(thing, range(1, 4))).run()
    things.land("things", thing(2, k=5)).run()
    monkeypatch.undo()
    assert {*states(things, no_session).values()} == {"unchanged"}

    things = declare(project, note_x=NOTE)
    grown = {"whole": "wider", "named": "unchanged", "child": "follows"}
    assert states(things, lambda: things.spark) == grown
    things.land("things", thing(3, note_x="n"), thing(4)).run()
    assert columns(things) == expected(things)
    assert unproved(things) == []
    assert states(things, no_session) == grown
    assert {each["table"]: each["why"] for each in map(asdict, verdicts(things))}["whole"].startswith("as it was built")


def as_it_was(evaluation: Evaluation, *more: Any) -> TableHead:
    """What a commit said before it said which columns a table depends on."""
    declaration, project, now = evaluation.declaration, evaluation.inputs.project, next_head(evaluation, *more)
    definition = project.definition(declaration) if now.definition else None
    return replace(now, columns=None, fingerprint=project.fingerprint(declaration), definition=definition)
