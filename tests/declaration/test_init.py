"""Projects of `lake init`: they run, and their tests pass."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.ops import scaffold
from lake.ops.scaffold import init
from lake.testing import Lakehouse


@pytest.mark.long
@pytest.mark.parametrize(("example", "number"), [(None, 3), ("social", 4)])
def test_new_project_runs_and_passes_its_own_tests(
    spark: SparkSession, tmp_path: Path, example: str | None, number: int
) -> None:
    project = tmp_path / "project"
    init(project, example)
    lakehouse = Lakehouse(project, tmp_path).land_samples().run()
    spec = spec_from_file_location(f"tests_of_{example}", project / "tests/test_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [each for name, each in vars(module).items() if name.startswith("test_")]
    assert len(tests) == number
    for test in tests:
        test(lakehouse)


def test_templates_import_only_public_names() -> None:
    """Their jobs are copied into users' projects."""
    templates = Path(scaffold.__file__).parents[1] / "templates"
    modules = {
        node.module
        for job in templates.glob("*/jobs/**/*.py")
        for node in ast.walk(ast.parse(job.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    assert {module for module in modules if module and module.startswith("lake")} == {"lake"}
