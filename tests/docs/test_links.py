"""Pages named in code and messages, and guides in the index. No JVM, no MkDocs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs/how-to"
NAMED = re.compile(r"\b(docs/[\w/-]+\.md)(?:, ([A-Z][\w ]+))?\)?")
"""A page, and the heading that a message names behind it: `(docs/how-to/debezium.md, Unchanged values)`."""
INCLUDED = re.compile(r'^--8<-- "(.+)"$')


def named() -> Iterator[tuple[str, str, str]]:
    """Yield (file, page, heading) of every page that a file of the code names."""
    folders = (ROOT / folder for folder in ("lake", "jobs", "dags", "infra", "quality", "tests"))
    for file in chain.from_iterable(folder.rglob("*") for folder in folders):
        if file.suffix in {".py", ".toml", ".sh", ".yaml", ".md"} and file != Path(__file__):
            for page, heading in NAMED.findall(file.read_text("utf-8")):
                yield str(file.relative_to(ROOT)), page, heading


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)


def test_pages_named_in_code_exist() -> None:
    found = list(named())
    assert len(found) > 30
    assert [each for each in found if not (ROOT / each[1]).exists()] == []


def test_headings_named_in_messages_exist() -> None:
    found = [each for each in named() if each[2] and each[0].startswith("lake/")]
    assert found
    assert [each for each in found if each[2] not in headings(ROOT / each[1])] == []


def test_files_included_in_pages_exist() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines() if line.startswith("--8")]
    assert len(lines) > 5
    assert [line for line in lines if not (m := INCLUDED.match(line)) or not (ROOT / "docs" / m[1]).exists()] == []


@pytest.mark.parametrize("name", sorted(page.name for page in GUIDES.glob("*.md") if page.name != "index.md"))
def test_index_lists_the_guide(name: str) -> None:
    assert f"]({name})" in (GUIDES / "index.md").read_text("utf-8")
    assert f"how-to/{name}\n" in (ROOT / "mkdocs.yml").read_text("utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tutorial.md"])
def test_first_pages_link_the_index_of_guides(page: str) -> None:
    assert "how-to/index.md)" in (ROOT / page).read_text("utf-8")
