"""`infra/house.py`: its figures are right, and those of this repository do not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.house import ROOT, Figures, house

MOST = {
    "packages on the main floor": 19,
    "files on the main floor": 9,
    "import layers": 15,
    "modules over 400 lines": 0,
    "functions over 40 lines": 0,
    "functions of more than 6 parameters": 0,
    "class names of two or more classes": 0,
    "url_of elsewhere": 0,
    "is_remote, is_durable elsewhere": 0,
    "by_spark elsewhere": 0,
    "isinstance(…, pa.Table) elsewhere": 15,
}
"""Upper bounds of figures of this repository. A change may lower them, and raises none."""

PROJECT = """
[[tool.importlinter.contracts]]
type = "layers"
layers = ["cli", "store | read", "config"]

[[tool.importlinter.contracts]]
type = "forbidden"
"""
ENGINE = '''"""What an engine does. It runs; who starts it stops it.

Of tables: one after another.
"""

import lake.config
from lake.store import tables  # the module


class Engine:
    """A row of words."""

    def run(self, a, b, c, d, e, f):
        """Whether it ran."""
        from lake.store.tables import Rows

        return """no docstring
        # and no comment"""


@click.command("run")
def run(a, b, c, d, e, f, g): ...


def many(a, /, b, *c, d, e, f, **g): ...
'''
TABLES = """from lake.config import load

class Rows: ...
class Engine: ...

def size(rows, settings):
    if isinstance(rows, pa.Table) or isinstance(rows, (pa.RecordBatch, pa.Table)):
        return url_of(settings.landing) or store_url_of(settings) or path.is_remote or path.storage.is_durable
"""


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """Return the figures of a small tree."""
    files = {
        "pyproject.toml": PROJECT,
        "lake/__init__.py": "",
        "lake/config.py": "url = url_of(settings.landing)\n",
        "lake/engine.py": ENGINE,
        "lake/store/__init__.py": "",
        "lake/store/tables.py": TABLES,
        "lake/store/storage/folder.py": "safe = storage.is_durable\n",
        "lake/long.py": "def long():\n" + "    x = 1\n" * 40 + "\n" * 360,
        "lake/connect/kafka.py": "import lake.engine\n\n# A comment\nx = 1\n",
        "lake/templates/job.py": "class Rows: ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return house(tmp_path)


def test_house_counts_lines_and_modules(figures: Figures) -> None:
    assert figures["lines"] == 1 + 25 + 8 + 1 + 401 + 4 + 1
    assert figures["lines of code"] == 1 + 10 + 6 + 1 + 41 + 2 + 1
    assert figures["lines of the kernel"] == 441 - 4
    assert figures["packages on the main floor"] == ["connect", "store"]
    assert figures["files on the main floor"] == ["__init__.py", "config.py", "engine.py", "long.py"]
    assert figures["import layers"] == 3
    assert figures["modules"] == 8
    assert figures["modules with one importer"] == ["engine.py", "store/tables.py"]
    assert figures["modules over 400 lines"] == ["long.py"]


def test_house_counts_functions_and_classes(figures: Figures) -> None:
    assert figures["functions over 40 lines"] == ["long.py:1 long"]
    assert figures["functions of more than 6 parameters"] == ["engine.py:25 many"]
    assert figures["functions of more than 5 parameters"] == ["engine.py:25 many", "engine.py:13 run"]
    assert (figures["classes"], figures["class names of two or more classes"]) == (3, ["Engine"])


def test_house_counts_expressions_outside_their_modules(figures: Figures) -> None:
    assert figures["url_of elsewhere"] == ["store/tables.py:8"]
    assert figures["is_remote, is_durable elsewhere"] == []
    assert figures["by_spark elsewhere"] == []
    assert figures["isinstance(…, pa.Table) elsewhere"] == ["store/tables.py:7"] * 2


def test_house_counts_docstrings(figures: Figures) -> None:
    assert (figures["docstrings"], figures["words of docstrings"]) == (3, 23)
    assert figures["sentences that begin with What, Who …"] == [
        "engine.py:1 What an engine does.",
        "engine.py:1 Of tables: one after another.",
        "engine.py:14 Whether it ran.",
    ]


def test_figures_of_this_repository_do_not_grow() -> None:
    figures = house(ROOT)
    counts = {name: len(value) if isinstance(value, list) else value or 0 for name, value in figures.items()}
    grown = {name: (counts[name], most) for name, most in MOST.items() if counts[name] > most}
    assert not grown, "python infra/house.py --show FIGURE prints the places; (now, at most)"
