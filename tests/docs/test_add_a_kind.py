"""Guide for a new kind: its code and its tests run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs/add-a-kind.md"
CODE = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the test module of the page, with its kind installed."""
    for file, text in CODE.items():
        path = tmp_path / Path(file).name
        path.write_text(text, "utf-8")
        name = file.removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


def test_kind_of_the_guide_keeps_the_laws(spark: SparkSession, guide: Any) -> None:
    tests = [test for name, test in vars(guide).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test(spark)
