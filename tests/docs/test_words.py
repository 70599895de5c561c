"""Words excluded from the documentation. No JVM, no MkDocs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

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
PLAIN: Final = {
    r"told|tells": "report, show, print",
    r"whoever|whom": "the noun: a process, a reader, a person",
    r"anew": "again",
    r"so many": "the number's name",
    r"goes by|go by": "use, depend on, follow",
    r"takes? in|taken in|let go|put up|puts? aside|stands? still|mend(?:s|ed)?|heeds?": "a verb of the trade",
    r"(?:none|nothing|nobody) where": "if",
    r"where (?:it|there|that|this|these|no|none|one|some|all|several|nothing) (?:is|are|has|have|was|were)": "if",
}
"""Pattern of words, and what is written instead."""
CODE: Final = re.compile(r"^ *```.*?^ *```|`[^`]*`|<!--.*?-->", re.DOTALL | re.MULTILINE)
FIRST: Final = re.compile(r"\n(?:\n|- |\d+\. )(?:What|Who|Whose|Whether|Of|That|How often)\b[^?\n]*\n")
"""A paragraph or an item that begins with a relative clause or a genitive."""


@pytest.mark.parametrize("page", PAGES)
def test_page_uses_plain_words(page: str) -> None:
    text = CODE.sub("", (ROOT / page).read_text("utf-8"))
    found = {word: re.findall(rf"\b(?:{word})\b", text, re.IGNORECASE) for word in PLAIN}
    assert {PLAIN[word]: words for word, words in found.items() if words} == {}
    assert FIRST.findall(text) == []
