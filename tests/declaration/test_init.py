"""The project that `lake init` makes: it runs, and its own tests hold."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.shop import new_shop


@pytest.mark.long
def test_a_new_project_runs_and_passes_its_own_tests(spark: SparkSession, tmp_path: Path) -> None:
    shop = new_shop(tmp_path).land_samples().run()
    spec = spec_from_file_location("shop_tests", tmp_path / "shop/tests/test_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [each for name, each in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test(shop)
