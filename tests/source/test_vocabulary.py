"""Docstrings, comments and names of tests use plain words. No JVM."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.source.vocabulary import FIRST, TEST_FIRST, found

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("lake", "dags", "infra")
TEMPLATES: Final = "lake/templates/"
"""Their docstrings describe tables to readers."""
LITERAL: Final = re.compile(r"`[^`]*`|\"[^\"\n]*\"|https?://\S+")
SENTENCE: Final = re.compile(r"(?:^|(?<=[.!?])\s|\n\n)\s*(?=[A-Z])")
EXCEPTIONS: Final[dict[str, int]] = {}
"""Uses by file, which may only become fewer."""


def words(source: str) -> Iterator[str]:
    """Yield docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")


def uses(source: str) -> list[str]:
    texts = [LITERAL.sub("", text) for text in words(source)]
    relative = [s.strip()[:60] for text in texts for s in SENTENCE.split(text) if FIRST.match(s.strip())]
    return [*(use for text in texts for use in found(text)), *relative]


def files() -> list[str]:
    found = (str(file.relative_to(ROOT)) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return sorted(file for file in found if not file.startswith(TEMPLATES))


@pytest.mark.parametrize("file", files())
def test_module_uses_plain_words(file: str) -> None:
    unplain = uses((ROOT / file).read_text("utf-8"))
    assert len(unplain) == EXCEPTIONS.get(file, 0), unplain


def unplain_test_names(source: str) -> list[str]:
    names = [name.replace("_", " ") for name in re.findall(r"^ *(?:async )?def test_(\w+)", source, re.MULTILINE)]
    return [name for name in names if TEST_FIRST.match(name) or found(name)]


def test_test_names_begin_with_their_subject_and_use_plain_words() -> None:
    folders = (ROOT / "tests", ROOT / "docs", ROOT / TEMPLATES)
    files = [file for folder in folders for kind in ("*.py", "*.md") for file in folder.rglob(kind)]
    unplain = {str(file.relative_to(ROOT)): unplain_test_names(file.read_text("utf-8")) for file in files}
    assert {file: names for file, names in unplain.items() if names} == {}


@pytest.mark.parametrize("name", ["a_row_is_sent", "what_is_refused_waits", "row_is_told_once"])
def test_unplain_test_name_is_found(name: str) -> None:
    assert unplain_test_names(f"def test_{name}() -> None: ...") == [name.replace("_", " ")]


def test_exceptions_name_files_that_exist() -> None:
    assert [file for file in EXCEPTIONS if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    "text", ['"""Return what whoever reads."""', "# Of a log, the head", '"""It tells the reader."""']
)
def test_word_is_found_in_docstrings_and_comments(text: str) -> None:
    assert uses(text)
