"""The worked examples of the documentation, run: declarations, input rows, and the table after each batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import load_settings
from lake.errors import DeclarationError
from lake.project.project import load
from lake.publish.deploy import deploy
from lake.testing import Lakehouse
from tests.docs.pages import ANY, Batch, Example, Row, examples, page_text
from tests.kinds.public import KINDS
from tests.shop import empty

EXAMPLES = list(examples())
TOGETHER = [example for example in EXAMPLES if not example.changes_jobs]
"""Examples that share one project: a cycle brings all of their tables to the next batch."""

Tables = dict[tuple[str, int], list[Row]]


@pytest.fixture(scope="module")
def shared_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the tables of TOGETHER after each batch."""
    return run(TOGETHER, tmp_path_factory.mktemp("examples"), spark)


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_example_tables_equal_those_of_the_page(
    spark: SparkSession, tmp_path: Path, shared_tables: Tables, example: Example
) -> None:
    made = run([example], tmp_path, spark) if example.changes_jobs else shared_tables
    for number, batch in enumerate(example.batches, start=1):
        for name, (columns, expected) in batch.tables.items():
            found, told = made[name, number], f"{name} after batch {number}"
            assert all(list(row) == columns for row in found), (told, found, columns)
            assert sorted_rows(blank_columns(found, expected)) == sorted_rows(expected), told


def run(some: Sequence[Example], home: Path, spark: SparkSession) -> Tables:
    """Return the tables of the examples after each batch: (table, number of the batch) -> rows as pages show them."""
    project, made = empty(home / "project").project, Tables()
    for number in range(max(len(example.batches) for example in some)):
        batches = [example.batches[number] for example in some if number < len(example.batches)]
        lakehouse = after(batches, project, home, spark)
        for name in (name for batch in batches for name in batch.tables):
            rows = lakehouse.table(name)
            made[name, number + 1] = [{column: page_text(value) for column, value in row.items()} for row in rows]
    return made


def write(batch: Batch, project: Path) -> bool:
    """Write the files of a batch; return whether a job changed."""
    jobs = [project / file for file in batch.files if file.startswith("jobs/")]
    changed = any(job.exists() for job in jobs)
    for file, text in batch.files.items():
        (project / file).write_text(text, "utf-8")
    return changed


def after(batches: Sequence[Batch], project: Path, home: Path, spark: SparkSession) -> Lakehouse:
    """Run a cycle and return the lakehouse; deploy the table of a changed job."""
    changed = [write(batch, project) for batch in batches]
    lakehouse = Lakehouse(project, home)
    for batch in batches:
        for stream, records in batch.landed.items():
            lakehouse.land(stream, *records)
        for name, text in batch.named.items():
            file = lakehouse.settings.path(lakehouse.settings.landing) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    if not any(changed):
        return lakehouse.run()
    with suppress(DeclarationError):  # A changed definition: events are in the log by then
        lakehouse.run()
    deploy(load(lakehouse.settings), lambda: spark, lambda _: None, lambda _: None)
    return Lakehouse(project, home)


def blank_columns(found: list[Row], expected: list[Row]) -> list[Row]:
    """Return `found` with … in the columns where the page shows … in every row."""
    anything = {column for column in (expected[0] if expected else {}) if all(row[column] == ANY for row in expected)}
    return [{column: ANY if column in anything else value for column, value in row.items()} for row in found]


def sorted_rows(rows: list[Row]) -> list[tuple[str, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def test_examples_of_one_project_have_distinct_files() -> None:
    files = [file for example in TOGETHER for file in example.batches[0].files]
    assert sorted(files) == sorted(set(files))


def test_kind_has_a_worked_example() -> None:
    kinds = {page.stem for page in (Path(__file__).parents[2] / "docs/kinds").glob("*.md")} - {"index"}
    shown_of = {example.name.split()[0].removeprefix("kinds/") for example in EXAMPLES}
    assert kinds == {name.lower() for name in KINDS}
    assert kinds <= shown_of


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_example_loads_and_has_records_and_tables(tmp_path: Path, example: Example) -> None:
    project = empty(tmp_path / "project").project
    for batch in example.batches:
        write(batch, project)
        found = load(load_settings(project))
        assert batch.landed.keys() | {name.partition("/")[0] for name in batch.named} <= found.contracts.keys()
        assert batch.tables.keys() <= found.tables.keys()
        assert batch.landed or batch.named
        assert batch.tables
        assert all(json.loads(line) for lines in batch.landed.values() for line in lines)
