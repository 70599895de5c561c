"""Every kind is listed for users and developers. No JVM."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from infra.bench import tables
from lake import kinds
from lake.kinds.kind import Kind
from tests.kinds.public import KINDS

ROOT = Path(__file__).parents[2]
LISTS = {
    "docs/concepts.md": r"\| kind \|.*\b{name}\b.*\|",
    "docs/how-to/tables.md": r"\| \[{name}\]\(\.\./kinds/{page}\.md\) \|",
    "docs/kinds/index.md": r"\| \[{name}\]\({page}\.md\) \|",
    "mkdocs.yml": r"- {name}: kinds/{page}\.md",
}


def test_job_can_import_every_kind() -> None:
    modules = [import_module(module.name) for module in walk_packages(kinds.__path__, "lake.kinds.")]
    defined = {each for module in modules for _, each in inspect.getmembers(module, inspect.isclass)}
    named = {each.__name__ for each in defined if issubclass(each, Kind) and hasattr(each, "name")}
    assert named == set(KINDS)


@pytest.mark.parametrize("file", LISTS)
def test_kind_is_listed(file: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    patterns = {name: LISTS[file].format(name=name, page=name.lower()) for name in KINDS}
    assert [name for name, pattern in patterns.items() if not re.search(pattern, text)] == []


def test_benchmark_covers_every_kind() -> None:
    assert {type(table.kind).__name__ for table in tables.KINDS.values()} == set(KINDS)
