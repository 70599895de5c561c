"""Options of every kind through the engine: built, advanced by two batches, rebuilt and verified, with nulls.

The declarations are generated from the classes' options: each pair of two options' values is in one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.publish.cut import pick_cut
from lake.testing import Lakehouse
from tests.kinds.public import KINDS
from tests.options import project as matrix
from tests.options.events import batches
from tests.options.options import OPTIONS, classes, parameters
from tests.writers import writing

PARTS = dict.fromkeys(KINDS, 1) | {"Aggregate": 5, "Pattern": 3}
MOST = 24  # Tables of a project


def test_options_of_every_class_have_values() -> None:
    assert {name: parameters(made) for name, made in classes().items()} == {
        name: set(options) for name, options in OPTIONS.items()
    }
    assert set(KINDS) < set(OPTIONS)


@pytest.mark.long
def test_kind_with_bold_options_keeps_the_laws(spark: SparkSession, tmp_path: Path) -> None:
    tables = list(matrix.tables(bold=True))
    assert {each.kind for each in tables} == set(KINDS)
    keeps_its_promise(tmp_path, tables)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in KINDS for part in range(PARTS[kind])])
def test_kind_with_any_pair_of_options_keeps_the_laws(
    spark: SparkSession, tmp_path: Path, kind: str, part: int
) -> None:
    tables = matrix.tables(kinds=[kind])[part :: PARTS[kind]]
    assert len(tables) <= MOST
    keeps_its_promise(tmp_path, tables)


@pytest.mark.long
def test_tables_written_by_spark_keep_the_laws(spark: SparkSession, tmp_path: Path) -> None:
    with writing("spark"):
        keeps_its_promise(tmp_path, matrix.tables(bold=True), settings="in_process_rows = 0\n")


def keeps_its_promise(home: Path, tables: list[matrix.Table], settings: str = "") -> None:
    lakehouse = Lakehouse(matrix.write(home / "project", tables, settings), home / "home")
    for batch in batches():
        for stream, records in batch.items():
            lakehouse.land(stream, *records)
        lakehouse.run()
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))
    rebuilt = rebuild_all(inputs, (), on_progress=lambda _: None)
    assert [each for each in rebuilt if each.inserted or each.updated or each.deleted] == []
    verdicts = verify_all(lambda: lakehouse.spark, lakehouse.project, on_progress=lambda _: None)
    assert [each for each in verdicts if each.verdict != "identical"] == []
    assert {each.table for each in verdicts} >= {each.name for each in tables}
    assert sum(each.rows > 0 for each in verdicts) > len(verdicts) * 0.8  # An empty table would prove nothing
