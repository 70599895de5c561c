"""`infra/path.py`: the code that a command uses; here a query, because it needs no JVM."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from lake.testing import Lakehouse
from tests.warehouse import published

FILE = Path(__file__).parents[1] / "infra/path.py"


@pytest.fixture
def path() -> ModuleType:
    spec = spec_from_file_location("path", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shop(folder: Path) -> Lakehouse:
    """Return the shop of `lake init` with an edition."""
    return Lakehouse(folder, published(folder).settings.warehouse_path.parent)


def test_path_of_a_query_includes_the_reader_and_excludes_the_engine(path: ModuleType, tmp_path: Path) -> None:
    told, *modules = path.path("sql", path.calls(shop(tmp_path))["sql"])
    lines = {module: int(count) for count, module in (line.split() for line in modules)}
    assert told == f"sql: {len(lines)} modules, {sum(lines.values())} lines"
    assert lines["read/sql.py"] > 10
    assert not [module for module in lines if re.match("engine|ingest|publish", module)]


def test_path_usage_names_every_call(path: ModuleType, tmp_path: Path) -> None:
    named = re.search(r"path\.py \[(.+)\]", path.__doc__ or "")
    assert named is not None
    assert named[1].split(" | ") == [*path.calls(shop(tmp_path))]
