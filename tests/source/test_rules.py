"""Rules of CONTRIBUTING that neither a linter nor a contract on imports can check."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

from lake.project.jobfile import JobFile
from tests.source.trees import tree

ROOT = Path(__file__).parents[2]
UNREASONED = re.compile(r"# noqa(?!: [A-Z]+\d+(?:, [A-Z]+\d+)*\s+\S)")


def test_kinds_use_no_clock_and_no_random_number() -> None:
    files = [JobFile(path, path.read_text("utf-8")) for path in (ROOT / "lake/kinds").rglob("*.py")]
    assert len(files) > 20
    faults = [f"{fault.where}: {fault.what}" for file in files for fault in file.faults()]
    assert not [
        fault
        for fault in faults
        if re.search(r"is not deterministic|imports (?!attrs\b|pyarrow\b|importlib\b|threading\b)", fault)
    ]


def test_linter_exception_has_its_reason_beside_it() -> None:
    folders = ("lake", "jobs", "dags", "infra", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    lines = [(path, line) for path in files for line in path.read_text("utf-8").splitlines()]
    assert not [f"{path}: {line.strip()}" for path, line in lines if UNREASONED.search(line)]


@pytest.mark.parametrize("module", ["lake", "lake.testing", "lake.sources.source", "lake.sinks.kind"])
def test_public_names_have_docstrings(module: str) -> None:
    """Internal functions need none if their names and types suffice."""
    home = import_module(module)
    names = getattr(home, "__all__", [name for name in vars(home) if not name.startswith("_")])
    values = {name: getattr(home, name) for name in names}
    defined = [each for each in values.values() if isinstance(each, type | FunctionType)]
    ours = [each for each in defined if module in {"lake", "lake.testing"} or each.__module__ == module]
    assert ours
    assert not [each for each in ours if not vars(each).get("__doc__", each.__doc__)]


def test_tests_have_no_patience_of_their_own_and_assert_no_speed() -> None:
    """A machine may be busy: every test waits as long as `tests.processes` allows."""
    faults = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                waits = [word.value for word in node.keywords if word.arg and word.arg.endswith("timeout")]
                if isinstance(node.func, ast.Attribute) and node.func.attr in {"wait", "result", "join", "flush"}:
                    waits += [argument for argument in node.args if _number(argument) >= 5]
                faults += [f"{path}:{node.lineno}" for wait in waits if _number(wait) > 0]
            elif isinstance(node, ast.Assert) and re.search(r"monotonic\(|perf_counter\(|\brate\b", ast.unparse(node)):
                compared = [each for each in ast.walk(node) if isinstance(each, ast.Compare)]
                most = [each for each in compared if isinstance(each.ops[-1], ast.Lt | ast.LtE)]
                faults += [f"{path}:{node.lineno}" for each in most if _number(each.comparators[-1]) > 0]
    assert not faults


def _number(node: ast.expr) -> float:
    """Return a literal number, else 0."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0


def test_frames_are_created_with_their_types() -> None:
    """Spark Connect infers no types without rows, and either engine gives times without a zone the session's."""
    for path in (ROOT / "lake").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr != "createDataFrame" or len(node.args) == 2, f"{path}:{node.lineno}"


def test_duckdb_is_connected_in_one_module() -> None:
    """Otherwise a slow query would show a bar on stdout, in the middle of an answer."""
    files = [path for path in (ROOT / "lake").rglob("*.py") if "duckdb.connect" in path.read_text("utf-8")]
    assert files == [ROOT / "lake/session/duck.py"]


def test_modules_named_in_prose_exist() -> None:
    files = [*(ROOT / "lake").rglob("*.py")]
    names = {file.name for file in files}
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    for file in files:
        text = file.read_text("utf-8")
        assert set(re.findall(r"`(\w+\.py)`", text)) <= names, file
        assert set(re.findall(r"\b[Ss]ee `?(lake(?:\.\w+)+)", text)) <= modules, file
