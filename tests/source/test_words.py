"""Words excluded from the documentation. No JVM, no MkDocs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.source.vocabulary import FIRST, found

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "infra/*.md",
    "infra/reference/*.*[dl]",
    "docs/**/*.md",
    "lake/templates/*/README.md",
)
PAGES: Final = sorted(str(page.relative_to(ROOT)) for pattern in SOURCES for page in ROOT.glob(pattern))
CODE: Final = re.compile(r"^ *```.*?^ *```|`[^`]*`|<!--.*?-->", re.DOTALL | re.MULTILINE)
PARAGRAPH: Final = re.compile(rf"\n(?:\n|- |\d+\. ){FIRST.pattern}[^?\n]*\n")


@pytest.mark.parametrize("page", PAGES)
def test_page_uses_plain_words(page: str) -> None:
    text = CODE.sub("", (ROOT / page).read_text("utf-8"))
    assert found(text) == []
    assert PARAGRAPH.findall(text) == []
