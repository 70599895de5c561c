"""The worked examples of the documentation, run: declarations, input rows, and the table after each batch."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import load_settings
from lake.errors import DeclarationError
from lake.project import load
from lake.publish.deploy import deploy
from lake.testing import Lakehouse
from tests.docs.pages import ANY, Batch, Example, Row, examples, shown

EXAMPLES = list(examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_the_tables_are_what_the_page_shows(spark: SparkSession, tmp_path: Path, example: Example) -> None:
    project = empty(tmp_path / "project")
    for number, batch in enumerate(example.batches, start=1):
        lakehouse = after(batch, project, tmp_path, spark, first=number == 1)
        for name, (columns, expected) in batch.tables.items():
            found = [{column: shown(value) for column, value in row.items()} for row in lakehouse.table(name)]
            told = f"{name} after batch {number}"
            assert all(list(row) == columns for row in found), (told, found, columns)
            assert ordered(blanked(found, expected)) == ordered(expected), told


def empty(project: Path) -> Path:
    """An empty project."""
    for folder in ("schemas", "jobs/silver", "jobs/gold", "quality"):
        (project / folder).mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.lake]\n")
    return project


def write(batch: Batch, project: Path) -> None:
    for file, text in batch.files.items():
        (project / file).write_text(text, "utf-8")


def after(batch: Batch, project: Path, home: Path, spark: SparkSession, *, first: bool) -> Lakehouse:
    """The lakehouse after a batch. Where a job was changed, its table is deployed."""
    write(batch, project)
    lakehouse = Lakehouse(project, home)
    for stream, records in batch.landed.items():
        lakehouse.land(stream, *records)
    if first or not any(file.startswith("jobs/") for file in batch.files):
        return lakehouse.run()
    with suppress(DeclarationError):  # that a definition has changed: events are in the log by then
        lakehouse.run()
    deploy(load(lakehouse.settings), lambda: spark, lambda _: None, lambda _: None, yes=True)
    return Lakehouse(project, home)


def blanked(found: list[Row], expected: list[Row]) -> list[Row]:
    """`found` with … in the columns where the page shows that in every row."""
    anything = {column for column in (expected[0] if expected else {}) if all(row[column] == ANY for row in expected)}
    return [{column: ANY if column in anything else value for column, value in row.items()} for row in found]


def ordered(rows: list[Row]) -> list[tuple[str, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def test_every_kind_has_a_worked_example() -> None:
    kinds = {page.stem for page in (Path(__file__).parents[2] / "docs/kinds").glob("*.md")} - {"index"}
    shown_of = {example.name.split()[0].removeprefix("kinds/") for example in EXAMPLES}
    assert len(kinds) == 9
    assert kinds <= shown_of


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_an_example_loads_and_shows_records_and_tables(tmp_path: Path, example: Example) -> None:
    project = empty(tmp_path / "project")
    for batch in example.batches:
        write(batch, project)
        found = load(load_settings(project))
        assert batch.landed.keys() <= found.contracts.keys()
        assert batch.tables.keys() <= found.tables.keys()
        assert batch.landed
        assert batch.tables
        assert all(json.loads(line) for lines in batch.landed.values() for line in lines)
