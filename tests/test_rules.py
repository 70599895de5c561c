"""Rules of CONTRIBUTING that neither a linter nor a contract on imports can see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from lake.jobfile import JobFile

ROOT = Path(__file__).parents[1]
UNREASONED = re.compile(r"# noqa(?!: [A-Z]+\d+(?:, [A-Z]+\d+)*\s+\S)")


def test_no_clock_and_no_random_number_decides_what_a_kind_does() -> None:
    files = [JobFile(path, path.read_text("utf-8")) for path in (ROOT / "lake/kinds").rglob("*.py")]
    assert len(files) > 20
    faults = [f"{fault.where}: {fault.what}" for file in files for fault in file.faults()]
    assert not [fault for fault in faults if re.search(r"is not deterministic|imports (?!pyarrow\b)", fault)]


def test_every_linter_exception_has_its_reason_beside_it() -> None:
    folders = ("lake", "jobs", "dags", "infra", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    lines = [(path, line) for path in files for line in path.read_text("utf-8").splitlines()]
    assert not [f"{path}: {line.strip()}" for path, line in lines if UNREASONED.search(line)]


def test_every_frame_is_made_with_its_types_told() -> None:
    """Spark Connect infers none where there are no rows, and either engine gives times without a zone the session's."""
    for path in (ROOT / "lake").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr != "createDataFrame" or len(node.args) == 2, f"{path}:{node.lineno}"


def test_duckdb_is_connected_to_in_one_place() -> None:
    """Elsewhere a query that takes a while would show a bar on stdout, in the middle of an answer."""
    files = [path for path in (ROOT / "lake").rglob("*.py") if "duckdb.connect" in path.read_text("utf-8")]
    assert files == [ROOT / "lake/duck.py"]


def test_a_module_that_is_named_in_prose_is_there() -> None:
    files = [*(ROOT / "lake").rglob("*.py")]
    names = {file.name for file in files}
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    for file in files:
        text = file.read_text("utf-8")
        assert set(re.findall(r"`(\w+\.py)`", text)) <= names, file
        assert set(re.findall(r"\b[Ss]ee `?(lake(?:\.\w+)+)", text)) <= modules, file
