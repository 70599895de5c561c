"""Identity of rows: one row per identity, or no commit, for every command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lake import Latest, log, table
from lake.config import Settings
from lake.engine.advance import advance
from lake.engine.compare import fault_of
from lake.engine.inputs import Inputs
from lake.engine.plan import plan
from lake.engine.rebuild import rebuild
from lake.errors import LakeError
from lake.ingest.ingest import ingest
from lake.kinds import history
from lake.project.project import load
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
ALIKE = (["a, b"], ["a", "b"])
"""Two keys of one text."""
FOUND = {
    "listed": "who=ada, number=1",
    "said": "said=['a, b'], number=1",
    "refused": "who=ada, number=1",
}


@pytest.mark.long
@pytest.mark.parametrize("rows", ["in memory", "by Spark"])
@pytest.mark.parametrize("name", JOBS)
def test_duplicate_identity_is_reported_and_not_committed(
    spark: SparkSession, project: Settings, name: str, rows: str
) -> None:
    if rows == "by Spark":
        project.path("pyproject.toml").write_text("[tool.lake]\nin_process_rows = 0\n")
    lakehouse = declare(project, CONTRACT, jobs={name: JOBS[name]}).land("notes", *FIRST).run()
    before = lakehouse.table(name)
    if name == "listed":
        assert before == [{column: row.get(column) for column in ("who", "number", "said")} for row in reversed(FIRST)]

    lakehouse.land("notes", *TWICE)
    ingest(lakehouse.settings, lambda: spark, lakehouse.project.contracts)
    cut(lakehouse.project)
    inputs = Inputs(lambda: spark, lakehouse.project, pick_cut(lakehouse.project, None))
    [declaration] = lakehouse.project.pick([name])
    told = f"{name}: several rows have the identity {FOUND[name]}: nothing was committed"
    for verb in (advance, rebuild):
        with pytest.raises(LakeError) as caught:
            verb(inputs, declaration)
        assert (caught.value.what.startswith(told), caught.value.exit_code) == (True, 1)
        assert caught.value.where.startswith(f"jobs/silver/{name}.py:")
    assert lakehouse.table(name) == before


@pytest.mark.long
def test_deploy_with_duplicate_identities_keeps_the_edition(spark: SparkSession, project: Settings) -> None:
    text = job("listed", KINDS["listed"], 'log("notes")')
    lakehouse = declare(project, CONTRACT, jobs={"listed": text})
    lakehouse.land("notes", *FIRST, *TWICE[1:], {"id": 4, "who": "eve"}).run()
    declare(project, jobs={"listed": text.replace('"who", identity=("who", "number")', '"who"')})
    with pytest.raises(LakeError, match="listed: several rows have the identity who=eve: nothing was committed"):
        deploy(load(lakehouse.settings), lambda: spark, lambda _: None, lambda _: None)
    edition = current_edition(lakehouse.settings)
    assert edition is not None
    assert edition.number == 1


VERSIONS = {
    "by_list": ('History("said", sequence="number")', "rows"),
    "renamed": ('History("words", sequence="number")', 'rows.select("number", "who", rows.said.alias("words"))'),
    "by_name": ('History("who", sequence="number")', "rows"),
    "by_text": ('History("text", sequence="number")', 'rows.selectExpr("number", "who", "cast(said as string) text")'),
}


@pytest.mark.long
def test_nested_keys_have_distinct_ids_and_only_older_tables_are_rebuilt(
    spark: SparkSession, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {name: job(name, kind, 'log("notes")', returns=returns) for name, (kind, returns) in VERSIONS.items()}
    lakehouse = declare(project, CONTRACT, jobs=jobs)
    lakehouse.land("notes", *({"id": n, "who": "ada", "number": 1, "said": said} for n, said in enumerate(ALIKE)))
    with monkeypatch.context() as then:
        then.setattr(history, "digest", of_text)
        then.setattr(history.History, "digested", ())
        lakehouse.run()
    assert len({row["version_id"] for row in lakehouse.table("by_list")}) == 1

    anew = ("changed", ("kind version: 1 → 2",))
    assert {each.table: (each.state, each.changes) for each in plan(lakehouse.project)} == {
        name: anew if name in {"by_list", "renamed"} else ("unchanged", ()) for name in VERSIONS
    }
    deploy(load(lakehouse.settings), lambda: spark, lambda _: None, lambda _: None)
    assert [len({row["version_id"] for row in lakehouse.table(name)}) for name in ("by_list", "renamed")] == [2, 2]
    assert {each.state for each in plan(lakehouse.project)} == {"unchanged"}


def of_text(_: DataFrame, columns: Iterable[str]) -> str:
    """Return the id of a version in the former form, which did not distinguish nested values."""
    parts = (
        f"coalesce(concat(length({text}), ':', {text}), '-')" for text in map("cast(`{}` as string)".format, columns)
    )
    return f"left(sha2(concat({', '.join(parts)}), 256), 32)"


def test_error_that_causes_itself_is_no_identity_fault() -> None:
    error = LakeError("no column")
    error.__cause__ = error
    declared = table(Latest("id"), log("notes"))(lambda notes: notes)
    assert fault_of(declared, error) is None
