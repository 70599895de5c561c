"""A table has one row of an identity, or the commit is not made: whichever verb was to make it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import Latest, log, table
from lake.config import Settings
from lake.engine.advance import advance
from lake.engine.rebuild import rebuild
from lake.errors import LakeError
from lake.evaluation.inputs import Inputs
from lake.evaluation.unique import fault_of
from lake.ingest.ingest import ingest
from lake.project import load
from lake.publish.cut import cut, pick_cut
from lake.publish.deploy import deploy
from lake.store.ledger.editions import current_edition
from tests.shop import contract, declare, job, optional

CONTRACT = contract(
    "notes", {"id": "int?", "who": "string?", "number": "int?", "said": optional({"type": "array", "items": "string"})}
)
KINDS = {
    "listed": 'View("who", identity=("who", "number"))',
    "said": 'View("said", identity=("said", "number"))',
    "refused": """Fold("who", state="n int", step={"n": "1"}, refuse="if(event.number > 0, 'no', null)").refusals(
        id="number")""",
}
JOBS = {
    name: job(name, kind, 'log("notes")', returns='rows.select("who", "number", "said")')
    for name, kind in KINDS.items()
}
FIRST: list[dict[str, Any]] = [
    {"id": 1, "who": "ada", "number": 1, "said": ["a, b"]},
    {"id": 2, "who": None, "number": None},
]
TWICE: list[dict[str, Any]] = [
    {"id": 1, "who": "ada", "number": 1, "said": ["a, b"]},
    {"id": 3, "who": "eve", "number": 2, "said": ["a", "b"]},
]
FOUND = {
    "listed": "who=ada, number=1",
    "said": "said=['a, b'], number=1",
    "refused": "who=ada, number=1",
}


@pytest.mark.parametrize("rows", ["in memory", pytest.param("by Spark", marks=pytest.mark.long)])
def test_two_rows_of_one_identity_are_told_and_not_committed(spark: SparkSession, project: Settings, rows: str) -> None:
    if rows == "by Spark":
        project.path("pyproject.toml").write_text('[tool.lake]\nsmall_diff_rows = 0\ncommitter = "spark"\n')
    lakehouse = declare(project, CONTRACT, jobs=JOBS).land("notes", *FIRST).run()
    before = {name: lakehouse.table(name) for name in JOBS}
    assert before["listed"] == [{name: row.get(name) for name in ("who", "number", "said")} for row in reversed(FIRST)]

    lakehouse.land("notes", *TWICE)
    ingest(lakehouse.settings, spark, lakehouse.project.contracts)
    cut(lakehouse.project)
    inputs = Inputs(lambda: spark, lakehouse.project, pick_cut(lakehouse.project, None))
    for name, identity in FOUND.items():
        [declaration] = lakehouse.project.pick([name])
        told = f"{name}: several rows have the identity {identity}: nothing was committed"
        for verb in (advance, rebuild):
            with pytest.raises(LakeError) as caught:
                verb(inputs, declaration)
            assert (caught.value.what, caught.value.exit_code) == (told, 1)
            assert caught.value.where.startswith(f"jobs/silver/{name}.py:")
        assert lakehouse.table(name) == before[name]


def test_a_deploy_of_rows_of_one_identity_leaves_readers_what_they_had(spark: SparkSession, project: Settings) -> None:
    text = job("listed", KINDS["listed"], 'log("notes")')
    lakehouse = declare(project, CONTRACT, jobs={"listed": text})
    lakehouse.land("notes", *FIRST, *TWICE[1:], {"id": 4, "who": "eve"}).run()
    declare(project, jobs={"listed": text.replace('"who", identity=("who", "number")', '"who"')})
    with pytest.raises(LakeError, match="listed: several rows have the identity who=eve: nothing was committed"):
        deploy(load(lakehouse.settings), lambda: spark, lambda _: None, lambda _: None)
    edition = current_edition(lakehouse.settings)
    assert edition is not None
    assert edition.number == 1


def test_an_error_that_is_its_own_cause_is_none_of_identity() -> None:
    error = LakeError("no column")
    error.__cause__ = error
    declared = table(Latest("id"), log("notes"))(lambda notes: notes)
    assert fault_of(declared, error) is None
