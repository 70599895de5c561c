"""Input columns of a table: generated jobs that name, pass, rename, drop and create columns, by every command, while
their contract grows. Their rows equal those of a model in plain Python.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations
from random import Random
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.backfill import backfill
from lake.engine.inputs import Inputs
from lake.engine.plan import plan
from lake.engine.rebuild import Recomputed, rebuild_all
from lake.engine.verify import Verdict, verify_all
from lake.kinds.columns import visible
from lake.publish.cut import pick_cut
from lake.testing import Commands, Lakehouse
from tests import shop
from tests.checks import spark_forbidden

pytestmark = pytest.mark.long

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

NEWEST, QUERY, ALONE = 'Latest("id")', 'View("id", identity=("id", "k"))', 'View("id")'
THINGS: Final = 'log("things")'
Row = Mapping[str, Any]
Of = Callable[[Row], Row | None]
"""What is made of a row in plain Python, None where nothing is; KeyError where the row has not what it takes."""


@dataclass(frozen=True)
class Step:
    """Transformation of rows: by the DataFrame API, by `lists` selected by SQL in turn, and `of` one row."""

    by_frame: str
    lists: tuple[str, ...]
    of: Of
    where: str = ""


def only(*names: str) -> Of:
    return lambda row: {name: row[name] for name in names}


def drop_column(gone: str, **named: str) -> Of:
    def of(row: Row) -> Row:
        kept = dict(row)
        del kept[gone]
        return kept | {new: row[old] for new, old in named.items()}

    return of


def dear(row: Row) -> Row | None:
    return row if row["price"] > 2 else None


def as_json(value: Any) -> str:
    text = f"{value:%Y-%m-%dT%H:%M:%S.000Z}" if isinstance(value, datetime) else value
    return f'"{text}"' if isinstance(text, str) else str(text)


def packed(row: Row) -> Row:
    values = (f'"{name}":{as_json(value)}' for name, value in sorted(row.items()) if value is not None)
    return {"id": row["id"], "everything": f"{{{','.join(values)}}}"}


def as_text(value: Any) -> str | None:
    return f"{value:%F %T}" if isinstance(value, datetime) else None if value is None else str(value)


EACH: Final = 'for c in s.columns if c > "a"'
"""Without what the log adds, which begins with _."""
STEPS: Final = {
    "whole": Step('s.select("*")', ('"*"',), dict),
    "strings": Step('s.select("id", "k", "price")', ('"id", "k", "price"',), only("id", "k", "price")),
    "attributes": Step("s.select(s.id, s.k, s.price)", ('"t.id", "t.k", "t.price"',), only("id", "k", "price")),
    "items": Step('s.select(s["id"], s["from_x"])', ('"id", "`from_x`"',), only("id", "from_x")),
    "functions": Step('s.select(F.col("id"), F.col("k"))', ('"id", "`t`.`k`"',), only("id", "k")),
    "made_up": Step(
        's.select("id", "k", *[f"{end}_x" for end in ("from", "to")])',
        ('"id", "k", *[f"{end}_x" for end in ("from", "to")]',),
        only("id", "k", "from_x", "to_x"),
    ),
    "pattern": Step(
        's.select(s.id, s.colRegex("`.*_x`"))',
        ('"id", *[c for c in s.columns if c.endswith("_x")]',),
        lambda row: {name: row[name] for name in row if name == "id" or name.endswith("_x")},
    ),
    "listed": Step('s.select([c for c in s.columns if c != "price"])', ('"* except (price)"',), drop_column("price")),
    "dropped": Step('s.drop("from_x")', ('"* except (from_x)"',), drop_column("from_x")),
    "renamed": Step(
        's.withColumnRenamed("price", "cost")',
        ('"* except (price)", "price as cost"',),
        drop_column("price", cost="price"),
    ),
    "added": Step(
        's.withColumn("twice", s.k * 2)', ('"*", "k * 2 as twice"',), lambda row: {**row, "twice": row["k"] * 2}
    ),
    "texts": Step(
        f's.select("id", *[F.col(c).cast("string").alias(f"{{c}}_text") {EACH}])',
        (f'"id", *[f"cast({{c}} as string) as {{c}}_text" {EACH}]',),
        lambda row: {"id": row["id"]} | {f"{name}_text": as_text(value) for name, value in row.items()},
    ),
    "packed": Step(
        f's.select("id", F.to_json(F.struct(*sorted(c {EACH}))).alias("everything"))',
        (f"*sorted(c {EACH})", '"id", "to_json(struct(*)) as everything"'),
        packed,
    ),
    "unpacked": Step(
        's.select("id", F.struct("k", "to_x").alias("both")).select("id", "both.*")',
        ('"id", "struct(k, to_x) as both"', '"id", "both.*"'),
        only("id", "k", "to_x"),
    ),
    "lateral": Step(
        's.select("id", (s.k + 1).alias("more")).select("*", F.expr("more * 2 as after"))',
        ('"id", "k + 1 as more", "more * 2 as after"',),
        lambda row: {"id": row["id"], "more": row["k"] + 1, "after": (row["k"] + 1) * 2},
    ),
    "where": Step('s.where("price > 2")', ('"*"',), dear, "price > 2"),
    "only_where": Step(
        's.where(F.col("price") > 2).select("id", "to_x")',
        ('"id", "to_x"',),
        lambda row: dear(row) and only("id", "to_x")(row),
        "price > 2",
    ),
}
FRAME: Final = "frame"
SELECTED: Final = {
    "expr": ('s.alias("t"){where}.selectExpr({list})', '.where("{}")'),
    "sql": ('s.sparkSession.sql("select " + ", ".join([{list}]) + " from {{s}} as t{where}", s=s)', " where {}"),
    "named": (
        's.sparkSession.sql("with t as (select * from {{s}}) select " + ", ".join([{list}]) + " from t{where}", s=s)',
        " where {}",
    ),
}
"""How SQL is given the frame that it selects from, and what it selects where."""
TAKEN: Final = (FRAME, *SELECTED)


@dataclass(frozen=True)
class Job:
    """Table, and the row made `of` an input row in plain Python."""

    kind: str
    input: str
    body: str
    of: Of

    def rows(self, given: Sequence[Row]) -> list[Row]:
        made = [row for each in given if (row := self.of(each)) is not None]
        rows = [*{row["id"]: row for row in made}.values()] if self.kind == NEWEST else made
        return sorted(rows, key=lambda row: [row[name] for name in ("id", "k") if self.kind == QUERY or name == "id"])


WHOLE: Final = {"whole": Job(NEWEST, THINGS, "return s", dict)}
CHILD: Final = {"child": Job(NEWEST, "whole", "return s", dict)}
NAMED: Final = {"named": Job(NEWEST, THINGS, 'return s.select("id", s["k"], s.price)', only("id", "k", "price"))}
RENAMED: Final = {"renamed": Job(NEWEST, THINGS, f"return {STEPS['renamed'].by_frame}", STEPS["renamed"].of)}
COUNTED: Final = {"counted": Job('Aggregate("k", {"n": Count(), "dear": Sum("price")})', THINGS, "return s", dict)}
OTHERS: Final = {
    **COUNTED,
    "past": Job(
        'History("id", sequence="at", track=["k"])',
        THINGS,
        's = s.withColumn("kind", s.k)\n    return s.select("id", "at", "k", "kind")',
        dict,
    ),
    "pairs": Job(
        'View("id", identity=("id", "k", "end"))',
        THINGS,
        "return s.unpivot(['id', 'k'], [f'{end}_x' for end in ('from', 'to')], 'end', 'x')",
        dict,
    ),
}
"""Of other kinds, whose rows are not told by a model of a row."""


def jobs_of(taken: str, *names: str) -> dict[str, Job]:
    """Return the jobs of one or more steps over a frame `taken` one way; none if a step lacks its columns."""
    chance, steps = Random(" ".join([taken, *names])), [STEPS[name] for name in names]
    try:
        row = through(steps)(typed(thing(9), [*NAMES, "note_x"]))
    except KeyError:
        return {}
    body = "\n    ".join([*(line for step in steps for line in lines(step, taken)), "return s"])
    kind, given = chance.choice([*kinds(steps, taken, row or {})] or [(ALONE, "whole")])
    return {"_".join([taken, *names]): Job(kind, given, body, through(steps))}


def single_steps() -> dict[str, Job]:
    """Return every step over a frame from every source."""
    return {name: job for taken in TAKEN for step in STEPS for name, job in jobs_of(taken, step).items()}


def step_pairs() -> dict[str, Job]:
    """Return every two steps of which the second uses a column of the first, over a frame from several sources."""
    ways = Random(3)
    return {name: job for two in permutations(STEPS, 2) for name, job in jobs_of(ways.choice(TAKEN), *two).items()}


def kinds(steps: Sequence[Step], taken: str, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the kinds possible for a table of such a `row`, with their input. Latest requires the order of a row: SQL
    keeps it by a star, which then includes it, also within a struct.
    """
    lists = [each for step in steps for each in step.lists]
    carries = not any("struct(*)" in each for each in lists) if taken == "expr" else all('"*' in each for each in lists)
    for given in (THINGS, "whole"):
        if taken == FRAME or carries:
            yield NEWEST, given
        if "k" in row:
            yield QUERY, given


def through(steps: Sequence[Step]) -> Of:
    def of(row: Row) -> Row | None:
        found: Row | None = row
        for step in steps:
            found = found and step.of(found)
        return found

    return of


def lines(step: Step, taken: str) -> Iterator[str]:
    """Yield the lines of a job's function that apply a step to `s`."""
    if taken == FRAME:
        yield f"s = {step.by_frame}"
        return
    selects, where = SELECTED[taken]
    for number, each in enumerate(step.lists):
        yield f"s = {selects.format(list=each, where=where.format(step.where) if step.where and not number else '')}"


def parts() -> Iterator[Any]:
    """Yield all jobs in parts, one for each test."""
    jobs = list((single_steps() | step_pairs()).items())
    for first in range(0, len(jobs), TOGETHER):
        part = dict(jobs[first : first + TOGETHER])
        yield pytest.param(part, id=str(first // TOGETHER + 1))


TOGETHER: Final = 34
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
    """Return the project with the contract's fields, and `more` of them."""
    return shop.declare(settings, shop.contract("things", FIELDS | more, time="at"))


def write(settings: Settings, jobs: Mapping[str, Job]) -> None:
    for name, job in jobs.items():
        imports = "" if job.input == THINGS else f"from jobs.silver.{job.input} import {job.input}"
        text = JOB.format(name=name, kind=job.kind, input=job.input, body=job.body, imports=imports)
        settings.path(f"jobs/silver/{name}.py").write_text(text)


def thing(number: int, **more: Any) -> dict[str, Any]:
    at = f"2024-01-{number:02}T10:00:00Z"
    return {"id": number, "at": at, "k": number % 3 - 1, "price": f"{number}.50", "from_x": f"a{number}"} | more


def typed(record: Row, names: Sequence[str]) -> Row:
    """Return a record as rows have it."""
    values = {**record, "at": datetime.fromisoformat(record["at"]), "price": Decimal(record["price"])}
    return {name: values.get(name) for name in names}


def content(lakehouse: Lakehouse) -> dict[str, list[dict[str, Any]]]:
    return {name: lakehouse.table(name) for name in lakehouse.project.tables}


def modelled(jobs: Mapping[str, Job], records: Sequence[Row], *more: str) -> dict[str, list[Row]]:
    """Return the rows of tables by the model, with the first columns and `more`."""
    events = [typed(record, [*NAMES, *more]) for record in records]
    whole = WHOLE["whole"].rows(events)
    return {name: job.rows(events if job.input == THINGS else whole) for name, job in jobs.items()}


def columns(lakehouse: Lakehouse) -> dict[str, set[str]]:
    tables = {name: lakehouse.project.table(each) for name, each in lakehouse.project.tables.items()}
    return {name: {*visible(table.schema().names)} for name, table in tables.items()}


def rebuilt(lakehouse: Lakehouse, *names: str) -> list[Recomputed]:
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))
    return rebuild_all(inputs, names, on_progress=lambda _: None)


def backfilled(lakehouse: Lakehouse, name: str) -> list[Any]:
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    declaration = lakehouse.project.tables[name]
    return backfill(lambda: lakehouse.spark, lakehouse.project, declaration, (start, end), on_progress=lambda _: None)


def changes_of(done: Collection[Any]) -> dict[str, Any]:
    """Return the changes of tables that should be right."""
    told = {
        each.table: (each.inserted, each.updated, each.deleted, dict(getattr(each, "columns", {}))) for each in done
    }
    return {name: what for name, what in told.items() if what != (0, 0, 0, {})}


def verdicts(lakehouse: Lakehouse) -> list[Verdict]:
    return verify_all(lambda: lakehouse.spark, lakehouse.project, on_progress=lambda _: None)


def unproved(lakehouse: Lakehouse) -> list[Verdict]:
    return [each for each in verdicts(lakehouse) if each.verdict != "identical"]


def states(lakehouse: Lakehouse, connect: Callable[[], SparkSession]) -> dict[str, str]:
    return {each.table: each.state for each in plan(lakehouse.project, (), connect)}


def grown(job: Job) -> str:
    """Return the plan of a table whose log has a field more than it was built with."""
    if job.input != THINGS:
        return "follows"
    record = thing(9, note_x="n")
    return "wider" if job.of(typed(record, NAMES)) != job.of(typed(record, [*NAMES, "note_x"])) else "unchanged"


@pytest.mark.parametrize("jobs", [*parts()])
def test_column_uses_are_equal_by_every_command(
    spark: SparkSession,
    project: Settings,
    tmp_path_factory: pytest.TempPathFactory,
    commands: Commands,
    jobs: dict[str, Job],
) -> None:
    things, landed = declare(project), list[Row]()
    write(project, WHOLE | jobs | OTHERS)

    def land(*records: Row) -> None:
        landed.extend(records)
        things.land("things", *records).run()

    def as_modelled(*more: str) -> None:
        found, wanted = content(things), modelled(WHOLE | jobs, landed, *more)
        assert {name: rows for name, rows in found.items() if name not in OTHERS} == wanted

    land(*map(thing, range(1, 6)))
    land(thing(2, k=7, to_x="b"), thing(7))
    as_modelled()
    before = content(things)
    for name in jobs:
        assert changes_of(rebuilt(things, name)) == {}
    assert changes_of(rebuilt(things)) == {}
    assert content(things) == before

    things = declare(project, note_x=NOTE)
    now = {name: grown(job) for name, job in (WHOLE | jobs).items()} | dict.fromkeys(OTHERS, "unchanged")
    assert states(things, lambda: things.spark) == now
    land(thing(3, k=8, note_x="n"), thing(9, note_x="m"))
    as_modelled()
    for name in jobs:
        assert changes_of(backfilled(things, name)) == {}
    assert unproved(things) == []
    assert states(things, spark_forbidden) == now

    deployed = commands.lake("deploy", at=things)
    assert deployed.code == 0, deployed.err
    things = declare(project, note_x=NOTE)
    as_modelled("note_x")
    assert {*states(things, spark_forbidden).values()} == {"unchanged"}
    land(thing(10, note_x="o"), thing(1, k=9, note_x="p"))
    as_modelled("note_x")
    assert changes_of(rebuilt(things)) == {}
    assert unproved(things) == []
    fresh = Lakehouse(project.project, tmp_path_factory.mktemp("fresh"))
    source, anew = (each.settings.path(each.settings.landing) for each in (things, fresh))
    shutil.copytree(source, anew, dirs_exist_ok=True)
    assert content(fresh.run()) == content(things)


def test_published_column_is_dropped_only_by_an_explicit_deploy(
    spark: SparkSession, project: Settings, commands: Commands
) -> None:
    things = declare(project)
    write(project, WHOLE | CHILD)
    things.land("things", *map(thing, range(1, 4))).run()
    before = columns(things)
    less = 'return s.drop("price").withColumn("k", s.k.cast("bigint"))'
    write(project, {"whole": replace(WHOLE["whole"], body=less)})
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
    [_, child] = plan(things.project, (), spark_forbidden)
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


def test_wider_column_keeps_values_and_is_deployed_explicitly(project: Settings, commands: Commands) -> None:
    things = declare(project)
    write(project, RENAMED | COUNTED)

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
    assert "renamed: lake deploy needs --yes: published columns would change: k bigint → double" in lake("plan")
    refused = lake("deploy", code=2)
    assert "published columns would change: k bigint → double" in refused
    assert "cost" not in refused
